#include "services/common/service_flags.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <stdexcept>

#include "clients/options/command_line.h"
#include "services/common/inherited_socket.h"
#include "services/common/logging.h"

#include <iostream>
#include <limits>

namespace ete::service {
namespace {

constexpr double kMaxGraceSeconds = 86'400;

// As browsers write it; anything else would never be met.
bool is_origin(const std::string& text) {
  if (text == "*") return true;
  const size_t scheme = text.find("://");
  if (scheme == std::string::npos || scheme == 0) return false;
  const std::string host = text.substr(scheme + 3);
  return !host.empty() && host.find_first_of("/?#@ *") == std::string::npos;
}

CLI::Validator not_empty() {
  return CLI::Validator([](const std::string& text) { return text.empty() ? "a file is needed" : ""; }, "");
}

// `address`: an Address, or one that may be absent.
template <typename Target>
CLI::Option* add_parsed_address(CLI::App& app, const std::string& flag, const std::string& description,
                                Address (*parse)(std::string_view), Target& address) {
  return app
      .add_option_function<std::string>(
          flag,
          [flag, parse, &address](const std::string& text) {
            try {
              address = parse(text);
            } catch (const std::invalid_argument& error) {
              throw CLI::ValidationError(flag, error.what());
            }
          },
          description)
      ->type_name("ADDR");
}

}  // namespace

CLI::Option* add_address_flag(CLI::App& app, const std::string& flag, const std::string& description,
                              Address& address) {
  return add_parsed_address(app, flag, description, &parse_address, address);
}

void add_service_flags(CLI::App& app, ServiceOptions& options) {
  add_parsed_address(app, "--listen",
                     "unix:/path, host:port (port 0: one that is free), or fd:N: a listening socket that "
                     "whoever starts this left open",
                     &parse_listen_address, options.listen)
      ->required();
  app.add_option("--log-level", options.log_level, "what is logged to stderr [info]")
      ->check(CLI::IsMember(log_levels()))
      ->type_name("trace|debug|info|warn|error|off");
  app.add_option_function<std::string>(
         "--log-format",
         [&options](const std::string& text) {
           if (text != "text" && text != "json") reject_flag("--log-format", text, "text or json");
           options.log_format = text == "json" ? LogFormat::json : LogFormat::text;
         },
         "how a line of the log looks [text]")
      ->type_name("text|json");
  app.add_option_function<std::string>(
         "--exit-with-parent",
         [&options](const std::string& text) {
           const auto parent = parse_integer(text, 1, std::numeric_limits<pid_t>::max());
           if (!parent) reject_flag("--exit-with-parent", text, "the process id of whoever starts this");
           options.exit_with_parent = *parent;
         },
         "stop when the process that started this one, which has this id, ends")
      ->type_name("PID");
  app.add_option_function<std::string>(
         "--drain-grace",
         [&options](const std::string& text) {
           const auto seconds = parse_number(text, 0, kMaxGraceSeconds);
           if (!seconds) reject_flag("--drain-grace", text, "seconds, 0 to 86400");
           options.drain_grace = std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000));
         },
         "seconds that running sessions may take to end after SIGTERM or SIGINT [10]")
      ->type_name("SECONDS");
  app.add_flag("--insecure-listen-anywhere", options.insecure_listen_anywhere,
               "allow an address that other machines reach, although nobody is authenticated");
  add_security_flags(app, options);
}

void add_security_flags(CLI::App& app, ServiceOptions& options) {
  auto* certificate = app.add_option("--tls-cert", options.tls.certificate,
                                     "certificates in PEM, this server's first: connections are TLS");
  auto* key = app.add_option("--tls-key", options.tls.key, "its private key in PEM");
  auto* authority = app.add_option("--tls-client-ca", options.tls.authority,
                                   "only clients with a certificate of these authorities are let in");
  for (CLI::Option* option : {certificate, key, authority}) option->type_name("FILE")->check(not_empty());
  certificate->needs(key);
  key->needs(certificate);
  authority->needs(certificate);
  app.add_option("--token-file", options.token_file,
                 "only callers with a bearer token of this file are let in; `ete token` makes them")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option_function<std::string>(
         "--socket-mode",
         [&options](const std::string& text) {
           if (text != "600" && text != "660" && text != "666") {
             reject_flag("--socket-mode", text, "600, 660 (the group may connect too) or 666 (everybody)");
           }
           options.socket_mode = static_cast<mode_t>(std::stoi(text, nullptr, 8));
         },
         "of Unix sockets that it makes [600]")
      ->type_name("600|660|666");
  app.add_option_function<std::string>(
         "--control",
         [&options](const std::string& text) {
           try {
             options.control = parse_address(text);
           } catch (const std::invalid_argument& error) {
             throw CLI::ValidationError("--control", error.what());
           }
           if (options.control->kind != Address::Kind::unix_socket) {
             reject_flag("--control", text, "unix:/path");
           }
         },
         "a Unix socket of mode 600 for whoever supervises it: gRPC without TLS and tokens")
      ->type_name("ADDR");
}

void add_client_security_flags(CLI::App& app, const std::string& prefix, const std::string& server,
                               ClientSecurity& security) {
  auto* authority =
      app.add_option("--" + prefix + "tls-ca", security.tls.authority,
                     "certificates in PEM of the authorities of " + server + "'s: connections are TLS");
  auto* certificate = app.add_option("--" + prefix + "tls-cert", security.tls.certificate,
                                     "certificates in PEM that " + server + " is shown");
  auto* key = app.add_option("--" + prefix + "tls-key", security.tls.key, "their private key in PEM");
  for (CLI::Option* option : {certificate, key, authority}) option->type_name("FILE")->check(not_empty());
  certificate->needs(key)->needs(authority);
  key->needs(certificate);
  app.add_option("--" + prefix + "token", security.token_file,
                 "a file that only its owner can read, with the bearer token that " + server + " is shown")
      ->type_name("FILE")
      ->check(not_empty());
}

std::vector<std::string> security_arguments(const ServiceOptions& options) {
  std::vector<std::string> arguments;
  const auto add = [&arguments](const std::string& flag, const std::string& value) {
    if (!value.empty()) arguments.push_back(flag + "=" + value);
  };
  add("--tls-cert", options.tls.certificate);
  add("--tls-key", options.tls.key);
  add("--tls-client-ca", options.tls.authority);
  add("--token-file", options.token_file);
  add("--socket-mode", fmt::format("{:o}", options.socket_mode));
  if (options.insecure_listen_anywhere) arguments.push_back("--insecure-listen-anywhere");
  return arguments;
}

void add_http_flags(CLI::App& app, HttpOptions& options) {
  CLI::Option* http =
      add_parsed_address(app, "--http", "serve OpenAI's HTTP API there too: unix:/path, host:port or fd:N",
                         &parse_listen_address, options.listen);
  app.add_option(
         "--http-origin", options.origins,
         "web pages of another machine that may use it, as https://host, or * for all; may be repeated")
      ->type_name("ORIGIN")
      ->expected(1)
      ->take_all()
      ->needs(http)
      ->check([](const std::string& text) {
        return is_origin(text)
                   ? ""
                   : "\"" + text + "\" is not accepted: as https://host or https://host:port, or *";
      });
}

void add_max_requests_flag(CLI::App& app, int& max_requests) {
  constexpr int kMost = 1 << 20;
  app.add_option_function<std::string>(
         "--max-requests",
         [&max_requests](const std::string& text) {
           const auto count = parse_integer(text, 1, kMost);
           if (!count) reject_flag("--max-requests", text, "a whole number from 1 to 1048576");
           max_requests = static_cast<int>(*count);
         },
         "requests that may run or wait at the front, of all clients; further ones are refused with when to "
         "come again [1024]")
      ->type_name("N");
}

std::optional<int> parse_server_flags(CLI::App& app, int argc, const char* const* argv,
                                      const ServiceOptions& options) {
  if (const auto exit_code = parse_command_line(app, argc, argv)) return exit_code;
  const auto refused =
      refuse_listen("--listen", options.listen, options.insecure_listen_anywhere || options.authenticates());
  if (!refused) return std::nullopt;
  std::cerr << error_line(app.get_name(), *refused) + "\n";
  return 2;
}

void warn_of_clear_tokens(const ServiceOptions& options) {
  if (options.token_file.empty() || !options.tls.certificate.empty() || options.listen.is_local()) return;
  spdlog::warn("--token-file without --tls-cert: tokens cross the network in clear");
}

std::optional<std::string> refuse_listen(const std::string& flag, const Address& address, bool allowed) {
  if (allowed || address.is_local()) return std::nullopt;
  return flag + ": " + address.to_string() +
         " is not a loopback address, and callers are not authenticated: use unix:/path or 127.0.0.1, give "
         "--token-file or --tls-client-ca, or --insecure-listen-anywhere";
}

}  // namespace ete::service
