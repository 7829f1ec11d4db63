#!/usr/bin/env bash
# clang-tidy on the files changed since REVISION: scripts/tidy.sh [--most N] [REVISION|--all]. Default: since the newest
# commit that is half an hour older than HEAD. Of more than N files, those changed last. Uses the compile commands of the
# release build.
set -euo pipefail
cd "$(dirname "$0")/.."

most=1000000
if [[ "${1:-}" == --most ]]; then most=$2; shift 2; fi
head_time=$(git log -1 --format=%ct)
base=${1:-$(git rev-list -1 --before="$((head_time - 1800))" HEAD)}
if [[ -z "$base" || "$base" == --all ]]; then
  mapfile -t files < <(git ls-files '*.cc')
else
  mapfile -t files < <(git log --no-merges --name-only --diff-filter=d --format= "$base.." -- '*.cc' | awk '!seen[$0]++')
fi
known=()
for file in "${files[@]}"; do
  if grep -qF "\"file\": \"$PWD/$file\"" build/release/compile_commands.json; then known+=("$file"); fi
  if [[ ${#known[@]} -ge $most ]]; then break; fi
done
if [[ ${#known[@]} -eq 0 ]]; then
  echo "tidy.sh: no changed file is part of the release build"
  exit 0
fi
echo "tidy.sh: ${#known[@]} files"
printf '%s\n' "${known[@]}" | xargs -P "$(nproc)" -n 2 \
  clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option
