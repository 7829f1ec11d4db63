#include "services/front/front_error.h"
#include "services/front/tokenizer/text.h"
#include "services/front/tokenizer/tokenizer_json.h"

namespace ete::front {
namespace {

constexpr size_t kMaxGrowth = 64;  // of a token in the decoder

std::string decode_base64(const JsonNode& node) {
  const std::string& text = node.string();
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    static constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (c == '=') break;
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) node.corrupt("is not base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (++count == 4) {
      for (const int shift : {16, 8, 0}) out += static_cast<char>(bits >> shift);
      bits = 0;
      count = 0;
    }
  }
  if (count == 1) node.corrupt("is not base64");
  if (count == 2) out += static_cast<char>(bits >> 4);
  if (count == 3) {
    out += static_cast<char>(bits >> 10);
    out += static_cast<char>(bits >> 2);
  }
  return out;
}

Pattern read_pattern(const JsonNode& node) {
  node.allow_only({"String", "Regex"});
  Pattern pattern;
  if (const auto regex = node.find("Regex")) {
    pattern.regex = std::make_shared<const Regex>(regex->string());
    return pattern;
  }
  pattern.literal = node.at("String").string();
  if (pattern.literal.empty()) node.corrupt("is empty");
  return pattern;
}

void add_normalizer(const JsonNode& node, Normalizer& normalizer) {
  const std::string& type = node.at("type").string();
  if (type == "Sequence") {
    node.allow_only({"type", "normalizers"});
    const JsonNode list = node.at("normalizers");
    for (size_t i = 0; i < list.array().size(); ++i) add_normalizer(list.element(i), normalizer);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    node.allow_only({"type"});
    normalizer.add(type == "NFC"    ? NormalForm::nfc
                   : type == "NFD"  ? NormalForm::nfd
                   : type == "NFKC" ? NormalForm::nfkc
                                    : NormalForm::nfkd);
  } else if (type == "Replace") {
    node.allow_only({"type", "pattern", "content"});
    normalizer.add(Normalizer::Replace{read_pattern(node.at("pattern")), node.at("content").string()});
  } else if (type == "Prepend") {
    node.allow_only({"type", "prepend"});
    normalizer.add(Normalizer::Prepend{node.at("prepend").string()});
  } else if (type == "Strip") {
    node.allow_only({"type", "strip_left", "strip_right"});
    normalizer.add(Normalizer::Strip{node.at("strip_left").boolean(), node.at("strip_right").boolean()});
  } else if (type == "Precompiled") {
    node.allow_only({"type", "precompiled_charsmap"});
    normalizer.add(std::make_shared<const Charsmap>(decode_base64(node.at("precompiled_charsmap"))));
  } else {
    node.unsupported(
        "type is \"" + type +
        "\"; Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend, Strip and Precompiled are accepted");
  }
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string& name = node.string();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  node.unsupported("is \"" + name + "\"");
}

PreTokenizer::Metaspace read_metaspace(const JsonNode& node) {
  node.allow_only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  PreTokenizer::Metaspace stage;
  stage.replacement = node.at("replacement").string();
  if (stage.replacement.empty() || read_utf8(stage.replacement).length != stage.replacement.size()) {
    node.corrupt("replacement is not one character");
  }
  const std::string scheme = node.string_or("prepend_scheme", "always");
  if (scheme == "never") {
    stage.prepend = PreTokenizer::Prepend::never;
  } else if (scheme == "first") {
    stage.prepend = PreTokenizer::Prepend::first;
  } else if (scheme != "always") {
    node.unsupported("prepend_scheme is \"" + scheme + "\"; always, first and never are accepted");
  }
  if (!node.boolean_or("add_prefix_space", true)) stage.prepend = PreTokenizer::Prepend::never;
  stage.split = node.boolean_or("split", true);
  return stage;
}

void add_pre_tokenizer(const JsonNode& node, PreTokenizer& pre_tokenizer, bool& byte_level) {
  const std::string& type = node.at("type").string();
  if (byte_level) node.unsupported("a pre-tokenizer after ByteLevel");
  if (type == "Sequence") {
    node.allow_only({"type", "pretokenizers"});
    const JsonNode list = node.at("pretokenizers");
    for (size_t i = 0; i < list.array().size(); ++i)
      add_pre_tokenizer(list.element(i), pre_tokenizer, byte_level);
  } else if (type == "Split") {
    node.allow_only({"type", "pattern", "behavior", "invert"});
    pre_tokenizer.add(PreTokenizer::Split{read_pattern(node.at("pattern")),
                                          read_behavior(node.at("behavior")),
                                          node.boolean_or("invert", false)});
  } else if (type == "Digits") {
    node.allow_only({"type", "individual_digits"});
    pre_tokenizer.add(PreTokenizer::Digits{node.boolean_or("individual_digits", false)});
  } else if (type == "ByteLevel") {
    node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    byte_level = true;
    if (node.boolean_or("add_prefix_space", true)) pre_tokenizer.add(PreTokenizer::PrefixSpace{});
    if (node.boolean_or("use_regex", true)) {
      pre_tokenizer.add(
          PreTokenizer::Split{{.literal = {}, .regex = std::make_shared<const Regex>(gpt2_pattern())},
                              SplitBehavior::isolated,
                              false});
    }
  } else if (type == "Metaspace") {
    pre_tokenizer.add(read_metaspace(node));
  } else {
    node.unsupported("type is \"" + type +
                     "\"; Sequence, Split, Digits, ByteLevel and Metaspace are accepted");
  }
}

// fused: whether the tokens have become one text.
void add_decoder(const JsonNode& node, DecoderRules& rules, bool& fused) {
  const std::string& type = node.at("type").string();
  if (rules.byte_level || (fused && type != "Strip"))
    node.unsupported("type " + type + " after ByteLevel or Fuse");
  if (type == "Sequence") {
    node.allow_only({"type", "decoders"});
    const JsonNode list = node.at("decoders");
    for (size_t i = 0; i < list.array().size(); ++i) add_decoder(list.element(i), rules, fused);
  } else if (type == "ByteLevel") {
    node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    rules.byte_level = true;
  } else if (type == "Replace") {
    node.allow_only({"type", "pattern", "content"});
    if (rules.byte_fallback) node.unsupported("Replace after ByteFallback");
    const Pattern pattern = read_pattern(node.at("pattern"));
    if (pattern.regex) node.unsupported("a Regex pattern; a String is accepted");
    rules.replacements.emplace_back(pattern.literal, node.at("content").string());
  } else if (type == "ByteFallback") {
    node.allow_only({"type"});
    rules.byte_fallback = true;
  } else if (type == "Fuse") {
    node.allow_only({"type"});
    fused = true;
  } else if (type == "Strip") {
    node.allow_only({"type", "content", "start", "stop"});
    if (!fused || node.at("content").string() != " " || node.at("start").integer(0, INT32_MAX) != 1 ||
        node.at("stop").integer(0, INT32_MAX) != 0) {
      node.unsupported("Strip is accepted after Fuse with content \" \", start 1 and stop 0");
    }
    if (rules.leading_space != LeadingSpace::keep) node.unsupported("a second rule for the first space");
    rules.leading_space = LeadingSpace::strip_one;
  } else if (type == "Metaspace") {
    const PreTokenizer::Metaspace stage = read_metaspace(node);
    rules.replacements.emplace_back(stage.replacement, " ");
    if (stage.prepend != PreTokenizer::Prepend::never) rules.leading_space = LeadingSpace::erase_in_first;
  } else {
    node.unsupported(
        "type is \"" + type +
        "\"; Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace are accepted");
  }
}

}  // namespace

std::string DecoderRules::bytes_of(std::string_view token) const {
  std::string bytes(token);
  if (byte_level) {
    bytes_of_letters(token, bytes);
    return bytes;
  }
  for (const auto& [from, to] : replacements) {
    // What a token grows to at most, before it does.
    const size_t most = bytes.size() / from.size() * to.size() + bytes.size();
    if (most > kMaxGrowth * (token.size() + 1)) {
      throw FrontError(FrontErrorCode::corrupt, "tokenizer.json.decoder: Replace makes more than " +
                                                    std::to_string(kMaxGrowth) +
                                                    " bytes for each one of a token");
    }
    bytes = replace_all(bytes, from, to);
  }
  if (byte_fallback && byte_of_name(bytes) >= 0)
    return std::string(1, static_cast<char>(byte_of_name(bytes)));
  return bytes;
}

bool DecoderRules::is_byte(std::string_view token) const { return byte_fallback && byte_of_name(token) >= 0; }

DecoderRules read_decoder(const JsonNode& node) {
  DecoderRules rules;
  bool fused = false;
  add_decoder(node, rules, fused);
  return rules;
}

Normalizer read_normalizer(const JsonNode& node) {
  Normalizer normalizer;
  add_normalizer(node, normalizer);
  return normalizer;
}

PreTokenizer read_pre_tokenizer(const JsonNode& node, bool& byte_level) {
  PreTokenizer pre_tokenizer;
  byte_level = false;
  add_pre_tokenizer(node, pre_tokenizer, byte_level);
  return pre_tokenizer;
}

}  // namespace ete::front
