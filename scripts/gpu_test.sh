#!/usr/bin/env bash
# Every test of the CUDA device, then compute-sanitizer's passes over them, on a machine with a GPU; gRPC is not needed.
#   scripts/gpu_test.sh [--binaries DIR] [--no-sanitizers] [--jobs N]
# Builds with the preset `engine` unless DIR holds the test programs of such a build. N runs go side by side, as many as
# there are cores unless given. Fails when a test fails, when any was skipped, when a sanitizer finds something, or when
# memcheck misses the planted overrun.
set -euo pipefail
cd "$(dirname "$0")/.."

binaries=""
sanitizers=true
jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case "$1" in
    --binaries) binaries=$2; shift 2 ;;
    --no-sanitizers) sanitizers=false; shift ;;
    --jobs) jobs=$2; shift 2 ;;
    *) echo "gpu_test.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
done
if [[ -z "$binaries" ]]; then
  cmake --preset engine -DETE_CUDA=ON -DETE_TESTS=ON
  cmake --build --preset engine
  binaries=build/engine/bin/tests
fi

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Runs the GPU tests of PROGRAM that match FILTER under TOOL, or alone where that is "none".
run_tests() {
  local tool=$1 program=$2 filter=$3 prefix=() log began=$SECONDS
  log=$(mktemp "$logs/log.XXXXXX")
  if [[ $tool != none ]]; then
    prefix=(compute-sanitizer --tool "$tool" --error-exitcode 9 --target-processes all)
  fi
  local status=0
  "${prefix[@]}" "$binaries/$program" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1 || status=$?
  local said
  said=$(grep -E "^\[  PASSED|SKIPPED|ERROR SUMMARY|RACECHECK SUMMARY" "$log" | sort | uniq -c | tr -s ' ' | tr '\n' ';' || true)
  echo "$program $filter ($tool, $((SECONDS - began))s):$said"
  if ((status != 0)); then
    cat "$log"
    echo "gpu_test.sh: $program failed ($tool, exit code $status)" >&2
  elif grep -q "SKIPPED" "$log" || ! grep -qE "PASSED  \] [1-9]" "$log"; then
    echo "gpu_test.sh: $program skipped tests or ran none ($tool)" >&2
  else
    return 0
  fi
  mktemp "$logs/failed.XXXXXX" >/dev/null
}

catches_the_planted_overrun() {
  local status=0
  compute-sanitizer --tool memcheck --error-exitcode 9 "$binaries/planted_overrun" >/dev/null 2>&1 || status=$?
  if ((status == 9)); then return 0; fi
  echo "gpu_test.sh: memcheck did not catch the planted overrun (exit code $status)" >&2
  touch "$logs/failed.planted_overrun"
}

begin() {
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
  "$@" &
}

# These see how fast things are, so nothing runs beside them.
run_tests none wait_mutants_test '*cuda*'
run_tests none host_share_test '*cuda*'

for program in bit_identity_test matmul_test device_test attention_test delta_net_test row_ops_test reduce_logits_test \
  golden_test recorded_launches_test hybrid_test story_test engine_test prefix_reuse_test; do
  begin run_tests none "$program" '*cuda*'
done

# Every kernel at its edges, and whole passes with every arena part an allocation of its own. racecheck pays for every
# access to shared memory, so it gets fewer of them.
if $sanitizers; then
  for tool in racecheck memcheck initcheck synccheck; do
    attention='*MatchesFloat64/cuda*:*PartsChangeNoBit/cuda*'
    matmul='*AgreesWithFloat64/cuda*:*RowRanges*/cuda*'
    delta_net='*cuda*'
    passes=(.AcrossResidencyAndSlots/cuda_{plain,hybrid_mma_w8,dp4a_w4} .KvOnTheHost/cuda_{plain,hybrid,mma_w4})
    if [[ $tool == racecheck ]]; then
      attention='*DecodeMatchesFloat64/cuda*:*PrefillMatchesFloat64/cuda*'
      matmul='*RowRanges*/cuda*:*AddsBias*/cuda*'
      delta_net='*Draft*/cuda*:*AmongOthers/cuda*'
      passes=(.KvOnTheHost/cuda_{plain,mma_w4,hybrid})
    fi
    for pass in "${passes[@]}"; do begin run_tests "$tool" bit_identity_test "*$pass"; done
    begin run_tests "$tool" attention_test "$attention"
    begin run_tests "$tool" matmul_test "$matmul"
    begin run_tests "$tool" delta_net_test "$delta_net"
    begin run_tests "$tool" row_ops_test '*cuda*'
    begin run_tests "$tool" reduce_logits_test '*cuda*'
  done
  begin catches_the_planted_overrun
fi
wait

failed=$(find "$logs" -name 'failed.*' | wc -l)
if ((failed > 0)); then echo "gpu_test.sh: $failed runs failed" >&2; exit 1; fi
$sanitizers || echo "gpu_test.sh: sanitizers left out"
echo "gpu_test.sh: all passed (${SECONDS}s)"
