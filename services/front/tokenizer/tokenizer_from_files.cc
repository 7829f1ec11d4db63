#include "services/front/front_error.h"
#include "services/front/tokenizer/sentencepiece_tokenizer.h"
#include "services/front/tokenizer/text.h"
#include "services/front/tokenizer/tokenizer_config.h"
#include "services/front/tokenizer/tokenizer_json.h"

namespace ete::front {
namespace {

// Classes that write their template anew from add_bos_token and add_eos_token, whatever tokenizer.json says.
bool makes_own_template(const TokenizerConfig& config) {
  for (const std::string_view name : {"Llama", "Gemma"}) {
    if (config.tokenizer_class.find(name) != std::string::npos) return true;
  }
  return false;
}

void apply_flag(const std::optional<bool>& flag, int32_t id, std::vector<int32_t>& ids) {
  if (!flag || id < 0) return;
  ids.clear();
  if (*flag) ids.push_back(id);
}

std::unique_ptr<Tokenizer> from_tokenizer_json(const std::string& bytes, const TokenizerConfig& config) {
  TokenizerJson json = TokenizerJson::read(bytes, config.added);
  PipelineTokenizer::Specials specials = {.bos = config.bos_id(json.table),
                                          .eos = config.eos_id(json.table),
                                          .prefix = std::move(json.prefix),
                                          .suffix = std::move(json.suffix),
                                          .end_of_generation = config.eos_token_ids};
  if (makes_own_template(config)) {
    apply_flag(config.add_bos_token, specials.bos, specials.prefix);
    apply_flag(config.add_eos_token, specials.eos, specials.suffix);
  }
  return std::make_unique<PipelineTokenizer>(std::move(json.pipeline), std::move(json.table),
                                             std::move(specials));
}

// Controls, and the unknown piece, are read in text only as special tokens; user-defined pieces are the
// model's own affair.
void add_pieces(const SentencePieceProto& proto, TokenTable& table, AddedTokenMatcher& added) {
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    const SentencePieceProto::Piece& piece = proto.pieces[i];
    const int32_t id = static_cast<int32_t>(i);
    std::string bytes = unescape_space(piece.text);
    TokenKind kind = TokenKind::normal;
    if (piece.type == SentencePieceProto::byte) {
      const int byte = byte_of_name(piece.text);
      if (byte < 0) {
        throw FrontError(FrontErrorCode::corrupt, "tokenizer.model: piece " + std::to_string(id) + " \"" +
                                                      piece.text + "\" is of type byte, but no byte's name");
      }
      bytes = std::string(1, static_cast<char>(byte));
      kind = TokenKind::byte;
    } else if (piece.type == SentencePieceProto::control || piece.type == SentencePieceProto::unknown) {
      kind = TokenKind::special;
      bytes = piece.type == SentencePieceProto::unknown ? proto.unk_surface : piece.text;
      added.add({.content = piece.text, .id = id, .special = true});
    }
    table.add(id, piece.text, std::move(bytes), kind);
  }
}

void add_more(const std::vector<AddedToken>& more, TokenTable& table, AddedTokenMatcher& added) {
  for (const AddedToken& token : more) {
    const int32_t known = table.find(token.content);
    if (known == token.id) continue;
    table.add(token.id, token.content, token.content, token.special ? TokenKind::special : TokenKind::added);
    added.add(token);
  }
}

std::unique_ptr<Tokenizer> from_tokenizer_model(const std::string& bytes, const TokenizerConfig& config) {
  const SentencePieceProto proto = SentencePieceProto::parse(bytes);
  TokenTable table;
  AddedTokenMatcher added;
  add_pieces(proto, table, added);
  add_more(config.added, table, added);
  table.leading_space = leading_space_rule(proto);
  table.invalid_bytes = InvalidBytes::per_byte;
  const auto id_or = [&](int32_t id, int32_t absent) {
    return id >= 0 ? id : table.has(absent) ? absent : -1;
  };
  SentencePieceTokenizer::Specials specials = {.bos = id_or(config.bos_id(table), proto.bos_id),
                                               .eos = id_or(config.eos_id(table), proto.eos_id),
                                               .prefix = {},
                                               .suffix = {},
                                               .end_of_generation = config.eos_token_ids};
  apply_flag(config.add_bos_token.value_or(true), specials.bos, specials.prefix);
  apply_flag(config.add_eos_token.value_or(false), specials.eos, specials.suffix);
  return std::make_unique<SentencePieceTokenizer>(proto, std::move(table), std::move(specials),
                                                  std::move(added));
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_files(const std::map<std::string, std::string>& files) {
  const TokenizerConfig config = TokenizerConfig::read(files);
  if (const auto it = files.find("tokenizer.json"); it != files.end())
    return from_tokenizer_json(it->second, config);
  if (const auto it = files.find("tokenizer.model"); it != files.end()) {
    return from_tokenizer_model(it->second, config);
  }
  throw FrontError(FrontErrorCode::not_found, "the model has neither tokenizer.json nor tokenizer.model");
}

}  // namespace ete::front
