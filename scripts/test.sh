#!/usr/bin/env bash
# Sets up, builds everything and runs every test. Tests of the default model are skipped, with a message, only when it
# cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release -DETE_TESTS=ON -DETE_BENCHMARKS=ON
cmake --build --preset release
scripts/fetch_default_model.sh || echo "test.sh: the tests of the default model will be skipped" >&2
ctest --preset release --parallel "$(nproc)" "$@"
