#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "services/common/address.h"
#include "services/common/logging.h"
#include "services/common/tls.h"

namespace ete::service {

// The flags that both servers have.
struct ServiceOptions {
  Address listen;
  std::string log_level = "info";
  LogFormat log_format = LogFormat::text;
  int64_t exit_with_parent = 0;  // process id; 0: none
  std::chrono::milliseconds drain_grace{10'000};
  bool insecure_listen_anywhere = false;
  TlsFiles tls;                    // of listeners
  std::string token_file;          // empty: no token is asked for
  mode_t socket_mode = 0600;       // of Unix sockets
  std::optional<Address> control;  // a Unix socket

  // Strangers are turned away: callers show a token or a certificate.
  bool authenticates() const { return !token_file.empty() || !tls.authority.empty(); }
};

// --listen (required), --log-level, --log-format, --exit-with-parent, --drain-grace,
// --insecure-listen-anywhere, and those of add_security_flags. `options` outlives the parse.
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

// --tls-cert, --tls-key, --tls-client-ca, --token-file, --socket-mode, --control.
void add_security_flags(CLI::App& app, ServiceOptions& options);

// --PREFIXtls-ca, --PREFIXtls-cert, --PREFIXtls-key, --PREFIXtoken: how a client shows itself to `server`.
void add_client_security_flags(CLI::App& app, const std::string& prefix, const std::string& server,
                               ClientSecurity& security);
// The flags that were given, as a process that takes the same ones gets them.
std::vector<std::string> security_arguments(const ServiceOptions& options);

// A flag whose value is an address.
CLI::Option* add_address_flag(CLI::App& app, const std::string& flag, const std::string& description,
                              Address& address);

// In the log, where tokens would cross a network in clear.
void warn_of_clear_tokens(const ServiceOptions& options);

// The reason why a server must not listen there: unless callers are authenticated (or whoever starts it has
// allowed the contrary) only this machine may reach it.
std::optional<std::string> refuse_listen(const std::string& flag, const Address& address, bool allowed);

}  // namespace ete::service
