#include "clients/cli/memory_bars.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/runtime/byte_text.h"

namespace ete::cli {
namespace {

constexpr size_t kNameWidth = 28;
constexpr size_t kBytesWidth = 12;
constexpr int kLeastCells = 10;

using Parts = std::vector<std::pair<std::string, uint64_t>>;

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

// Those that are not there leave no line; what the parts do not name is the last one.
Parts parts_of(uint64_t peak, const Parts& named) {
  Parts parts;
  uint64_t left = peak;
  for (const auto& [name, bytes] : named) {
    const uint64_t taken = std::min(bytes, left);
    left -= taken;
    if (taken > 0) parts.emplace_back(name, taken);
  }
  if (left > 0) parts.emplace_back("the rest", left);
  return parts;
}

std::string bars(const std::string& title, uint64_t peak, const Parts& named, int cells) {
  if (peak == 0) return "";
  std::string text = padded(title, kNameWidth) + padded(byte_text(peak), kBytesWidth) + "|" +
                     std::string(static_cast<size_t>(cells), '=') + "|\n";
  const auto cell_of = [&](uint64_t bytes) {
    return static_cast<size_t>(
        std::lround(static_cast<double>(cells) * static_cast<double>(bytes) / static_cast<double>(peak)));
  };
  uint64_t before = 0;
  for (const auto& [name, bytes] : parts_of(peak, named)) {
    const size_t begin = cell_of(before);
    before += bytes;
    // However small, it is there.
    const size_t length = std::max<size_t>(1, cell_of(before) - begin);
    const size_t first = std::min(begin, static_cast<size_t>(cells) - length);
    text += padded("  " + name, kNameWidth) + padded(byte_text(bytes), kBytesWidth) + "|" +
            std::string(first, ' ') + std::string(length, '#') +
            std::string(static_cast<size_t>(cells) - first - length, ' ') + "|\n";
  }
  return text;
}

}  // namespace

std::string memory_bars(const Plan& plan, int columns) {
  const int cells = std::max(kLeastCells, columns - static_cast<int>(kNameWidth + kBytesWidth) - 2);
  const auto sessions = static_cast<uint64_t>(plan.max_sessions);
  const uint64_t kv = sessions * plan.kv_bytes_per_session;
  const uint64_t state = sessions * plan.state_bytes_per_session;
  const bool streams = plan.resident_layers < plan.layers;
  const auto streamed_layers =
      static_cast<uint64_t>(std::max<int64_t>(1, plan.layers - plan.resident_layers));
  const uint64_t slots =
      streams ? static_cast<uint64_t>(plan.slots) * plan.prompt_streamed_bytes_per_pass / streamed_layers : 0;
  const Parts device = {{"resident weights", plan.resident_bytes},
                        {"slots (about)", slots},
                        {"activations", plan.activation_bytes},
                        {"KV cache of all sessions", plan.kv_placement == "device" ? kv : 0},
                        {"state of all sessions", plan.state_placement == "device" ? state : 0},
                        {"cached prefixes", plan.kv_placement == "device" ? plan.prefix_cache_bytes : 0}};
  const Parts host = {{"weights at home", plan.home_bytes},
                      {"KV cache of all sessions", plan.kv_placement == "host" ? kv : 0},
                      {"state of all sessions", plan.state_placement == "host" ? state : 0},
                      {"cached prefixes", plan.kv_placement == "host" ? plan.prefix_cache_bytes : 0}};
  return bars("device memory", plan.peak_device_bytes, device, cells) +
         bars("host memory", plan.peak_host_bytes, host, cells);
}

}  // namespace ete::cli
