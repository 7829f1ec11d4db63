#!/usr/bin/env bash
# Packs ete, its servers and the shared libraries they need, so that a machine with a GPU and no build tools, or none of
# these libraries, runs the whole service: scripts/bundle.sh FILE.tar.gz [BUILD_DIR]
# There: tar xzf FILE.tar.gz && LD_LIBRARY_PATH=$PWD/ete-bundle/lib ete-bundle/bin/ete run ...
# The C library is the other machine's own: at least as new as this one's.
set -euo pipefail
if [[ $# -lt 1 || $# -gt 2 ]]; then echo "usage: scripts/bundle.sh FILE.tar.gz [BUILD_DIR]" >&2; exit 2; fi
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${2:-$root/build/release}/bin

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/ete-bundle/bin" "$staging/ete-bundle/lib"
for program in ete ete-worker ete-front; do
  if [[ ! -x "$bin/$program" ]]; then echo "bundle.sh: $bin/$program is missing: build first" >&2; exit 1; fi
  strip -o "$staging/ete-bundle/bin/$program" "$bin/$program"
done
# The C library's parts and the loader must be of one version, so none of them travels.
ldd "$bin/ete" "$bin/ete-worker" "$bin/ete-front" | awk '$2 == "=>" {print $3}' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*)\.so' |
  xargs -I{} cp -L {} "$staging/ete-bundle/lib/"
tar czf "$1" -C "$staging" ete-bundle
du -h "$1" >&2
