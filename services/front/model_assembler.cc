#include "services/front/model_assembler.h"

#include <algorithm>
#include <ctime>

#include "services/front/front_error.h"
#include "services/front/no_tokenizer.h"

namespace ete::front {
namespace {

constexpr int32_t kMostIds = 1 << 24;
constexpr size_t kDigestBytes = 32;

size_t longest_token_bytes(const Tokenizer& tokenizer) {
  size_t longest = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.table().bytes(id).size());
    // parse_special reads a special token's name, whatever the token decodes to.
    if (tokenizer.is_special(id)) longest = std::max(longest, tokenizer.table().text(id).size());
  }
  return longest;
}

[[noreturn]] void corrupt(const std::string& what) {
  throw FrontError(FrontErrorCode::corrupt, "the worker's model: " + what);
}

}  // namespace

void ModelAssembler::add(const v1::GetModelReply& reply) {
  if (has_info_ == reply.has_info()) corrupt("expected ModelInfo first and once");
  bytes_ += reply.ByteSizeLong();
  if (bytes_ > kMostBytes) {
    throw FrontError(FrontErrorCode::resource_exhausted, "the worker's model: the tokenizer's data exceeds " +
                                                             std::to_string(kMostBytes) + " bytes");
  }
  switch (reply.part_case()) {
    case v1::GetModelReply::kInfo:
      return add_info(reply.info());
    case v1::GetModelReply::kFile:
      return add_file(reply.file());
    case v1::GetModelReply::kGguf:
      return add_vocabulary(reply.gguf());
    case v1::GetModelReply::PART_NOT_SET:
      corrupt("a part of an unknown kind");
  }
}

void ModelAssembler::add_info(const v1::ModelInfo& info) {
  if (info.vocab_size() < 1 || info.vocab_size() > kMostIds) {
    corrupt("vocab_size " + std::to_string(info.vocab_size()) + ", expected 1 to " +
            std::to_string(kMostIds));
  }
  if (info.context() < 1) corrupt("context " + std::to_string(info.context()) + ", expected at least 1");
  for (int32_t id : info.eos_token_ids()) {
    if (id < 0 || id >= info.vocab_size()) {
      corrupt("eos_token_ids: " + std::to_string(id) + " is outside [0, " +
              std::to_string(info.vocab_size()) + ")");
    }
  }
  if (info.tokenizer_sha256().size() != kDigestBytes) {
    corrupt("tokenizer_sha256 has " + std::to_string(info.tokenizer_sha256().size()) + " bytes, expected 32");
  }
  info_ = info;
  has_info_ = true;
}

void ModelAssembler::add_file(const v1::FileChunk& chunk) {
  if (has_vocabulary_) corrupt("files beside a GGUF vocabulary");
  if (open_file_.empty()) {
    if (chunk.name().empty() || files_.contains(chunk.name())) corrupt("a file without a name of its own");
    if (files_.size() == kMostFiles) corrupt("more than " + std::to_string(kMostFiles) + " files");
  } else if (chunk.name() != open_file_) {
    corrupt("a chunk of " + chunk.name() + " inside " + open_file_);
  }
  files_[chunk.name()] += chunk.data();
  open_file_ = chunk.last() ? "" : chunk.name();
  digest_.add(chunk);
}

void ModelAssembler::add_vocabulary(const v1::GgufVocabularyPart& part) {
  if (!files_.empty()) corrupt("a GGUF vocabulary beside files");
  GgufVocabulary& v = vocabulary_;
  if (!has_vocabulary_) {
    v.model = part.model();
    v.pre = part.pre();
    v.special_ids = {part.special_ids().begin(), part.special_ids().end()};
    v.flags = {part.flags().begin(), part.flags().end()};
  }
  has_vocabulary_ = true;
  v.precompiled_charsmap += part.precompiled_charsmap();
  v.chat_template += part.chat_template();
  v.tokens.insert(v.tokens.end(), part.tokens().begin(), part.tokens().end());
  v.scores.insert(v.scores.end(), part.scores().begin(), part.scores().end());
  v.token_types.insert(v.token_types.end(), part.token_types().begin(), part.token_types().end());
  v.merges.insert(v.merges.end(), part.merges().begin(), part.merges().end());
  digest_.add(part);
}

std::shared_ptr<const ServedModel> ModelAssembler::with_tokenizer(
    std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const ChatTemplates> chat) const {
  auto model = std::make_shared<ServedModel>();
  model->name = info_.name();
  model->architecture = info_.architecture();
  model->vocab_size = info_.vocab_size();
  model->context = info_.context();
  model->max_sessions = info_.max_sessions();
  std::vector<int32_t>& ends = model->eos_token_ids;
  ends.assign(info_.eos_token_ids().begin(), info_.eos_token_ids().end());
  for (int32_t id : tokenizer->end_of_generation_ids()) {
    if (id < info_.vocab_size()) ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  model->longest_token_bytes = longest_token_bytes(*tokenizer);
  model->tokenizer_sha256 = info_.tokenizer_sha256();
  model->plan_json = info_.plan_json();
  model->worker_id = info_.worker_id();
  model->loaded_at = std::time(nullptr);
  model->tokenizer = std::move(tokenizer);
  model->chat = std::move(chat);
  return model;
}

std::shared_ptr<const Tokenizer> ModelAssembler::make_tokenizer() const {
  const bool has_files = files_.contains("tokenizer.json") || files_.contains("tokenizer.model");
  const bool has_tokens = !vocabulary_.model.empty() || !vocabulary_.tokens.empty();
  if (!has_files && !has_tokens) return make_no_tokenizer();
  return has_files ? tokenizer_from_files(files_) : tokenizer_from_gguf(vocabulary_);
}

std::shared_ptr<const ServedModel> ModelAssembler::finish() {
  if (!has_info_) corrupt("the stream holds no ModelInfo");
  if (!open_file_.empty()) corrupt("the stream ends inside " + open_file_);
  if (digest_.finish() != info_.tokenizer_sha256()) {
    corrupt("the tokenizer's data does not have the SHA-256 that ModelInfo gives");
  }
  std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer();
  ChatTemplates chat = files_.empty() ? chat_templates_from_gguf(vocabulary_, tokenizer->table())
                                      : chat_templates_from_files(files_);
  return with_tokenizer(std::move(tokenizer), std::make_shared<const ChatTemplates>(std::move(chat)));
}

std::shared_ptr<const ServedModel> ModelAssembler::reuse(const ServedModel& known) const {
  return with_tokenizer(known.tokenizer, known.chat);
}

}  // namespace ete::front
