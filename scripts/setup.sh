#!/usr/bin/env bash
# Installs what the build and the commands of the documents need on Debian 12, and only what is missing. With --ci also
# what the checks need, with --clients what the clients of every language and their test need, with --page the browser of
# the page's test.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config python3 python3-pip python3-venv ca-certificates
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev libc-ares-dev libre2-dev libssl-dev zlib1g-dev
  libsentencepiece-dev libpcre2-dev libutf8proc-dev libboost-dev prometheus-cpp-dev openssl python3-jinja2
  nlohmann-json3-dev libspdlog-dev libcli11-dev libedit-dev
  libgtest-dev libgmock-dev libbenchmark-dev python3-yaml python3-jsonschema python3-protobuf
  dpkg-dev file
  curl man-db  # the documents' own commands
)
for option in "$@"; do
  case $option in
    --ci) packages+=(git clang clang-format clang-tidy libclang-rt-14-dev) ;;
    --page) packages+=(chromium chromium-driver python3-selenium) ;;
    --clients)
      # Of golang-google-grpc-dev's alternatives only protobuf 1.5 fits the generated messages.
      packages+=(
        openssl python3-grpcio python3-protobuf python3-setuptools
        golang-go golang-google-grpc-dev golang-github-golang-protobuf-1-5-dev golang-google-protobuf-dev
        protoc-gen-go-1-5 protoc-gen-go-grpc
        ruby ruby-grpc
        openjdk-17-jdk-headless protobuf-compiler-grpc-java-plugin libgrpc-java libprotobuf-java libnetty-java libnetty-tcnative-java
        libguava-java libopencensus-java libperfmark-java libgoogle-common-protos-java libgeronimo-annotation-1.3-spec-java
      )
      ;;
    *)
      echo "setup.sh: $option is not an option; --ci, --clients and --page are" >&2
      exit 2
      ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  if [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
    missing+=("$package")
  fi
done
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

as_root=(env)
if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup.sh: these packages are missing and installing them needs root: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup.sh: installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
