#include "services/front/config.h"

#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>

#include "clients/options/command_line.h"

namespace ete::front {
namespace {

std::optional<std::string> refuse_http(const service::Address& http, const service::ServiceOptions& options) {
  const int fd = http.inherited_fd;
  if (fd >= 0 && fd == options.listen.inherited_fd) {
    const std::string text = "fd:" + std::to_string(fd);
    return "--http: " + text + " is not accepted beside --listen " + text + ": one socket serves one of them";
  }
  return service::refuse_listen("--http", http, options.insecure_listen_anywhere || options.authenticates());
}

}  // namespace

std::optional<int> parse_front_config(int argc, const char* const* argv, FrontConfig& config) {
  CLI::App app("Text in, streamed text out (ete.v1.Generation), from the model that a worker serves.",
               "ete-front");
  app.add_option_function<std::string>(
         "--worker,--workers",
         [&config](const std::string& text) {
           try {
             config.workers.workers = parse_workers(text);
           } catch (const std::invalid_argument& error) {
             throw CLI::ValidationError("--workers", error.what());
           }
         },
         "where ete-worker listens: unix:/path or host:port; several, separated by commas; dns:host:port: at "
         "each of the host's addresses")
      ->type_name("ADDR,...")
      ->required();
  service::add_client_security_flags(app, "worker-", "a worker", config.workers.security);
  service::add_service_flags(app, config.service);
  service::add_http_flags(app, config.http);
  service::add_max_requests_flag(app, config.max_requests);
  if (const auto exit_code = service::parse_server_flags(app, argc, argv, config.service)) return exit_code;
  if (!config.http.listen) return std::nullopt;
  const auto refused = refuse_http(*config.http.listen, config.service);
  if (!refused) return std::nullopt;
  std::cerr << error_line(app.get_name(), *refused) + "\n";
  return 2;
}

}  // namespace ete::front
