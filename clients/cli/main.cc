#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <exception>
#include <iostream>

#include "clients/cli/command.h"
#include "clients/options/command_line.h"
#include "clients/options/failure.h"
#include "engine/base/error.h"
#if ETE_SERVICE
#include "services/common/logging.h"
#endif

namespace {

// A descriptor that was closed by whoever started us must not become a file or a socket that is then written
// to: this runs before any library's start-up code opens one.
[[gnu::constructor(101)]] void hold_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Of the other direction, so that using it fails as it would if it were closed.
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

int report(const std::string& command, const std::string& message, int code) {
  std::cerr << ete::error_line(command.empty() ? "ete" : "ete " + command, message) + "\n";
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  ete::tell_uncaught_exceptions();
  signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of the write
  CLI::App app{"Text from language models that are bigger than a GPU's memory", "ete"};
  app.set_version_flag("--version", "ete " ETE_VERSION);
  app.require_subcommand(1);
  ete::cli::Action action;
#if ETE_SERVICE
  ete::service::take_grpc_log();
  ete::cli::add_run_command(app, action);
  ete::cli::add_chat_command(app, action);
  ete::cli::add_serve_command(app, action);
  ete::cli::add_token_command(app, action);
  ete::cli::add_tokenize_command(app, action);
  ete::cli::add_health_command(app, action);
#endif
  ete::cli::add_logits_command(app, action);
  ete::cli::add_inspect_command(app, action);
  ete::cli::add_bench_command(app, action);
  ete::cli::add_pack_command(app, action);
  // CLI11 would only say that a subcommand is missing.
  const auto is_given = [argv](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_given).empty()) {
    return report("", "\"" + std::string(argv[1]) + "\" is no command; ete --help lists them", 2);
  }
  if (const auto code = ete::parse_command_line(app, argc, argv)) return *code;
  const std::string command = app.get_subcommands().front()->get_name();
  try {
    return action();
  } catch (const ete::cli::UsageError& error) {
    return report(command, error.what(), 2);
  } catch (const ete::cli::ToldAlready& error) {
    return error.exit_code();
  } catch (const ete::Error& error) {
    return report(command, error.what(), error.code() == ete::ErrorCode::invalid_argument ? 2 : 1);
  } catch (const std::exception& error) {
    return report(command, ete::failure_text(error, ""), 1);
  }
}
