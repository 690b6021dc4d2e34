#!/bin/sh
# Generate the messages of otel_gpu/sources/names/proto from the .proto files beside them.
# The compiler is old on purpose and has its own environment: its code works with every runtime from protobuf 5 on. Code of a
# newer compiler refuses older runtimes, which OpenTelemetry's protos allow.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
# It uses a module of setuptools that newer versions lack.
"$work/venv/bin/pip" install --quiet --disable-pip-version-check grpcio-tools==1.64.3 'setuptools<80'
"$work/venv/bin/python" -W ignore -m grpc_tools.protoc -I. --python_out=. --pyi_out=. otel_gpu/sources/names/proto/*.proto
