#include "clients/options/command_line.h"

#include <algorithm>
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

// What no option or argument takes, in words; empty when everything is taken.
std::string unknown_text(const CLI::App& app) {
  const std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty()) return "";
  std::string command = app.get_name();
  for (const CLI::App* given : app.get_subcommands()) command += " " + given->get_name();
  const auto flag = std::find_if(unknown.begin(), unknown.end(),
                                 [](const std::string& text) { return text.starts_with("-"); });
  if (flag == unknown.end()) {
    return "\"" + unknown.front() + "\" is one argument too many for " + command;
  }
  return "\"" + *flag + "\" is no option of " + command + "; " + command + " --help lists them";
}

// The command that the first argument names, or the program.
const CLI::App& command_of(const CLI::App& app, int argc, const char* const* argv) {
  const auto is_named = [&](const CLI::App* one) { return argc > 1 && one->check_name(argv[1]); };
  const std::vector<const CLI::App*> named = app.get_subcommands(is_named);
  return named.empty() ? app : *named.front();
}

// CLI11 would take the next argument for the value. What only looks like an option may be the value of one.
void refuse_empty_values(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App& command = command_of(app, argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") return;
    if (!argument.starts_with("--") || argument.find('=') != argument.size() - 1) continue;
    const std::string flag(argument.substr(0, argument.size() - 1));
    if (command.get_option_no_throw(flag) == nullptr) continue;
    throw CLI::ValidationError(flag, "nothing stands right behind \"" + flag + "=\"; expected a value there");
  }
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
  // Also what would steer a terminal.
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    refuse_empty_values(app, argc, argv);
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& success) {
    app.exit(success, std::cout, std::cerr);
    std::cout.flush();
    if (std::cout.good()) return 0;
    std::cerr << error_line(app.get_name(), "cannot write to stdout") + "\n";
    return 1;
  } catch (const CLI::ParseError& error) {
    // A misspelt option is also one that is missing: only its name helps.
    const bool counts = dynamic_cast<const CLI::ValidationError*>(&error) == nullptr;
    const std::string unknown = counts ? unknown_text(app) : "";
    std::cerr << error_line(app.get_name(), unknown.empty() ? error.what() : unknown) + "\n";
    return 2;
  }
}

}  // namespace ete
