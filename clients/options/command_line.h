#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// What every command of the project does the same way with its arguments. Knows flags, not what they are for.

namespace ete {

// Bytes of "512", "64K", "1.5M", "0.5G" (powers of 1024, either case); empty when it is none or does not fit.
// A fraction of a byte is dropped.
std::optional<uint64_t> parse_size(std::string_view text);

// A whole decimal number in [lowest, highest]; empty otherwise.
std::optional<int64_t> parse_integer(std::string_view text, int64_t lowest, int64_t highest);

// A finite decimal number in [lowest, highest]; empty otherwise.
std::optional<double> parse_number(std::string_view text, double lowest, double highest);

// Fails the parse with `flag: "text" is not accepted`: the accepted values are told in a few words.
[[noreturn]] void reject_flag(const std::string& flag, const std::string& text, const std::string& accepted);

// Parses; empty means go on. Otherwise the process should exit with the code: 0 after --help (printed to
// stdout; 1 when stdout did not take it), 2 after a usage error (one line on stderr, "<app name>: ...").
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv);

// "name: message" as one line: newlines and other control characters become spaces.
std::string error_line(const std::string& name, const std::string& message);

}  // namespace ete
