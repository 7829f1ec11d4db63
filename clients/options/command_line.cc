#include "clients/options/command_line.h"

#include <charconv>
#include <cmath>
#include <iostream>

namespace ete {
namespace {

template <typename Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<uint64_t> parse_size(std::string_view text) {
  int shift = 0;
  if (!text.empty()) {
    switch (text.back()) {
      case 'K':
      case 'k':
        shift = 10;
        break;
      case 'M':
      case 'm':
        shift = 20;
        break;
      case 'G':
      case 'g':
        shift = 30;
        break;
      default:
        break;
    }
  }
  if (shift != 0) text.remove_suffix(1);
  // Whole numbers stay whole: a double would round above 2^53.
  if (const auto whole = parse_whole<uint64_t>(text)) {
    if (*whole > (UINT64_MAX >> shift)) return std::nullopt;
    return *whole << shift;
  }
  if (shift == 0) return std::nullopt;
  const auto number = parse_number(text, 0, 1e18);
  if (!number) return std::nullopt;
  const double bytes = *number * static_cast<double>(uint64_t{1} << shift);
  if (bytes >= 0x1p64) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::optional<int64_t> parse_integer(std::string_view text, int64_t lowest, int64_t highest) {
  const auto value = parse_whole<int64_t>(text);
  if (!value || *value < lowest || *value > highest) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text, double lowest, double highest) {
  const auto value = parse_whole<double>(text);
  if (!value || !std::isfinite(*value) || *value < lowest || *value > highest) return std::nullopt;
  return value;
}

void reject_flag(const std::string& flag, const std::string& text, const std::string& accepted) {
  throw CLI::ValidationError(flag, "\"" + text + "\" is not accepted: " + accepted);
}

std::string error_line(const std::string& name, const std::string& message) {
  std::string line = name + ": " + message;
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return line;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& success) {
    app.exit(success, std::cout, std::cerr);
    std::cout.flush();
    if (std::cout.good()) return 0;
    std::cerr << error_line(app.get_name(), "cannot write to stdout") + "\n";
    return 1;
  } catch (const CLI::ParseError& error) {
    std::cerr << error_line(app.get_name(), error.what()) + "\n";
    return 2;
  }
}

}  // namespace ete
