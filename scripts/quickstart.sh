#!/usr/bin/env bash
# Sets up, builds, fetches the default model once and streams an answer. Arguments replace the prompt and add options:
#   scripts/quickstart.sh "Once upon a time" --max-tokens 64
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release -DETE_TESTS=OFF -DETE_BENCHMARKS=OFF >&2
cmake --build --preset release >&2
scripts/fetch_default_model.sh >&2

if [[ $# -eq 0 ]]; then set -- "The capital of France is" --max-tokens 48; fi
exec build/release/bin/ete run "$@"
