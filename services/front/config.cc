#include "services/front/config.h"

#include <iostream>

#include "clients/options/command_line.h"

namespace ete::front {

std::optional<int> parse_front_config(int argc, const char* const* argv, FrontConfig& config) {
  CLI::App app("Text in, streamed text out (ete.v1.Generation), from the model that a worker serves.",
               "ete-front");
  service::add_address_flag(app, "--worker", "where ete-worker listens: unix:/path or host:port",
                            config.worker)
      ->required();
  service::add_service_flags(app, config.service);
  service::add_http_flags(app, config.http);
  service::add_max_requests_flag(app, config.max_requests);
  if (const auto exit_code = service::parse_server_flags(app, argc, argv, config.service)) return exit_code;
  if (!config.http.listen) return std::nullopt;
  const auto refused =
      service::refuse_listen("--http", *config.http.listen, config.service.insecure_listen_anywhere);
  if (!refused) return std::nullopt;
  std::cerr << error_line(app.get_name(), *refused) + "\n";
  return 2;
}

}  // namespace ete::front
