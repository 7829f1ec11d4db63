#include "services/common/service_flags.h"

#include <stdexcept>

#include "clients/options/command_line.h"
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

}  // namespace

CLI::Option* add_address_flag(CLI::App& app, const std::string& flag, const std::string& description,
                              Address& address) {
  return app
      .add_option_function<std::string>(
          flag,
          [flag, &address](const std::string& text) {
            try {
              address = parse_address(text);
            } catch (const std::invalid_argument& error) {
              throw CLI::ValidationError(flag, error.what());
            }
          },
          description)
      ->type_name("ADDR");
}

void add_service_flags(CLI::App& app, ServiceOptions& options) {
  add_address_flag(app, "--listen", "unix:/path or host:port (port 0: one that is free)", options.listen)
      ->required();
  app.add_option("--log-level", options.log_level, "what is logged to stderr [info]")
      ->check(CLI::IsMember(log_levels()))
      ->type_name("trace|debug|info|warn|error|off");
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
}

void add_http_flags(CLI::App& app, HttpOptions& options) {
  CLI::Option* http = app.add_option_function<std::string>(
      "--http",
      [&options](const std::string& text) {
        try {
          options.listen = parse_address(text);
        } catch (const std::invalid_argument& error) {
          throw CLI::ValidationError("--http", error.what());
        }
      },
      "serve OpenAI's HTTP API there too: unix:/path or host:port");
  http->type_name("ADDR");
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
  const auto refused = refuse_listen("--listen", options.listen, options.insecure_listen_anywhere);
  if (!refused) return std::nullopt;
  std::cerr << error_line(app.get_name(), *refused) + "\n";
  return 2;
}

std::optional<std::string> refuse_listen(const std::string& flag, const Address& address,
                                         bool insecure_listen_anywhere) {
  if (insecure_listen_anywhere || address.is_local()) return std::nullopt;
  return flag + ": " + address.to_string() +
         " is not a loopback address, and callers are not authenticated: use unix:/path or 127.0.0.1, or "
         "give "
         "--insecure-listen-anywhere";
}

}  // namespace ete::service
