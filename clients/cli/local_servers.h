#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "clients/cli/private_directory.h"
#include "clients/cli/process.h"
#include "clients/cli/run_options.h"
#include "clients/cli/server_client.h"
#include "engine/base/error.h"

namespace ete::cli {

// A worker and a front of our own, on Unix sockets that nobody else reaches, for one command. They go with
// this object, and with this process however it ends. One thread, but for failure().
class LocalServers {
 public:
  // Starts both; signals that may interrupt are blocked already.
  LocalServers(const std::string& model, const std::vector<std::string>& engine_arguments);
  ~LocalServers();

  // Draws progress on a terminal. 0: both are ready; otherwise the signal, read from signal_fd, that came
  // first. Throws failure() as soon as one of them ends.
  int wait_until_ready(int signal_fd);
  // Empty while both run; otherwise why not, in one line: what the process that ended said last. Its code is
  // invalid_argument when the process ended over its flags. Any thread.
  std::optional<Error> failure();
  std::string address() const;  // the front's

 private:
  bool is_served();

  const std::string model_;
  PrivateDirectory directory_;
  std::mutex polling_;
  Child worker_;
  Child front_;
};

// Of a command that was not told the address of others; null: it was. The signals are blocked already.
std::unique_ptr<LocalServers> start_servers(const CLI::App& command, const GenerationOptions& options);
// The front that answers: of these servers, where there are any, else the one that the options name.
ServerAccess front_of(const LocalServers* servers, const GenerationOptions& options);

}  // namespace ete::cli
