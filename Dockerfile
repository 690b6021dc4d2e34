# syntax=docker/dockerfile:1
# Two stages: the first builds the wheel and installs it with pinned, hash-checked dependencies; the second copies the result.
# BuildKit is not needed.
#
#   docker build --build-arg VERSION=0.1.0.dev0 -t otel-gpu:0.1.0.dev0 .
#
# BASE is any Debian-like image with Python 3.11 or later as python3. BUILD_BASE has the same Python at the same path, and venv.
ARG BASE=python:3.11-slim-bookworm
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
WORKDIR /src
COPY constraints/ constraints/
RUN python3 -m venv /opt/otel-gpu \
 && /opt/otel-gpu/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps \
      -r constraints/runtime.txt \
 && python3 -m venv /tmp/build \
 && /tmp/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps \
      -r constraints/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY otel_gpu/ otel_gpu/
RUN /tmp/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation -w /tmp/dist . \
 && /opt/otel-gpu/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /tmp/dist/*.whl \
 && /opt/otel-gpu/bin/pip uninstall --quiet --yes --disable-pip-version-check setuptools pip

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="otel-gpu" \
      org.opencontainers.image.description="GPU use per process, container, pod and job, through OpenTelemetry" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/otel-gpu /opt/otel-gpu
# Mount the host's /proc at /host/proc: docker run --pid=host -v /proc:/host/proc:ro
# For names, mount sockets at their usual paths: -v /var/run/docker.sock:/var/run/docker.sock:ro (docs/names.md)
ENV PATH=/opt/otel-gpu/bin:$PATH \
    HOST_PROC=/host/proc \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A number, because Kubernetes cannot check runAsNonRoot with a name. Figures of GPUs and /metrics need no more. Processes of
# other users, and names from the sockets of engines, need root and two capabilities: docs/deployment.md
USER 65532:65532
EXPOSE 9464
# A bare socket: no shell, and no HTTP library, because its import costs ten times as much as the rest of the check.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python3", "-ISc", "import socket; s = socket.create_connection(('127.0.0.1', 9464), 4); s.sendall(b'GET /healthz HTTP/1.0\\r\\nHost: 127.0.0.1:9464\\r\\n\\r\\n'); raise SystemExit(b' 200 ' not in s.recv(64))"]
ENTRYPOINT ["otel-gpu"]
# OTEL_EXPORTER_OTLP_ENDPOINT is the receiver of OTLP; with OTEL_METRICS_EXPORTER=none nothing is pushed.
CMD ["run", "--prometheus", "--listen", "0.0.0.0:9464"]
