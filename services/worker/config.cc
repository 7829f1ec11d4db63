#include "services/worker/config.h"

#include "clients/options/engine_flags.h"

namespace ete::worker {

std::optional<int> parse_worker_config(int argc, const char* const* argv, WorkerConfig& config) {
  CLI::App app("Serves one model: token ids in, logits out (ete.v1.Engine). ete-front is the door for text.",
               "ete-worker");
  add_model_flag(app, config.engine.model);
  service::add_service_flags(app, config.service);
  add_engine_flags(app, config.engine);
  return service::parse_server_flags(app, argc, argv, config.service);
}

}  // namespace ete::worker
