#include <array>
#include <charconv>

#include "services/front/front_error.h"
#include "services/front/tokenizer/bpe_model.h"
#include "services/front/tokenizer/byte_tokenizer.h"
#include "services/front/tokenizer/pipeline_tokenizer.h"
#include "services/front/tokenizer/sentencepiece_tokenizer.h"
#include "services/front/tokenizer/text.h"

namespace ete::front {
namespace {

enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

[[noreturn]] void fail(FrontErrorCode code, const std::string& message) {
  throw FrontError(code, "tokenizer.ggml." + message);
}

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The patterns behind llama.cpp's names (src/llama-vocab.cpp), each applied to the parts that the one before
// it left. Qwen's normalization to NFC is not in a GGUF file, but its tokenizer.json has it, so the name
// stands for it too.
struct PreRule {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;
  bool ignore_merges = false;
  bool add_bos = false;  // where add_bos_token is absent
  bool nfc = false;
};

const std::vector<PreRule>& pre_rules() {
  static const std::vector<PreRule> rules = {
      {.names = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "mellum",
                 "gigachat"},
       .patterns = {gpt2_pattern()}},
      {.names = {"smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"},
       .patterns = {R"(\p{N})", gpt2_pattern()}},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       .patterns = {kLlama3},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, .patterns = {kLlama3}},
      {.names = {"qwen2", "deepseek-r1-qwen", "megrez"}, .patterns = {kQwen2}, .nfc = true},
      {.names = {"stablelm2", "hunyuan", "solar-open"}, .patterns = {kQwen2}},
      {.names = {"qwen35"}, .patterns = {kQwen35}, .nfc = true},
      {.names = {"default"},
       .patterns = {R"([\p{P}\$\+<=>\^~\|]+)", gpt2_pattern(), R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
  return rules;
}

const PreRule& pre_rule(const std::string& name) {
  std::string known;
  for (const PreRule& rule : pre_rules()) {
    for (const std::string_view candidate : rule.names) {
      if (candidate == name) return rule;
      known += (known.empty() ? "" : ", ") + std::string(candidate);
    }
  }
  fail(FrontErrorCode::unsupported,
       (name.empty() ? "pre is absent" : "pre is \"" + name + "\"") + "; known are " + known);
}

void check_sizes(const GgufVocabulary& v) {
  const size_t n = v.tokens.size();
  if (n == 0 || n > TokenTable::kMaxTokens)
    fail(FrontErrorCode::corrupt, "tokens has " + std::to_string(n) + " elements");
  if (!v.scores.empty() && v.scores.size() != n) {
    fail(FrontErrorCode::corrupt,
         "scores has " + std::to_string(v.scores.size()) + " elements, tokens has " + std::to_string(n));
  }
  if (!v.token_types.empty() && v.token_types.size() != n) {
    fail(FrontErrorCode::corrupt, "token_type has " + std::to_string(v.token_types.size()) +
                                      " elements, tokens has " + std::to_string(n));
  }
  for (size_t i = 0; i < v.token_types.size(); ++i) {
    if (v.token_types[i] < kNormal || v.token_types[i] > kByte) {
      fail(FrontErrorCode::corrupt, "token_type[" + std::to_string(i) + "] is " +
                                        std::to_string(v.token_types[i]) + "; 1 to 6 are accepted");
    }
  }
}

int32_t type_of(const GgufVocabulary& v, size_t id) {
  return v.token_types.empty() ? kNormal : v.token_types[id];
}

int32_t special_id(const GgufVocabulary& v, std::string_view name) {
  const auto it = v.special_ids.find(std::string(name));
  if (it == v.special_ids.end()) return -1;
  if (it->second < 0 || it->second >= static_cast<int64_t>(v.tokens.size())) {
    fail(FrontErrorCode::corrupt, it->first + "_token_id is " + std::to_string(it->second) + ", not in [0, " +
                                      std::to_string(v.tokens.size()) + ")");
  }
  return static_cast<int32_t>(it->second);
}

bool flag_or(const GgufVocabulary& v, const char* name, bool absent) {
  const auto it = v.flags.find(name);
  return it == v.flags.end() ? absent : it->second;
}

template <typename Specials>
Specials read_specials(const GgufVocabulary& v, bool add_bos, bool add_eos) {
  Specials specials;
  specials.bos = special_id(v, "bos");
  specials.eos = special_id(v, "eos");
  const auto add = [&](const char* flag, bool absent, int32_t id, std::vector<int32_t>& ids) {
    if (!flag_or(v, flag, absent)) return;
    if (id < 0 && v.flags.contains(flag)) {
      fail(FrontErrorCode::corrupt, std::string(flag) + " is true, but there is no such token id");
    }
    if (id >= 0) ids.push_back(id);
  };
  add("add_bos_token", add_bos, specials.bos, specials.prefix);
  add("add_eos_token", add_eos, specials.eos, specials.suffix);
  for (const char* name : {"eot", "eom"}) {
    if (const int32_t id = special_id(v, name); id >= 0) specials.end_of_generation.push_back(id);
  }
  return specials;
}

bool is_cut_out(int32_t type) { return type == kUnknown || type == kControl || type == kUserDefined; }

// One token's place in the table; cut out of the text before the model when control, unknown or user-defined.
void add_token(const GgufVocabulary& v, size_t i, int32_t type, std::string bytes, TokenTable& table,
               AddedTokenMatcher& added) {
  const int32_t id = static_cast<int32_t>(i);
  const std::string& text = v.tokens[i];
  TokenKind kind = TokenKind::normal;
  if (is_cut_out(type)) {
    kind = type == kUserDefined ? TokenKind::added : TokenKind::special;
    added.add({.content = text, .id = id, .special = type != kUserDefined});
    bytes = text;
  } else if (type == kUnused) {
    bytes.clear();
  } else if (type == kByte) {
    const int byte = byte_of_name(text);
    if (byte < 0)
      fail(FrontErrorCode::corrupt, "tokens[" + std::to_string(i) + "] \"" + text + "\" is no byte's name");
    kind = TokenKind::byte;
    bytes = std::string(1, static_cast<char>(byte));
  }
  table.add(id, text, std::move(bytes), kind);
}

std::vector<BpeModel::Merge> read_merges(const GgufVocabulary& v, const TokenTable& table) {
  std::vector<BpeModel::Merge> merges;
  merges.reserve(v.merges.size());
  for (size_t i = 0; i < v.merges.size(); ++i) {
    const std::string& text = v.merges[i];
    const size_t space = text.find(' ', 1);
    if (space == std::string::npos) {
      fail(FrontErrorCode::corrupt, "merges[" + std::to_string(i) + "] \"" + text + "\" is not two tokens");
    }
    const std::string left = text.substr(0, space), right = text.substr(space + 1);
    const BpeModel::Merge merge = {table.find(left), table.find(right), table.find(left + right),
                                   static_cast<uint32_t>(i)};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
      fail(FrontErrorCode::corrupt,
           "merges[" + std::to_string(i) + "] \"" + text + "\" names a token that is not there");
    }
    merges.push_back(merge);
  }
  return merges;
}

std::unique_ptr<Tokenizer> byte_level_bpe(const GgufVocabulary& v) {
  const PreRule& rule = pre_rule(v.pre);
  Pipeline pipeline;
  if (rule.nfc) pipeline.normalizer.add(NormalForm::nfc);
  if (flag_or(v, "add_space_prefix", false)) pipeline.pre_tokenizer.add(PreTokenizer::PrefixSpace{});
  for (const std::string_view pattern : rule.patterns) {
    pipeline.pre_tokenizer.add(PreTokenizer::Split{
        {.literal = {}, .regex = std::make_shared<const Regex>(pattern)}, SplitBehavior::isolated, false});
  }
  TokenTable table;
  StringMap tokens;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    std::string bytes = v.tokens[i];
    const int32_t type = type_of(v, i);
    if (bytes_of_letters(v.tokens[i], bytes) && type == kNormal)
      tokens.emplace(bytes, static_cast<int32_t>(i));
    add_token(v, i, type, std::move(bytes), table, pipeline.added);
  }
  const BpeModel::Options options = {
      .byte_level = true, .ignore_merges = rule.ignore_merges, .longest_token = table.longest_text()};
  std::array<int32_t, 256> no_bytes;
  no_bytes.fill(-1);
  pipeline.model =
      std::make_unique<const BpeModel>(options, std::move(tokens), read_merges(v, table), no_bytes);
  auto specials = read_specials<PipelineTokenizer::Specials>(v, rule.add_bos, false);
  return std::make_unique<PipelineTokenizer>(std::move(pipeline), std::move(table), std::move(specials));
}

int32_t unknown_id(const GgufVocabulary& v) {
  for (const char* name : {"unk", "unknown"}) {
    if (const int32_t id = special_id(v, name); id >= 0) return id;
  }
  for (size_t i = 0; i < v.token_types.size(); ++i) {
    if (v.token_types[i] == kUnknown) return static_cast<int32_t>(i);
  }
  fail(FrontErrorCode::corrupt, "unknown_token_id is absent and no token is of type 2 (unknown)");
}

// Tokens that are cut out before the model are controls to it: its merges never make them.
SentencePieceProto::Type piece_type(int32_t type, bool is_unknown) {
  if (is_unknown) return SentencePieceProto::unknown;
  return is_cut_out(type) ? SentencePieceProto::control : static_cast<SentencePieceProto::Type>(type);
}

std::unique_ptr<Tokenizer> sentencepiece(const GgufVocabulary& v, SentencePieceProto::Model model) {
  if (v.token_types.empty())
    fail(FrontErrorCode::corrupt, "token_type is absent; model " + v.model + " needs it");
  if (v.scores.empty()) fail(FrontErrorCode::corrupt, "scores is absent; model " + v.model + " needs it");
  const bool bpe = model == SentencePieceProto::bpe;
  SentencePieceProto proto;
  proto.model_type = model;
  proto.unk_id = unknown_id(v);
  proto.bos_id = special_id(v, "bos");
  proto.eos_id = special_id(v, "eos");
  proto.add_dummy_prefix = flag_or(v, "add_space_prefix", true);
  proto.remove_extra_whitespaces = flag_or(v, "remove_extra_whitespaces", false);
  proto.precompiled_charsmap = v.precompiled_charsmap;
  TokenTable table;
  AddedTokenMatcher added;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const int32_t type = v.token_types[i];
    const bool is_unknown = static_cast<int32_t>(i) == proto.unk_id;
    proto.byte_fallback = proto.byte_fallback || type == kByte;
    proto.pieces.push_back({v.tokens[i], v.scores[i], piece_type(type, is_unknown)});
    add_token(v, i, is_unknown && type == kNormal ? kUnknown : type, unescape_space(v.tokens[i]), table,
              added);
  }
  proto.validate();
  table.leading_space = leading_space_rule(proto);
  table.invalid_bytes = InvalidBytes::per_byte;
  auto specials = read_specials<SentencePieceTokenizer::Specials>(v, bpe, !bpe);
  return std::make_unique<SentencePieceTokenizer>(proto, std::move(table), std::move(specials),
                                                  std::move(added));
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufVocabulary& v) {
  if (v.model == "bytes") return make_byte_tokenizer();
  if (v.model != "gpt2" && v.model != "llama" && v.model != "t5") {
    fail(FrontErrorCode::unsupported, "model is \"" + v.model + "\"; gpt2, llama and t5 are known");
  }
  check_sizes(v);
  if (v.model == "gpt2") return byte_level_bpe(v);
  return sentencepiece(v, v.model == "llama" ? SentencePieceProto::bpe : SentencePieceProto::unigram);
}

}  // namespace ete::front
