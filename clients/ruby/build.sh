#!/usr/bin/env bash
# build.sh FOLDER: generates the messages into FOLDER and puts the client beside them; `ruby -I FOLDER` then finds "ete".
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
protoc -I "$here/../../proto" --plugin=protoc-gen-grpc="$(command -v grpc_ruby_plugin)" --ruby_out="$1" --grpc_out="$1" \
  ete/v1/session.proto ete/v1/generation.proto
cp -r "$here/lib/." "$1"
