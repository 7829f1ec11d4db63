#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// Help for reading bytes that nobody vouches for: model files, config.json, indexes.

namespace ete {

// Bytes as they may be shown in a message: control bytes and invalid ones escaped, cut after `limit`.
std::string printable(std::string_view bytes, size_t limit = 120);

// a * b, or nothing when it does not fit; both must be >= 0.
std::optional<int64_t> checked_product(int64_t a, int64_t b);

// A value costs about 100 bytes of memory, however few it has in the text: max_values bounds that. The
// defaults are for config.json, which lists every layer and expert of a quantised model in a few hundred KB.
struct JsonLimits {
  size_t max_bytes = size_t{4} << 20;
  int max_depth = 32;
  size_t max_values = 200'000;  // and keys
};

// Strict JSON. Error(corrupt), naming `file`, for text that is not JSON, is too large or too deep, holds too
// many values, or repeats a key within one object.
nlohmann::json parse_json(std::string_view text, const std::string& file, const JsonLimits& limits = {});

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace ete
