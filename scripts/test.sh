#!/usr/bin/env bash
# Sets up, builds everything and runs every test. Tests of the default model are skipped, with a message, only when it
# cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
scripts/fetch_default_model.sh || echo "test.sh: the tests of the default model will be skipped" >&2
model=${XDG_CACHE_HOME:-$HOME/.cache}/edge-transformer-engine/SmolLM2-135M-Instruct.Q4_1.gguf
cmake --preset release -DETE_TESTS=ON -DETE_BENCHMARKS=ON "-DETE_SMOLLM2_GGUF=$model"
cmake --build --preset release
ctest --preset release --parallel "$(nproc)" "$@"
