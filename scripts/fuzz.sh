#!/usr/bin/env bash
# Builds the libFuzzer targets and runs each for SECONDS on its kept corpus: scripts/fuzz.sh [SECONDS] [TARGET...]
# New inputs stay in a temporary folder; a crash fails the script and leaves its input in build/fuzz/crashes.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
cmake --preset fuzz -DETE_BENCHMARKS=OFF -DETE_TESTS=ON >/dev/null
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
  for corpus in tests/fuzz/corpus/*/; do targets+=("$(basename "$corpus")"); done
fi
ninja -C build/fuzz "${targets[@]/#/fuzz_}"

crashes=$PWD/build/fuzz/crashes
mkdir -p "$crashes"
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
fuzz() {
  local target=$1
  mkdir -p "$found/$target"
  if "build/fuzz/bin/fuzz/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix="$crashes/$target-" "$found/$target" "tests/fuzz/corpus/$target" >"$found/$target.log" 2>&1; then
    echo "fuzzed $target for $seconds s: $(grep -E "stat::number_of_executed_units" "$found/$target.log" || true)"
    return
  fi
  tail -50 "$found/$target.log"
  echo "fuzz.sh: $target failed; its input is in $crashes" >&2
  return 1
}

# As many at a time as there are cores.
failed=0
for target in "${targets[@]}"; do
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n || failed=1; done
  fuzz "$target" &
done
while (($(jobs -p | wc -l) > 0)); do wait -n || failed=1; done
exit "$failed"
