#!/bin/sh
# JSON in, JSON out, with a deadline of two seconds; LAXITY_HTTP is HOST:PORT of the HTTP door.
set -eu
zeros=$(printf '0,%.0s' $(seq 63))0
curl --silent --show-error --fail-with-body \
  --header 'x-request-timeout-ms: 2000' \
  --data "{\"inputs\": [{\"name\": \"image\", \"datatype\": \"FP32\", \"shape\": [1, 1, 8, 8], \"data\": [$zeros]}]}" \
  "http://${LAXITY_HTTP:-127.0.0.1:8700}/v2/models/digits/infer"
