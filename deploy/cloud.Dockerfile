# The image of the cloud application, for the RayService of rayservice.yaml or by itself:
#
#   docker build -f deploy/cloud.Dockerfile -t laxity-cloud:0.1.0 .
#   docker run --rm --shm-size 1g -v ./models:/models -v ./cloud.yaml:/etc/laxity/cloud.yaml \
#     --network host laxity-cloud:0.1.0 laxity cloud up --config /etc/laxity/cloud.yaml
FROM python:3.12-slim-bookworm

# The same as rayVersion in rayservice.yaml.
ARG RAY_VERSION=2.60.0

# KubeRay's probes call wget.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 --shell /bin/bash ray \
    && install --directory --owner ray /var/lib/laxity

COPY pyproject.toml hatch_build.py README.md LICENSE /src/
COPY configs /src/configs
COPY edge_agent /src/edge_agent
COPY policies /src/policies
COPY replay /src/replay
COPY scheduler /src/scheduler
COPY workers /src/workers
RUN pip install --no-cache-dir "ray[serve]==${RAY_VERSION}" '/src[cpu]' && rm -rf /src

ENV LAXITY_STATE_DIR=/var/lib/laxity
USER ray
WORKDIR /home/ray
