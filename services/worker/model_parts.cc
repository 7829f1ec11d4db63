#include "services/worker/model_parts.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "services/common/safe_text.h"
#include "services/common/tokenizer_digest.h"

namespace ete::worker {
namespace {

constexpr size_t kMaxMessageBytes = size_t{1} << 20;
// Room for tags, lengths, a file's name and the scalars of a vocabulary.
constexpr size_t kChunkBytes = kMaxMessageBytes - 64 * 1024;
// Tag and length beside the bytes of one element of a repeated field.
constexpr size_t kElementOverhead = 6;
constexpr size_t kMaxScalarBytes = 32 * 1024;

using Messages = std::vector<v1::GetModelReply>;

void append_file(const std::string& name, std::string_view contents, Messages& messages) {
  do {
    v1::FileChunk& chunk = *messages.emplace_back().mutable_file();
    const std::string_view data = contents.substr(0, kChunkBytes);
    chunk.set_name(name);
    chunk.set_data(data.data(), data.size());
    contents.remove_prefix(data.size());
    chunk.set_last(contents.empty());
  } while (!contents.empty());
}

// Fills one GgufVocabularyPart after the other, starting a new one when the current one is full.
class VocabularyWriter {
 public:
  explicit VocabularyWriter(Messages& messages) : messages_(messages) { start(); }

  void add_scalars(const GgufVocabulary& vocabulary) {
    part_->set_model(service::safe_text(vocabulary.model));
    part_->set_pre(service::safe_text(vocabulary.pre));
    part_->mutable_special_ids()->insert(vocabulary.special_ids.begin(), vocabulary.special_ids.end());
    part_->mutable_flags()->insert(vocabulary.flags.begin(), vocabulary.flags.end());
    const size_t bytes = part_->ByteSizeLong();
    if (bytes > kMaxScalarBytes) {
      throw Error(ErrorCode::corrupt, "tokenizer.ggml: model, pre, special ids and flags take " +
                                          std::to_string(bytes) + " bytes; at most " +
                                          std::to_string(kMaxScalarBytes));
    }
    used_ += bytes;
  }

  void add_strings(const std::vector<std::string>& values, const char* field,
                   void (v1::GgufVocabularyPart::*add)(const std::string&)) {
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t bytes = values[i].size() + kElementOverhead;
      if (bytes > kChunkBytes) {
        throw Error(ErrorCode::corrupt, std::string(field) + "[" + std::to_string(i) + "] has " +
                                            std::to_string(values[i].size()) + " bytes; at most " +
                                            std::to_string(kChunkBytes - kElementOverhead));
      }
      reserve(bytes);
      (part_->*add)(values[i]);
    }
  }

  // A packed field of fixed or variable width: `element_bytes` is the most that one element takes.
  template <typename T>
  void add_numbers(const std::vector<T>& values, size_t element_bytes,
                   google::protobuf::RepeatedField<T>* (v1::GgufVocabularyPart::*field)()) {
    for (size_t at = 0; at < values.size();) {
      reserve(element_bytes + kElementOverhead);
      const size_t count = std::min(values.size() - at, (kChunkBytes - used_) / element_bytes + 1);
      (part_->*field)()->Add(values.begin() + at, values.begin() + at + count);
      used_ += (count - 1) * element_bytes;
      at += count;
    }
  }

  void add_bytes(std::string_view value, std::string* (v1::GgufVocabularyPart::*field)()) {
    while (!value.empty()) {
      reserve(kElementOverhead + 1);
      const std::string_view piece = value.substr(0, kChunkBytes - used_ + 1);
      (part_->*field)()->assign(piece);
      used_ += piece.size() - 1;
      value.remove_prefix(piece.size());
    }
  }

 private:
  void start() {
    part_ = messages_.emplace_back().mutable_gguf();
    used_ = 0;
  }

  void reserve(size_t bytes) {
    if (used_ + bytes > kChunkBytes) start();
    used_ += bytes;
  }

  Messages& messages_;
  v1::GgufVocabularyPart* part_ = nullptr;
  size_t used_ = 0;
};

void append_vocabulary(const GgufVocabulary& vocabulary, Messages& messages) {
  using Part = v1::GgufVocabularyPart;
  VocabularyWriter writer(messages);
  writer.add_scalars(vocabulary);
  writer.add_strings(vocabulary.tokens, "tokenizer.ggml.tokens", &Part::add_tokens);
  writer.add_numbers(vocabulary.scores, sizeof(float), &Part::mutable_scores);
  constexpr size_t kMaxVarintBytes = 10;
  writer.add_numbers(vocabulary.token_types, kMaxVarintBytes, &Part::mutable_token_types);
  writer.add_strings(vocabulary.merges, "tokenizer.ggml.merges", &Part::add_merges);
  writer.add_bytes(vocabulary.precompiled_charsmap, &Part::mutable_precompiled_charsmap);
  writer.add_bytes(vocabulary.chat_template, &Part::mutable_chat_template);
}

std::string digest_of(const Messages& messages) {
  service::TokenizerDigest digest;
  for (const v1::GetModelReply& message : messages) {
    if (message.has_file()) {
      digest.add(message.file());
    } else {
      digest.add(message.gguf());
    }
  }
  return digest.finish();
}

}  // namespace

ModelParts make_model_parts(const ModelFiles& files) {
  auto data = std::make_shared<Messages>();
  for (const auto& [name, contents] : files.tokenizer_files.files) append_file(name, contents, *data);
  if (files.tokenizer_files.files.empty()) append_vocabulary(files.gguf_vocabulary, *data);

  ModelParts parts;
  v1::ModelInfo& info = *parts.info.mutable_info();
  info.set_name(service::safe_text(files.config.name));
  info.set_architecture(service::safe_text(files.config.architecture));
  info.set_vocab_size(static_cast<int32_t>(files.config.vocab_size));
  info.mutable_eos_token_ids()->Add(files.config.eos_token_ids.begin(), files.config.eos_token_ids.end());
  info.set_tokenizer_sha256(digest_of(*data));
  parts.data = std::move(data);
  return parts;
}

}  // namespace ete::worker
