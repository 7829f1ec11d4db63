#include "clients/cli/model_tokenizer.h"

#include <stdexcept>

#include "engine/base/error.h"
#include "engine/models/model_config.h"
#include "services/front/model_assembler.h"
#include "services/worker/model_parts.h"

namespace ete::cli {
namespace {

// What a worker would say beside the tokenizer's data; the tokenizer does not depend on it.
constexpr int32_t kAnyVocabSize = 1 << 24;
constexpr int64_t kAnyContext = 1;

std::shared_ptr<const front::Tokenizer> assemble(worker::ModelParts parts) {
  parts.info.mutable_info()->set_vocab_size(kAnyVocabSize);
  parts.info.mutable_info()->set_context(kAnyContext);
  front::ModelAssembler assembler;
  assembler.add(parts.info);
  for (const v1::GetModelReply& part : *parts.data) assembler.add(part);
  return assembler.finish()->tokenizer;
}

}  // namespace

std::shared_ptr<const front::Tokenizer> open_model_tokenizer(const std::string& path) {
  const worker::ModelParts parts = worker::make_model_parts(open_tokenizer_files(path));
  std::shared_ptr<const front::Tokenizer> tokenizer;
  try {
    tokenizer = assemble(parts);
  } catch (const std::runtime_error& error) {
    throw Error(ErrorCode::corrupt, path + ": " + error.what());
  }
  if (tokenizer->vocab_size() == 0) {
    throw Error(ErrorCode::not_found, path + ": the model has no tokenizer");
  }
  return tokenizer;
}

}  // namespace ete::cli
