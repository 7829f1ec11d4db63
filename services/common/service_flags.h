#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "services/common/address.h"

namespace ete::service {

// The flags that both servers have.
struct ServiceOptions {
  Address listen;
  std::string log_level = "info";
  int64_t exit_with_parent = 0;  // process id; 0: none
  std::chrono::milliseconds drain_grace{10'000};
  bool insecure_listen_anywhere = false;
};

// --listen (required), --log-level, --exit-with-parent, --drain-grace, --insecure-listen-anywhere. `options`
// outlives the parse.
void add_service_flags(CLI::App& app, ServiceOptions& options);

// Where the front serves HTTP, if it does.
struct HttpOptions {
  std::optional<Address> listen;
  std::vector<std::string> origins;
};

// --http, --http-origin. `options` outlives the parse.
void add_http_flags(CLI::App& app, HttpOptions& options);

// --max-requests: of a front, kMostRequests unless given.
void add_max_requests_flag(CLI::App& app, int& max_requests);

// Parses the command line of a server, whose flags `app` has. Empty means go on; otherwise the process exits
// with the code: 0 after --help, 2 after a usage error (--listen at an address that it must not have, too),
// told in one line on stderr.
std::optional<int> parse_server_flags(CLI::App& app, int argc, const char* const* argv,
                                      const ServiceOptions& options);

// A flag whose value is an address.
CLI::Option* add_address_flag(CLI::App& app, const std::string& flag, const std::string& description,
                              Address& address);

// The reason why a server must not listen there: without authentication only this machine may reach it.
std::optional<std::string> refuse_listen(const std::string& flag, const Address& address,
                                         bool insecure_listen_anywhere);

}  // namespace ete::service
