#include "services/front/grammar/code_points.h"

#include <algorithm>
#include <array>
#include <string>

#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr CodePointRange kSurrogates = {0xD800, 0xDFFF};

// A range whose characters have equally many bytes.
void split_by_trailing_bytes(CodePointRange range, std::vector<std::vector<ByteRange>>& out) {
  std::string low, high;
  append_utf8(low, range.low);
  append_utf8(high, range.high);
  // Below the first byte that differs, all trailing bytes must be free: cut where they are not.
  for (size_t trailing = low.size() - 1; trailing > 0; --trailing) {
    const uint32_t mask = (uint32_t{1} << (6 * trailing)) - 1;
    if ((range.low & ~mask) == (range.high & ~mask)) continue;
    if ((range.low & mask) != 0) {
      split_by_trailing_bytes({range.low, range.low | mask}, out);
      split_by_trailing_bytes({(range.low | mask) + 1, range.high}, out);
      return;
    }
    if ((range.high & mask) != mask) {
      split_by_trailing_bytes({range.low, (range.high & ~mask) - 1}, out);
      split_by_trailing_bytes({range.high & ~mask, range.high}, out);
      return;
    }
  }
  std::vector<ByteRange> bytes(low.size());
  for (size_t i = 0; i < low.size(); ++i) {
    bytes[i] = {static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])};
  }
  out.push_back(std::move(bytes));
}

void without_surrogates(CodePointRange range, CodePoints& out) {
  if (range.high < kSurrogates.low || range.low > kSurrogates.high) {
    out.push_back(range);
    return;
  }
  if (range.low < kSurrogates.low) out.push_back({range.low, kSurrogates.low - 1});
  if (range.high > kSurrogates.high) out.push_back({kSurrogates.high + 1, range.high});
}

}  // namespace

CodePoints normalized(CodePoints set) {
  std::sort(set.begin(), set.end(), [](const auto& a, const auto& b) { return a.low < b.low; });
  CodePoints merged;
  for (const CodePointRange& range : set) {
    if (!merged.empty() && range.low <= merged.back().high + 1) {
      merged.back().high = std::max(merged.back().high, range.high);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

CodePoints complement(const CodePoints& set) {
  CodePoints rest;
  uint32_t next = 0;
  for (const CodePointRange& range : normalized(set)) {
    if (range.low > next) rest.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return rest;
}

std::vector<std::vector<ByteRange>> utf8_ranges(const CodePoints& set) {
  // The last characters of one, two, three and four bytes.
  constexpr std::array<uint32_t, 4> kLast = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};
  CodePoints scalars;
  for (const CodePointRange& range : normalized(set)) without_surrogates(range, scalars);
  std::vector<std::vector<ByteRange>> out;
  for (const CodePointRange& range : scalars) {
    uint32_t first = 0;
    for (const uint32_t last : kLast) {
      const CodePointRange part = {std::max(first, range.low), std::min(last, range.high)};
      if (part.low <= part.high) split_by_trailing_bytes(part, out);
      first = last + 1;
    }
  }
  return out;
}

}  // namespace ete::front
