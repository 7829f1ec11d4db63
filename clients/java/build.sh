#!/usr/bin/env bash
# build.sh FOLDER: generates the messages, compiles them, the client and the example into FOLDER/classes, and writes the class
# path that runs them to FOLDER/classpath. PROGRAM.java behind FOLDER is compiled too. Debian's packages only.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)

jars=(grpc-api grpc-core grpc-context grpc-netty grpc-protobuf grpc-protobuf-lite grpc-stub protobuf guava perfmark-api
  opencensus-api proto-google-common-protos geronimo-annotation-1.3-spec
  netty-buffer netty-codec netty-codec-http netty-codec-http2 netty-common netty-handler netty-handler-proxy netty-resolver
  netty-tcnative netty-transport netty-transport-native-unix-common)
classpath=$out/classes
for jar in "${jars[@]}"; do
  if [[ ! -e /usr/share/java/$jar.jar ]]; then
    echo "build.sh: /usr/share/java/$jar.jar is missing: scripts/setup.sh --clients installs the packages" >&2
    exit 1
  fi
  classpath+=:/usr/share/java/$jar.jar
done
printf '%s' "$classpath" >"$out/classpath"

mkdir -p "$out/gen" "$out/classes/META-INF/native"
# TLS with HTTP/2 goes by OpenSSL: Debian's Netty is built without the JDK's ALPN, and looks for its native library by another
# name than Debian gives it.
cp /usr/lib/*/jni/libnetty-tcnative.so "$out/classes/META-INF/native/libnetty_tcnative.so"
protoc -I "$here/../../proto" --plugin=protoc-gen-grpc="$(command -v grpc_java_plugin)" \
  --java_out="$out/gen" --grpc_out=@generated=omit:"$out/gen" ete/v1/session.proto ete/v1/generation.proto
find "$out/gen" "$here/src" "$here/examples" -name '*.java' >"$out/sources"
javac --release 17 -proc:none -nowarn -d "$out/classes" -cp "$classpath" "@$out/sources" "${@:2}"
