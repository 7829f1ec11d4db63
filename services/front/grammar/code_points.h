#pragma once

#include <cstdint>
#include <vector>

namespace ete::front {

// Unicode scalar values, as inclusive ranges. Surrogates are in no set: they have no UTF-8.
struct CodePointRange {
  uint32_t low = 0;
  uint32_t high = 0;
};
using CodePoints = std::vector<CodePointRange>;

constexpr uint32_t kLastCodePoint = 0x10FFFF;

// Ascending, disjoint and not adjacent.
CodePoints normalized(CodePoints set);
// All that are not in the set.
CodePoints complement(const CodePoints& set);

// A set's UTF-8: each of these, byte by byte within its range, is a character of the set, and there are no
// others (after "UTF-8 ranges" of regular expressions: Russ Cox, "Regular Expression Matching in the Wild").
struct ByteRange {
  uint8_t low = 0;
  uint8_t high = 0;
};
std::vector<std::vector<ByteRange>> utf8_ranges(const CodePoints& set);

}  // namespace ete::front
