#include "clients/cli/local_servers.h"

#include <signal.h>

#include <string_view>

#include "clients/cli/arguments.h"
#include "clients/cli/default_model.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/server_commands.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProbeInterval{20};
constexpr milliseconds kStopGrace{2000};
constexpr int kUsageExit = 2;
const std::vector<std::string> kServiceArguments = {"--log-level=warn", "--drain-grace=1"};

std::string socket_in(const PrivateDirectory& directory, const std::string& name) {
  return "unix:" + directory.file(name + ".sock");
}

std::string log_in(const PrivateDirectory& directory, const std::string& name) {
  return directory.file(name + ".log");
}

// Why a child ended: its last words, which start with its name, or else how.
Error last_words(const std::string& name, const std::string& log_file, const ExitStatus& status) {
  const std::string line = last_line(log_file);
  const bool spoke = status.signal == 0 && status.code != 0 && !line.empty();
  const bool usage = spoke && status.code == kUsageExit;
  return Error(usage ? ErrorCode::invalid_argument : ErrorCode::unavailable,
               spoke ? line : name + " ended with " + describe(status) + (line.empty() ? "" : ": " + line));
}

}  // namespace

LocalServers::LocalServers(const std::string& model, const std::vector<std::string>& engine_arguments)
    : model_(model),
      worker_(Child::start(worker_command({model, engine_arguments, socket_in(directory_, "worker"),
                                           kServiceArguments, log_in(directory_, "worker")}))),
      front_(Child::start(front_command({socket_in(directory_, "worker"), socket_in(directory_, "front"),
                                         kServiceArguments, log_in(directory_, "front")}))) {}

LocalServers::~LocalServers() { stop_all({&front_, &worker_}, kStopGrace); }

std::string LocalServers::address() const { return socket_in(directory_, "front"); }

std::optional<Error> LocalServers::failure() {
  const std::lock_guard lock(polling_);
  if (const auto status = worker_.poll()) {
    return last_words("ete-worker", log_in(directory_, "worker"), *status);
  }
  if (const auto status = front_.poll()) {
    return last_words("ete-front", log_in(directory_, "front"), *status);
  }
  return std::nullopt;
}

int LocalServers::wait_until_ready(int signal_fd) {
  ProgressBar bar;
  bool serving = false;
  while (true) {
    if (const auto error = failure()) throw *error;
    if (!serving) {
      const auto status = worker_status(socket_in(directory_, "worker"));
      if (status) bar.draw(status->load_fraction(), status->load_step());
      serving = status && status->state() == v1::GetStatusReply::SERVING;
    }
    if (serving && is_served()) return 0;
    const int signal = next_signal(signal_fd, kProbeInterval);
    if (signal != 0 && signal != SIGCHLD) return signal;
  }
}

// Whoever started no worker knows the model by its path.
bool LocalServers::is_served() {
  try {
    return front_model({address()}).has_value();
  } catch (const Error& error) {
    const std::string_view what = error.what();
    constexpr std::string_view kWorker = "the worker at socket 1: ";
    if (!what.starts_with(kWorker)) throw;
    throw Error(error.code(), model_ + ": " + std::string(what.substr(kWorker.size())));
  }
}

std::unique_ptr<LocalServers> start_servers(const CLI::App& command, const GenerationOptions& options) {
  if (!options.address.empty()) return nullptr;
  return std::make_unique<LocalServers>(model_or_default(command, options.model), engine_arguments(command));
}

ServerAccess front_of(const LocalServers* servers, const GenerationOptions& options) {
  if (servers != nullptr) return {.address = servers->address()};
  return {.address = options.address, .security = options.security};
}

}  // namespace ete::cli
