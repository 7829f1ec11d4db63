#include "services/common/tokenizer_digest.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <string_view>

namespace ete::service {

void TokenizerDigest::add(const v1::FileChunk& chunk) {
  if (!inside_file_) {
    sha256_.add(chunk.name());
    sha256_.add(std::string_view("\0", 1));
  }
  sha256_.add(chunk.data());
  inside_file_ = !chunk.last();
}

void TokenizerDigest::add(const v1::GgufVocabularyPart& part) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    // Else the entries of a map come in an order that differs from process to process.
    coded.SetSerializationDeterministic(true);
    part.SerializeToCodedStream(&coded);
  }
  sha256_.add(bytes);
}

std::string TokenizerDigest::finish() { return sha256_.finish(); }

}  // namespace ete::service
