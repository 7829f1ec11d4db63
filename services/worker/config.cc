#include "services/worker/config.h"

#include <iostream>

#include "clients/options/command_line.h"
#include "clients/options/engine_flags.h"

namespace ete::worker {

std::optional<int> parse_worker_config(int argc, const char* const* argv, WorkerConfig& config) {
  CLI::App app("Serves one model: token ids in, logits out (ete.v1.Engine). ete-front is the door for text.",
               "ete-worker");
  add_model_flag(app, config.engine.model);
  service::add_service_flags(app, config.service);
  add_engine_flags(app, config.engine);
  if (const auto exit_code = parse_command_line(app, argc, argv)) return exit_code;
  if (const auto refused = service::refuse_listen("--listen", config.service.listen,
                                                  config.service.insecure_listen_anywhere)) {
    std::cerr << error_line(app.get_name(), *refused) + "\n";
    return 2;
  }
  return std::nullopt;
}

}  // namespace ete::worker
