#include "tests/front/sentencepiece_oracle.h"

#include <sentencepiece_processor.h>

#include <stdexcept>

namespace ete::front {
namespace {

void require(const sentencepiece::util::Status& status) {
  if (!status.ok()) throw std::runtime_error("SentencePiece: " + status.ToString());
}

}  // namespace

struct SentencePieceOracle::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceOracle::SentencePieceOracle(const std::string& serialized) : impl_(std::make_unique<Impl>()) {
  require(impl_->processor.LoadFromSerializedProto({serialized.data(), serialized.size()}));
}

SentencePieceOracle::~SentencePieceOracle() = default;

std::vector<int32_t> SentencePieceOracle::encode(std::string_view text) const {
  std::vector<int> ids;
  require(impl_->processor.Encode({text.data(), text.size()}, &ids));
  return {ids.begin(), ids.end()};
}

std::string SentencePieceOracle::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  require(impl_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text));
  return text;
}

}  // namespace ete::front
