#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

// The keys and values of a GGUF file (ggml-org/ggml, docs/gguf.md), little-endian.

namespace ete {

enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
std::string_view name_of(GgufType type);
// Bytes of one element; the least possible for strings and arrays, whose length varies.
size_t min_bytes(GgufType type);

// An array as the file holds it, already checked: `count` well-formed elements. Points into the file.
struct GgufArray {
  GgufType element = GgufType::u8;
  uint64_t count = 0;
  std::span<const std::byte> bytes;

  // Decoded copies. Error(corrupt) naming `key` when the elements are of another kind or do not fit.
  std::vector<std::string> strings(const std::string& key) const;
  std::vector<float> floats(const std::string& key) const;
  std::vector<int64_t> integers(const std::string& key) const;
  std::vector<bool> booleans(const std::string& key) const;
};

// Unsigned and signed integers of every width are widened.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;
// For messages and listings: `8`, `"llama"`, `[49152 x string]`.
std::string to_text(const GgufValue& value);

// Key -> value in file order. The values point into the file.
class GgufMetadata {
 public:
  void add(std::string key, GgufValue value, const std::string& file_name);  // Error(corrupt) on a second one
  const GgufValue* find(std::string_view key) const;                         // null when absent
  const std::vector<std::pair<std::string, GgufValue>>& entries() const { return entries_; }

  // Null or empty when absent. Error(corrupt) naming the key when it holds another type or a number out of
  // range.
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> string(const std::string& key) const;
  const GgufArray* array(const std::string& key) const;

 private:
  std::vector<std::pair<std::string, GgufValue>> entries_;
  std::unordered_map<std::string, size_t> by_key_;
};

}  // namespace ete
