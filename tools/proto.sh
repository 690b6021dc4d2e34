#!/bin/sh
# Make the messages of otel_gpu/sources/kubelet/proto from the .proto files beside them.
# The compiler is an old one on purpose, in an environment of its own: code made by it works with every runtime from
# protobuf 5 on, while that of a newer compiler refuses older runtimes, and OpenTelemetry's protos allow them.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
# It asks setuptools for its own files, by a module that newer ones have no more.
"$work/venv/bin/pip" install --quiet --disable-pip-version-check grpcio-tools==1.64.3 'setuptools<80'
"$work/venv/bin/python" -W ignore -m grpc_tools.protoc -I. --python_out=. --pyi_out=. otel_gpu/sources/kubelet/proto/*.proto
