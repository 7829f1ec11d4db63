#!/usr/bin/env bash
# build.sh FOLDER: installs the package into FOLDER, as `pip install` would, with Debian's setuptools and gRPC; nothing is
# fetched. `PYTHONPATH=FOLDER` then finds it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# A copy, since setuptools writes beside what it builds.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$here/." "$here/../../proto" "$copy"
/usr/bin/python3 -m pip install --quiet --no-build-isolation --no-deps --no-index --root-user-action=ignore --upgrade \
  --target "$1" "$copy"
