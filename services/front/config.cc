#include "services/front/config.h"

namespace ete::front {

std::optional<int> parse_front_config(int argc, const char* const* argv, FrontConfig& config) {
  CLI::App app("Text in, streamed text out (ete.v1.Generation), from the model that a worker serves.",
               "ete-front");
  service::add_address_flag(app, "--worker", "where ete-worker listens: unix:/path or host:port",
                            config.worker)
      ->required();
  service::add_service_flags(app, config.service);
  return service::parse_server_flags(app, argc, argv, config.service);
}

}  // namespace ete::front
