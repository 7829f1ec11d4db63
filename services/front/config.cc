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
  if (const auto exit_code = parse_command_line(app, argc, argv)) return exit_code;
  if (const auto refused = service::refuse_listen("--listen", config.service.listen,
                                                  config.service.insecure_listen_anywhere)) {
    std::cerr << error_line(app.get_name(), *refused) + "\n";
    return 2;
  }
  return std::nullopt;
}

}  // namespace ete::front
