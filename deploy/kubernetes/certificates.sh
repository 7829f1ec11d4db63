#!/bin/bash
# Makes what deploy/kubernetes/base needs of TLS, in a folder that is not there yet: a certificate and a key for workers, for
# fronts as their clients and for fronts as servers, and the authority that signs them. Other authorities do as well.
set -euo pipefail
if [[ $# -ne 1 || $1 == -* ]]; then
  echo "usage: certificates.sh FOLDER" >&2
  exit 2
fi
days=825
umask 077
mkdir "$1"
cd "$1"

# It says much when all is well.
quietly() {
  local said
  said=$("$@" 2>&1) || { echo "$said" >&2; return 1; }
}

# name of the files, extensions: a key and a request for a certificate.
request() {
  quietly openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout "$1.key" \
    -out "$1.csr"
  printf '%s\n' "${@:2}" >"$1.ext"
}

request ca "basicConstraints=critical,CA:TRUE,pathlen:0" "keyUsage=critical,keyCertSign,cRLSign" "subjectKeyIdentifier=hash"
quietly openssl x509 -req -in ca.csr -signkey ca.key -days 3650 -extfile ca.ext -out ca.crt

signed() {
  request "$1" "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" "${@:2}"
  quietly openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile "$1.ext" \
    -out "$1.crt"
}
# Fronts look for workers, and clients for fronts, by these names.
signed worker "extendedKeyUsage=serverAuth" "subjectAltName=DNS:ete-worker"
signed front-client "extendedKeyUsage=clientAuth" "subjectAltName=DNS:ete-front"
signed front "extendedKeyUsage=serverAuth" \
  "subjectAltName=DNS:ete-front,DNS:ete-front.ete,DNS:ete-front.ete.svc,DNS:localhost"
rm ./*.csr ./*.ext ca.srl
