#pragma once

#include <string>

#include "ete/v1/engine.pb.h"
#include "services/common/sha256.h"

namespace ete::service {

// ModelInfo.tokenizer_sha256, for sender and receiver alike: add the parts in the order sent.
class TokenizerDigest {
 public:
  void add(const v1::FileChunk& chunk);
  void add(const v1::GgufVocabularyPart& part);
  // 32 bytes; nothing may be added afterwards.
  std::string finish();

 private:
  Sha256 sha256_;
  bool inside_file_ = false;
};

}  // namespace ete::service
