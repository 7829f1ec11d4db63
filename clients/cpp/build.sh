#!/usr/bin/env bash
# build.sh FOLDER: builds the library and the example in FOLDER, against Debian's gRPC. PROGRAM.cc behind FOLDER is built to
# FOLDER/PROGRAM: a project of its own that takes this folder by add_subdirectory().
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
{
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(Programs CXX C)\nadd_subdirectory(%s client)\n' "$here"
  for program in "${@:2}"; do
    name=$(basename "$program" .cc)
    printf 'add_executable(%s %s)\ntarget_link_libraries(%s PRIVATE ete_client)\n' "$name" "$(realpath "$program")" "$name"
  done
} >"$out/CMakeLists.txt"
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cmake -S "$out" -B "$out" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$out" "${launcher[@]}"
cmake --build "$out"
