#include "services/front/tokenizer/tokenizer_json.h"

#include <algorithm>

#include "services/front/tokenizer/bpe_model.h"
#include "services/front/tokenizer/text.h"
#include "services/front/tokenizer/unigram_model.h"

namespace ete::front {
namespace {

constexpr int32_t kMaxId = TokenTable::kMaxTokens - 1;

TokenKind model_kind(const DecoderRules& rules, std::string_view token) {
  return rules.is_byte(token) ? TokenKind::byte : TokenKind::normal;
}

std::array<int32_t, 256> byte_ids(const TokenTable& table, bool byte_fallback) {
  std::array<int32_t, 256> ids;
  for (int byte = 0; byte < 256; ++byte) {
    ids[byte] = byte_fallback ? table.find(byte_name(static_cast<uint8_t>(byte))) : -1;
  }
  return ids;
}

// "left right" or ["left", "right"].
std::pair<std::string, std::string> read_merge(const JsonNode& node) {
  if (node.value().is_array()) {
    if (node.array().size() != 2) node.corrupt("is not a pair");
    return {node.element(0).string(), node.element(1).string()};
  }
  const std::string& text = node.string();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    node.corrupt("\"" + text + "\" is not two tokens with a space between");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<BpeModel::Merge> read_merges(const JsonNode& node, const TokenTable& table) {
  std::vector<BpeModel::Merge> merges;
  merges.reserve(node.array().size());
  for (size_t i = 0; i < node.array().size(); ++i) {
    const JsonNode element = node.element(i);
    const auto [left, right] = read_merge(element);
    const BpeModel::Merge merge = {table.find(left), table.find(right), table.find(left + right),
                                   static_cast<uint32_t>(i)};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
      element.corrupt("\"" +
                      (merge.left < 0    ? left
                       : merge.right < 0 ? right
                                         : left + right) +
                      "\" is not in the vocabulary");
    }
    merges.push_back(merge);
  }
  return merges;
}

void require_empty(const JsonNode& model, std::string_view key) {
  const auto node = model.find(key);
  if (node && !node->string().empty()) node->unsupported("is \"" + node->string() + "\"; null is accepted");
}

std::unique_ptr<const Model> read_bpe(const JsonNode& model, bool byte_level, const DecoderRules& rules,
                                      TokenTable& table) {
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                    "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  require_empty(model, "continuing_subword_prefix");
  require_empty(model, "end_of_word_suffix");
  if (const auto dropout = model.find("dropout"); dropout && dropout->number() != 0) {
    dropout->unsupported("is " + dropout->value().dump() + "; null and 0 are accepted");
  }
  StringMap tokens;
  const JsonNode vocab = model.at("vocab");
  for (const auto& [token, value] : vocab.object().items()) {
    const int32_t id = static_cast<int32_t>(JsonNode(value, vocab.path() + "." + token).integer(0, kMaxId));
    table.add(id, token, rules.bytes_of(token), model_kind(rules, token));
    std::string units = token;
    if (!byte_level || bytes_of_letters(token, units)) tokens.emplace(std::move(units), id);
  }
  BpeModel::Options options = {.byte_level = byte_level,
                               .ignore_merges = model.boolean_or("ignore_merges", false),
                               .byte_fallback = model.boolean_or("byte_fallback", false),
                               .fuse_unk = model.boolean_or("fuse_unk", false)};
  options.longest_token = table.longest_text();
  if (const auto unk = model.find("unk_token")) {
    options.unk_id = table.find(unk->string());
    if (options.unk_id < 0) unk->corrupt("\"" + unk->string() + "\" is not in the vocabulary");
  }
  const std::vector<BpeModel::Merge> merges = read_merges(model.at("merges"), table);
  return std::make_unique<const BpeModel>(options, std::move(tokens), merges,
                                          byte_ids(table, options.byte_fallback));
}

std::unique_ptr<const Model> read_unigram(const JsonNode& model, const DecoderRules& rules,
                                          TokenTable& table) {
  model.allow_only({"type", "unk_id", "vocab", "byte_fallback"});
  const JsonNode vocab = model.at("vocab");
  if (vocab.array().empty() || vocab.array().size() > kMaxId) {
    vocab.corrupt("has " + std::to_string(vocab.array().size()) + " pieces");
  }
  std::vector<UnigramModel::Piece> pieces;
  for (size_t i = 0; i < vocab.array().size(); ++i) {
    const JsonNode piece = vocab.element(i);
    if (piece.array().size() != 2) piece.corrupt("is not [piece, score]");
    pieces.push_back({piece.element(0).string(), piece.element(1).number()});
    const std::string& text = pieces.back().text;
    table.add(static_cast<int32_t>(i), text, rules.bytes_of(text), model_kind(rules, text));
  }
  int32_t unk = -1;
  if (const auto id = model.find("unk_id")) {
    unk = static_cast<int32_t>(id->integer(0, static_cast<int64_t>(pieces.size()) - 1));
  }
  const auto lowest = std::min_element(pieces.begin(), pieces.end(),
                                       [](const auto& a, const auto& b) { return a.score < b.score; });
  const UnigramModel::Options options = {
      .unk_id = unk,
      .unk_score = lowest->score - UnigramModel::kUnknownPenalty,
      .single_precision = false,
      .runs_may_be_pieces = true,
      .byte_ids = byte_ids(table, model.boolean_or("byte_fallback", false))};
  return std::make_unique<const UnigramModel>(pieces, options);
}

std::unique_ptr<const Model> read_model(const JsonNode& model, bool byte_level, const DecoderRules& rules,
                                        TokenTable& table) {
  const std::string type = model.string_or("type", model.find("merges") ? "BPE" : "");
  if (type == "BPE") return read_bpe(model, byte_level, rules, table);
  if (type == "Unigram") {
    if (byte_level) model.unsupported("Unigram after the pre-tokenizer ByteLevel");
    return read_unigram(model, rules, table);
  }
  model.unsupported("type is \"" + type + "\"; BPE and Unigram are accepted");
}

std::vector<AddedToken> read_added(const JsonNode& root) {
  std::vector<AddedToken> added;
  const auto list = root.find("added_tokens");
  for (size_t i = 0; list && i < list->array().size(); ++i) {
    const JsonNode node = list->element(i);
    node.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    added.push_back({.content = node.at("content").string(),
                     .id = static_cast<int32_t>(node.at("id").integer(0, kMaxId)),
                     .single_word = node.boolean_or("single_word", false),
                     .lstrip = node.boolean_or("lstrip", false),
                     .rstrip = node.boolean_or("rstrip", false),
                     .normalized = node.boolean_or("normalized", true),
                     .special = node.boolean_or("special", false)});
  }
  return added;
}

// As huggingface/tokenizers, a normalized token is looked for and decodes as its normal form, and keeps its
// name.
void add_token(AddedToken token, const DecoderRules& rules, TokenizerJson& out) {
  const TokenKind kind = token.special ? TokenKind::special : TokenKind::added;
  const std::string name = token.content;
  if (token.normalized) {
    Regex::Matcher matcher;
    EncodeWatch watch;
    token.content = out.pipeline.normalizer.apply(name, matcher, watch);
  }
  std::string bytes = rules.bytes_of(token.content);
  if (out.table.find(name) >= 0) {
    out.table.mark(token.id, name, std::move(bytes), kind);
  } else {
    out.table.add(token.id, name, std::move(bytes), kind);
  }
  if (!token.normalized) return out.pipeline.added.add(token);
  if (!token.content.empty()) out.pipeline.added_normalized.add(token);
}

void read_template(const JsonNode& node, TokenizerJson& out) {
  node.allow_only({"type", "single", "pair", "special_tokens"});
  const JsonNode single = node.at("single");
  bool after_text = false;
  for (size_t i = 0; i < single.array().size(); ++i) {
    const JsonNode item = single.element(i);
    item.allow_only({"SpecialToken", "Sequence"});
    if (const auto sequence = item.find("Sequence")) {
      if (after_text || sequence->at("id").string() != "A") item.unsupported("a second sequence");
      after_text = true;
      continue;
    }
    const JsonNode ids = node.at("special_tokens").at(item.at("SpecialToken").at("id").string()).at("ids");
    for (size_t k = 0; k < ids.array().size(); ++k) {
      const int32_t id = static_cast<int32_t>(ids.element(k).integer(0, kMaxId));
      (after_text ? out.suffix : out.prefix).push_back(id);
    }
  }
  if (!after_text) single.corrupt("has no Sequence A");
}

void read_post_processor(const JsonNode& node, TokenizerJson& out) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence") {
    node.allow_only({"type", "processors"});
    const JsonNode list = node.at("processors");
    for (size_t i = 0; i < list.array().size(); ++i) read_post_processor(list.element(i), out);
  } else if (type == "TemplateProcessing") {
    if (!out.prefix.empty() || !out.suffix.empty()) node.unsupported("a second TemplateProcessing");
    read_template(node, out);
  } else if (type == "ByteLevel") {  // trims offsets, which nobody asks for
    node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else {
    node.unsupported("type is \"" + type + "\"; Sequence, TemplateProcessing and ByteLevel are accepted");
  }
}

}  // namespace

TokenizerJson TokenizerJson::read(const std::string& bytes, const std::vector<AddedToken>& more) {
  const JsonNode::Json json = JsonNode::parse("tokenizer.json", bytes);
  const JsonNode root(json, "tokenizer.json");
  // truncation and padding are a caller's wishes of when the file was saved; transformers resets them too.
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                   "post_processor", "decoder", "model"});
  if (const std::string version = root.string_or("version", "1.0"); version != "1.0") {
    root.unsupported("version is \"" + version + "\"; 1.0 is accepted");
  }
  TokenizerJson out;
  if (!root.find("decoder")) root.unsupported("decoder is null");
  const DecoderRules rules = read_decoder(root.at("decoder"));
  bool byte_level = false;
  if (const auto node = root.find("normalizer")) out.pipeline.normalizer = read_normalizer(*node);
  if (const auto node = root.find("pre_tokenizer")) {
    out.pipeline.pre_tokenizer = read_pre_tokenizer(*node, byte_level);
  }
  if (byte_level != rules.byte_level) root.unsupported("ByteLevel in only one of pre_tokenizer and decoder");
  out.pipeline.model = read_model(root.at("model"), byte_level, rules, out.table);
  out.table.leading_space = rules.leading_space;
  out.table.invalid_bytes = rules.byte_fallback ? InvalidBytes::per_run : InvalidBytes::per_sequence;
  StringMap seen;
  for (const AddedToken& token : read_added(root)) {
    add_token(token, rules, out);
    seen.emplace(token.content, token.id);
  }
  for (const AddedToken& token : more) {
    const auto it = seen.find(token.content);
    if (it == seen.end())
      add_token(token, rules, out);
    else if (it->second != token.id) {
      root.corrupt("\"" + token.content + "\" has id " + std::to_string(it->second) + ", elsewhere " +
                   std::to_string(token.id));
    }
  }
  if (const auto node = root.find("post_processor")) read_post_processor(*node, out);
  return out;
}

}  // namespace ete::front
