#include "services/front/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

// Names under which published models end a turn or a text, whatever their files declare.
constexpr std::array<std::string_view, 17> kEndOfGeneration = {"<|im_end|>",
                                                               "<|eot_id|>",
                                                               "<|eom_id|>",
                                                               "<|endoftext|>",
                                                               "<|end_of_text|>",
                                                               "<|end|>",
                                                               "<|return|>",
                                                               "<|call|>",
                                                               "<end_of_turn>",
                                                               "<eos>",
                                                               "</s>",
                                                               "<EOT>",
                                                               "[EOT]",
                                                               "[EOS]",
                                                               "<end_of_utterance>",
                                                               "<turn|>",
                                                               "<｜end▁of▁sentence｜>"};

void add_well_known(const TokenTable& table, std::vector<int32_t>& ids) {
  // Where a turn ends with <|return|> or <|call|>, <|end|> only ends one message of it.
  const bool messages = table.find("<|return|>") >= 0 && table.find("<|call|>") >= 0;
  for (const std::string_view name : kEndOfGeneration) {
    if (messages && name == "<|end|>") continue;
    const int32_t id = table.find(name);
    if (id >= 0) ids.push_back(id);
  }
}

}  // namespace

Tokenizer::Tokenizer(TokenTable table, Specials specials)
    : table_(std::move(table)), specials_(std::move(specials)) {
  std::vector<int32_t>& ends = specials_.end_of_generation;
  if (specials_.eos >= 0) ends.push_back(specials_.eos);
  add_well_known(table_, ends);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::vector<int32_t> all = {specials_.bos, specials_.eos};
  all.insert(all.end(), specials_.prefix.begin(), specials_.prefix.end());
  all.insert(all.end(), specials_.suffix.begin(), specials_.suffix.end());
  for (const int32_t id : all) {
    if (id < -1 || id >= table_.size()) {
      throw FrontError(FrontErrorCode::corrupt, "special token id " + std::to_string(id) + " is not in [0, " +
                                                    std::to_string(table_.size()) + ")");
    }
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  require_utf8(text, "text");
  EncodeWatch watch(options.max_ids, options.on_progress ? &options.on_progress : nullptr);
  std::vector<int32_t> ids;
  if (options.add_special) ids = specials_.prefix;
  if (!text.empty()) encode_watched(text, options.parse_special, watch, ids);
  if (options.add_special) ids.insert(ids.end(), specials_.suffix.begin(), specials_.suffix.end());
  watch.require(ids.size());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  return decode_bytes(table_, ids, skip_special);
}

std::string Tokenizer::decode_text(std::span<const int32_t> ids, bool skip_special) const {
  return decode_utf8(table_, ids, skip_special);
}

}  // namespace ete::front
