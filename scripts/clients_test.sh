#!/usr/bin/env bash
# Builds the clients of every language with Debian's packages and runs each through the same cases against a live
# `ete serve`: scripts/clients_test.sh [--all] [-k TEST] [CLIENT ...]. A client whose toolchain is missing is skipped with a
# message; with --all it fails. scripts/setup.sh --clients installs them all. Needs the release build of ete, but for
# --target ADDRESS [--root-cert FILE] [--server-name NAME] [--token-file FILE]: a server that runs somewhere already.
set -euo pipefail
cd "$(dirname "$0")/.."

ete=build/release/bin/ete
work=$PWD/build/clients
python=/usr/bin/python3

if [[ ! -x $ete && " $* " != *" --target"* ]]; then
  echo "clients_test.sh: $ete is missing: cmake --preset release && cmake --build --preset release" >&2
  exit 1
fi
for need in "protoc" "grpc_python_plugin" "openssl"; do
  if ! command -v "$need" >/dev/null; then
    echo "clients_test.sh: $need is missing: scripts/setup.sh --clients installs it" >&2
    exit 1
  fi
done
if ! "$python" -c 'import grpc, google.protobuf' 2>/dev/null; then
  echo "clients_test.sh: $python has no grpc: scripts/setup.sh --clients installs it" >&2
  exit 1
fi

mkdir -p "$work/stubs"
protoc -I proto --plugin=protoc-gen-grpc="$(command -v grpc_python_plugin)" --python_out="$work/stubs" \
  --grpc_out="$work/stubs" ete/v1/session.proto ete/v1/engine.proto ete/v1/generation.proto
PYTHONPATH=$work/stubs exec "$python" tests/clients/conformance_test.py --root "$PWD" --ete "$PWD/$ete" --work "$work" "$@"
