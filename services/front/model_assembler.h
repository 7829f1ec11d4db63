#pragma once

#include <map>
#include <memory>
#include <string>

#include "ete/v1/engine.pb.h"
#include "services/common/tokenizer_digest.h"
#include "services/front/served_model.h"
#include "services/front/tokenizer/gguf_vocabulary.h"

namespace ete::front {

// The parts of a GetModel stream, in order, to a ServedModel. Sizes are bounded, the digest is checked before
// anything is parsed. FrontError: corrupt (parts contradict each other or the digest), resource_exhausted,
// and what the tokenizer throws.
class ModelAssembler {
 public:
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kMostFiles = 64;

  void add(const v1::GetModelReply& reply);
  // Known as soon as the first part was added.
  const v1::ModelInfo& info() const { return info_; }
  // All parts have been added.
  std::shared_ptr<const ServedModel> finish();
  // Or: the tokenizer's data is what `known` was made of.
  std::shared_ptr<const ServedModel> reuse(const ServedModel& known) const;

 private:
  void add_info(const v1::ModelInfo& info);
  void add_file(const v1::FileChunk& chunk);
  void add_vocabulary(const v1::GgufVocabularyPart& part);
  std::shared_ptr<const Tokenizer> make_tokenizer() const;
  std::shared_ptr<const ServedModel> with_tokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                                    std::shared_ptr<const ChatTemplates> chat) const;

  bool has_info_ = false;
  v1::ModelInfo info_;
  service::TokenizerDigest digest_;
  size_t bytes_ = 0;
  std::map<std::string, std::string> files_;
  std::string open_file_;  // the file whose last chunk is yet to come
  bool has_vocabulary_ = false;
  GgufVocabulary vocabulary_;
};

}  // namespace ete::front
