#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

#include "clients/cli/arguments.h"
#include "clients/cli/command.h"
#include "clients/cli/output.h"
#include "clients/cli/replacement_file.h"
#include "clients/options/command_line.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "services/common/token_file.h"

namespace ete::cli {
namespace {

struct TokenOptions {
  std::string file;
  std::string name;
  int64_t concurrent = 0;
  int64_t tokens_per_minute = 0;
  bool shared_cache = false;
};

std::string line_of(const TokenOptions& options, const std::string& token) {
  std::string line = options.name + " " + service::token_digest_hex(token);
  if (options.concurrent != 0) line += " concurrent=" + std::to_string(options.concurrent);
  if (options.tokens_per_minute != 0) {
    line += " tokens-per-minute=" + std::to_string(options.tokens_per_minute);
  }
  if (options.shared_cache) line += " cache=shared";
  return line + "\n";
}

[[noreturn]] void fail(const std::string& path, const std::string& what = "") {
  throw Error(ErrorCode::unavailable, "--file " + path + ": " + what + std::strerror(errno));
}

std::string contents_of(const std::string& path) {
  if (!std::filesystem::exists(path)) return "";
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) fail(path);
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

// While it lives, others that add a token to this file wait: each would drop what the other adds.
class Turn {
 public:
  explicit Turn(const std::string& file) {
    // The file itself is replaced, and who may only read a directory can lock that. NFS locks only what is
    // open for writing.
    const std::string lock = file + ".lock";
    fd_ = open(lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd_ < 0) fail(file, "cannot open " + lock + ": ");
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    if (errno == EWOULDBLOCK)
      std::cerr << "ete token: waits for " + lock + ", which another ete token holds\n";
    while (flock(fd_, LOCK_EX) != 0) {
      if (errno != EINTR) fail(file, "cannot lock " + lock + ": ");
    }
  }
  // The lock's file stays: others may wait for it, and would go on beside those that made a new one.
  ~Turn() { close(fd_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  int fd_;
};

// Read as a server would: one that is wrong never takes the place of one that is not.
void check_draft(const ReplacementFile& file, const std::string& token) {
  try {
    CHECK(service::TokenFile(file.draft()).find(token) != nullptr, "the name was checked");
  } catch (const std::runtime_error& error) {
    // It names the draft, which nobody knows.
    const std::string why = std::string(error.what()).substr(file.draft().size());
    throw Error(ErrorCode::unavailable, "--file " + file.path() + why);
  }
}

// Of a name there is one token.
void refuse_known_name(const std::string& name, const std::string& path, const std::string& text) {
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::string first;
    std::istringstream(line) >> first;
    if (first != name) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--name: \"{}\" is at {}:{} already; accepted: a name that is not there", name,
                            path, number));
  }
}

int make(const TokenOptions& options) {
  const std::string token = service::make_token();
  // Before anything is written: who is interrupted while it waits leaves nothing.
  const Turn turn(ReplacementFile::target_of("--file", options.file));
  ReplacementFile file("--file", options.file);
  const std::string before = contents_of(file.path());
  refuse_known_name(options.name, file.path(), before);
  file.write(before + line_of(options, token));
  file.keep_mode();
  check_draft(file, token);
  // First: a token that nobody was told would take the name for nothing.
  print(token + "\n");
  file.place();
  return 0;
}

}  // namespace

void add_token_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "token", "Make a bearer token: adds its SHA-256 to a file for --token-file, prints the token itself");
  auto options = std::make_shared<TokenOptions>();
  add_file_flag(*command, "--file", "FILE", "the file; made when it is not there", options->file)->required();
  const auto set_name = [options](const std::string& text) {
    if (!service::is_token_name(text)) {
      reject_flag("--name", text, "letters, digits or any of . _ - @, at most 64");
    }
    options->name = text;
  };
  command->add_option_function<std::string>("--name", set_name, "whose it is, for limits and logs")
      ->type_name("NAME")
      ->required();
  add_count_flag(*command, "--concurrent", "requests at a time [any number]", INT64_MAX, options->concurrent);
  add_count_flag(*command, "--tokens-per-minute", "of prompts and replies [any number]", INT64_MAX,
                 options->tokens_per_minute);
  command->add_flag("--shared-cache", options->shared_cache,
                    "find cached prefixes of the other tokens that have this, too");
  command->callback([&action, options] { action = [options] { return make(*options); }; });
}

}  // namespace ete::cli
