# syntax=docker/dockerfile:1
# Two stages: one builds the wheel and installs it with the pinned, hash-checked runtime; the other has neither
# compiler nor package index. BASE is an argument so that the same recipe builds on any Debian with Python 3.11+.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
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
 && rm -rf /opt/otel-gpu/lib/python3*/site-packages/pip /opt/otel-gpu/bin/pip*

FROM ${BASE}
LABEL org.opencontainers.image.title="otel-gpu" \
      org.opencontainers.image.description="Who is using the GPU, per process, container and pod, through OpenTelemetry" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/otel-gpu /opt/otel-gpu
# The host's /proc is expected here: docker run --pid=host -v /proc:/host/proc:ro
# Names come from sockets at their usual paths: -v /var/run/docker.sock:/var/run/docker.sock:ro (docs/names.md)
ENV PATH=/opt/otel-gpu/bin:$PATH \
    HOST_PROC=/host/proc \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
EXPOSE 9464
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]
ENTRYPOINT ["otel-gpu"]
# Where OTLP goes is told by OTEL_EXPORTER_OTLP_ENDPOINT, or that it goes nowhere by OTEL_METRICS_EXPORTER=none.
CMD ["run", "--prometheus", "--listen", "0.0.0.0:9464"]
