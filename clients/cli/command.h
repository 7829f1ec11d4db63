#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <functional>
#include <stdexcept>

// The commands of `ete`. Each adds its flags to `app`; when it is the one given, `action` becomes what it
// does.

namespace ete::cli {

// Returns the exit code. Throws std::exception with a line that names the file, field or flag: exit code 2
// for UsageError and Error(invalid_argument), which is how the engine refuses a flag's value; otherwise 1.
using Action = std::function<int()>;

// Flags that contradict each other, found after the parse: exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A child process told on stderr why it failed and ended with this exit code: so do we, without a further
// line.
class ToldAlready : public std::exception {
 public:
  explicit ToldAlready(int exit_code) : exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

void add_run_command(CLI::App& app, Action& action);
void add_chat_command(CLI::App& app, Action& action);
void add_serve_command(CLI::App& app, Action& action);
void add_token_command(CLI::App& app, Action& action);
void add_tokenize_command(CLI::App& app, Action& action);
void add_logits_command(CLI::App& app, Action& action);
void add_health_command(CLI::App& app, Action& action);
void add_inspect_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);
void add_pack_command(CLI::App& app, Action& action);

}  // namespace ete::cli
