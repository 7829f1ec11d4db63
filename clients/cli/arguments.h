#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace ete::cli {

// --tokens 1,2,3: ids from 0 to 2^31 - 1, at least one.
CLI::Option* add_tokens_flag(CLI::App& app, const std::string& description, std::vector<int32_t>& ids);

// A file or directory to write: not empty.
CLI::Option* add_file_flag(CLI::App& app, const std::string& flag, const std::string& type,
                           const std::string& description, std::string& path);

// A whole number from 1 to most.
CLI::Option* add_count_flag(CLI::App& app, const std::string& flag, const std::string& description,
                            int64_t most, int64_t& count);

// The flags of the group "Engine options" that were given, as "--flag=value", for a process that takes the
// same.
std::vector<std::string> engine_arguments(const CLI::App& app);

}  // namespace ete::cli
