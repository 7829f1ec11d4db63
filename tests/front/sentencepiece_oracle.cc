#include "services/front/tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <exception>

#include "services/front/front_error.h"

namespace ete::front {

struct SentencePieceModel::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(const std::string& serialized) : impl_(std::make_unique<Impl>()) {
  std::string problem;
  try {
    const auto status = impl_->processor.LoadFromSerializedProto({serialized.data(), serialized.size()});
    if (!status.ok()) problem = status.ToString();
  } catch (const std::exception& e) {
    problem = e.what();
  }
  if (!problem.empty())
    throw FrontError(FrontErrorCode::corrupt, "SentencePiece refuses the model: " + problem);
}

SentencePieceModel::~SentencePieceModel() = default;

void SentencePieceModel::encode(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<int> pieces;
  const auto status = impl_->processor.Encode({text.data(), text.size()}, &pieces);
  if (!status.ok()) throw FrontError(FrontErrorCode::internal, "SentencePiece: " + status.ToString());
  ids.insert(ids.end(), pieces.begin(), pieces.end());
}

}  // namespace ete::front
