#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/model.h"

namespace ete::front {

// libsentencepiece behind a wall: its header clashes with absl's, and its protobuf with ours. Const and
// thread-safe.
class SentencePieceModel : public Model {
 public:
  // serialized: SentencePieceProto::serialize() of a validated model. corrupt: the library does not take it.
  explicit SentencePieceModel(const std::string& serialized);
  ~SentencePieceModel() override;
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  // Appends. text is valid UTF-8.
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ete::front
