# lensaudit and its pins, for a user who is not root.
#   docker build -t lensaudit .
#   docker build -t lensaudit:cuda --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 --build-arg TORCH=cu130 .
ARG BASE=python:3.11-slim
FROM ${BASE}

# Which build of PyTorch: cpu, or cu130 and its like for CUDA, as uv's --torch-backend names them.
ARG TORCH=cpu
ARG UV=0.13.9

# CUDA's Ubuntu images bring no Python.
# hadolint ignore=DL3008
RUN if ! command -v python3 >/dev/null; then \
      apt-get update \
      && apt-get install -y --no-install-recommends python3 python3-venv \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -m venv /opt/lensaudit \
    && /opt/lensaudit/bin/pip install --no-cache-dir "uv==${UV}"
ENV PATH=/opt/lensaudit/bin:$PATH

# PyTorch first: its layer stays when the code changes.
WORKDIR /opt/source
COPY constraints.txt ./
RUN uv pip install --no-cache -p /opt/lensaudit --torch-backend "${TORCH}" -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY lensaudit lensaudit
COPY tofu_data tofu_data
RUN uv pip install --no-cache -p /opt/lensaudit --torch-backend "${TORCH}" -c constraints.txt .

# Models lie in /models, where `docker run --user` may write too, and results in /audit.
RUN useradd --create-home --uid 10001 auditor \
    && mkdir /models /audit \
    && chown auditor /audit \
    && chmod 1777 /models
ENV HF_HOME=/models
VOLUME /models
USER 10001
WORKDIR /audit
ENTRYPOINT ["lensaudit"]
CMD ["--help"]
