#!/usr/bin/env bash
# build.sh FOLDER: generates the messages, builds the example to FOLDER/generate. FOLDER is then a GOPATH with the client as
# edgetransformerengine/ete. PROGRAM.go behind FOLDER is built too, to FOLDER/PROGRAM. Debian's packages only: no module is
# fetched.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
protos=(ete/v1/session.proto ete/v1/generation.proto)
options=()
for proto in "${protos[@]}"; do
  options+=("--go_opt=M$proto=edgetransformerengine/etev1" "--go-grpc_opt=M$proto=edgetransformerengine/etev1")
done
mkdir -p "$out/src/edgetransformerengine"
cp -r "$here/ete" "$here/generate" "$out/src/edgetransformerengine/"
protoc -I "$here/../../proto" --go_out="$out/src" --go-grpc_out="$out/src" "${options[@]}" "${protos[@]}"
export GO111MODULE=off GOPATH=$out:/usr/share/gocode
go build -o "$out/generate" edgetransformerengine/generate
for program in "${@:2}"; do go build -o "$out/$(basename "$program" .go)" "$program"; done
