#include <array>

#include "services/front/tokenizer/pipeline_tokenizer.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr uint32_t kLetters = 0x144;  // letters are below

constexpr bool is_own_letter(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// The byte that each code point stands for; -1: none.
constexpr std::array<int16_t, kLetters> make_table() {
  std::array<int16_t, kLetters> bytes{};
  for (auto& byte : bytes) byte = -1;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t letter = is_own_letter(byte) ? byte : next++;
    bytes[letter] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, kLetters> kBytes = make_table();

}  // namespace

bool bytes_of_letters(std::string_view token, std::string& bytes) {
  std::string out;
  for (size_t i = 0; i < token.size();) {
    const Utf8Char c = read_utf8(token.substr(i, 4));
    if (!c.valid || c.code_point >= kLetters || kBytes[c.code_point] < 0) return false;
    out += static_cast<char>(kBytes[c.code_point]);
    i += c.length;
  }
  bytes = std::move(out);
  return true;
}

}  // namespace ete::front
