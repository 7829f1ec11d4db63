#include "clients/cli/arguments.h"

#include <limits>
#include <optional>
#include <string_view>

#include "clients/options/command_line.h"
#include "clients/options/engine_flags.h"

namespace ete::cli {
namespace {

constexpr const char* kTokensFlag = "--tokens";

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::string_view rest = text;
  while (true) {
    const size_t comma = rest.find(',');
    const auto id = parse_integer(rest.substr(0, comma), 0, std::numeric_limits<int32_t>::max());
    if (!id) reject_flag(kTokensFlag, text, "ids of at least 0, separated by commas, as 1,2,3");
    ids.push_back(static_cast<int32_t>(*id));
    if (comma == std::string_view::npos) return ids;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

CLI::Option* add_tokens_flag(CLI::App& app, const std::string& description, std::vector<int32_t>& ids) {
  return app
      .add_option_function<std::string>(
          kTokensFlag, [&ids](const std::string& text) { ids = parse_ids(text); }, description)
      ->type_name("1,2,3");
}

CLI::Option* add_file_flag(CLI::App& app, const std::string& flag, const std::string& type,
                           const std::string& description, std::string& path) {
  const auto set = [flag, &path](const std::string& text) {
    if (text.empty()) reject_flag(flag, text, "a path to write");
    path = text;
  };
  return app.add_option_function<std::string>(flag, set, description)->type_name(type);
}

CLI::Option* add_count_flag(CLI::App& app, const std::string& flag, const std::string& description,
                            int64_t most, int64_t& count) {
  const auto set = [flag, most, &count](const std::string& text) {
    const auto number = parse_integer(text, 1, most);
    if (!number) reject_flag(flag, text, "a whole number from 1 to " + std::to_string(most));
    count = *number;
  };
  return app.add_option_function<std::string>(flag, set, description)->type_name("N");
}

std::vector<std::string> engine_arguments(const CLI::App& app) {
  std::vector<std::string> arguments;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != kEngineFlagGroup) continue;
    for (const std::string& value : option->results()) {
      arguments.push_back(option->get_name() + "=" + value);
    }
  }
  return arguments;
}

}  // namespace ete::cli
