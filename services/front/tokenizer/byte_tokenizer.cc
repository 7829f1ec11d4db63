#include "services/front/tokenizer/byte_tokenizer.h"

#include "services/front/tokenizer/added_tokens.h"
#include "services/front/tokenizer/text.h"

namespace ete::front {
namespace {

constexpr int32_t kBos = 256;
constexpr int32_t kEos = 257;

class ByteTokenizer : public Tokenizer {
 public:
  using Tokenizer::Specials;
  ByteTokenizer(TokenTable table, Specials specials) : Tokenizer(std::move(table), std::move(specials)) {
    added_.add({.content = "<bos>", .id = kBos, .special = true});
    added_.add({.content = "<eos>", .id = kEos, .special = true});
  }

 protected:
  void encode_watched(std::string_view text, bool parse_special, EncodeWatch& watch,
                      std::vector<int32_t>& ids) const override {
    added_.split(
        text, parse_special,
        [&](std::string_view part) {
          watch.require(ids.size() + part.size());
          for (const char c : part) {
            ids.push_back(static_cast<uint8_t>(c));
            watch.advance(1);
          }
        },
        [&](int32_t id) { ids.push_back(id); });
  }

 private:
  AddedTokenMatcher added_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  TokenTable table;
  for (int32_t byte = 0; byte < 256; ++byte) {
    table.add(byte, byte_name(static_cast<uint8_t>(byte)), std::string(1, static_cast<char>(byte)),
              TokenKind::byte);
  }
  table.add(kBos, "<bos>", "<bos>", TokenKind::special);
  table.add(kEos, "<eos>", "<eos>", TokenKind::special);
  Tokenizer* made = new ByteTokenizer(
      std::move(table), {.bos = kBos, .eos = kEos, .prefix = {kBos}, .suffix = {}, .end_of_generation = {}});
  return std::unique_ptr<Tokenizer>(made);
}

}  // namespace ete::front
