#!/usr/bin/env bash
# Every test of the CUDA device, then compute-sanitizer's passes over them, on a machine with a GPU; gRPC is not needed.
#   scripts/gpu_test.sh [--binaries DIR] [--no-sanitizers]
# Builds with the preset `engine` unless DIR holds the test programs of such a build. Fails when a test fails, when any
# was skipped, when a sanitizer finds something, or when memcheck misses the planted overrun.
set -euo pipefail
cd "$(dirname "$0")/.."

binaries=""
sanitizers=true
while [[ $# -gt 0 ]]; do
  case "$1" in
    --binaries) binaries=$2; shift 2 ;;
    --no-sanitizers) sanitizers=false; shift ;;
    *) echo "gpu_test.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
done
if [[ -z "$binaries" ]]; then
  cmake --preset engine -DETE_CUDA=ON -DETE_TESTS=ON
  cmake --build --preset engine
  binaries=build/engine/bin/tests
fi

# Runs the GPU tests of PROGRAM that match FILTER, under PREFIX if there is one.
run_tests() {
  local program=$1 filter=$2
  shift 2
  local log
  log=$(mktemp)
  echo "==== $program $* (${SECONDS}s)"
  if ! "$@" "$binaries/$program" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1; then
    cat "$log"
    echo "gpu_test.sh: $program failed $*" >&2
    rm -f "$log"
    return 1
  fi
  grep -E "^\[  PASSED|SKIPPED|ERROR SUMMARY|RACECHECK SUMMARY" "$log" || true
  if grep -q "SKIPPED" "$log" || ! grep -qE "PASSED  \] [1-9]" "$log"; then
    echo "gpu_test.sh: $program skipped tests or ran none" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

failures=0
for program in device_test attention_test delta_net_test row_ops_test reduce_logits_test matmul_test golden_test \
  bit_identity_test recorded_launches_test hybrid_test story_test engine_test prefix_reuse_test \
  host_share_test wait_mutants_test; do
  run_tests "$program" '*cuda*' || failures=$((failures + 1))
done
if ! $sanitizers; then
  if ((failures > 0)); then echo "gpu_test.sh: $failures programs failed" >&2; exit 1; fi
  echo "gpu_test.sh: all passed, sanitizers left out (${SECONDS}s)"
  exit 0
fi

# Every kernel at its edges, and whole passes with every arena part an allocation of its own. racecheck pays for every
# access to shared memory, so it gets fewer of them.
found=9
for tool in memcheck racecheck initcheck synccheck; do
  sanitizer=(compute-sanitizer --tool "$tool" --error-exitcode "$found" --target-processes all)
  attention='*MatchesFloat64/cuda*:*PartsChangeNoBit/cuda*'
  matmul='*AgreesWithFloat64/cuda*:*RowRanges*/cuda*'
  delta_net='*cuda*'
  passes='*AcrossResidencyAndSlots/cuda*:*KvOnTheHost/cuda*'
  if [[ $tool == racecheck ]]; then
    attention='*DecodeMatchesFloat64/cuda*:*PrefillMatchesFloat64/cuda*'
    matmul='*RowRanges*/cuda*:*AddsBias*/cuda*'
    delta_net='*Draft*/cuda*:*AmongOthers/cuda*'
    passes='*.KvOnTheHost/cuda*'
  fi
  run_tests row_ops_test '*cuda*' "${sanitizer[@]}" || failures=$((failures + 1))
  run_tests delta_net_test "$delta_net" "${sanitizer[@]}" || failures=$((failures + 1))
  run_tests attention_test "$attention" "${sanitizer[@]}" || failures=$((failures + 1))
  run_tests matmul_test "$matmul" "${sanitizer[@]}" || failures=$((failures + 1))
  run_tests bit_identity_test "$passes" "${sanitizer[@]}" || failures=$((failures + 1))
done
status=0
compute-sanitizer --tool memcheck --error-exitcode "$found" "$binaries/planted_overrun" >/dev/null 2>&1 || status=$?
if ((status != found)); then
  echo "gpu_test.sh: memcheck did not catch the planted overrun (exit code $status)" >&2
  failures=$((failures + 1))
fi
if ((failures > 0)); then echo "gpu_test.sh: $failures runs failed" >&2; exit 1; fi
echo "gpu_test.sh: all passed (${SECONDS}s)"
