#include "services/front/front_process.h"

#include <google/protobuf/stubs/logging.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <future>
#include <iostream>
#include <optional>
#include <string>

#include "clients/options/command_line.h"
#include "clients/options/failure.h"
#include "services/common/logging.h"
#include "services/common/process.h"
#include "services/common/service_manager.h"
#include "services/common/stop_signal.h"
#include "services/front/config.h"
#include "services/front/front_server.h"

namespace ete::front {
namespace {

void wait_for(const std::future<void>& stop, const service::ServiceManager& manager) {
  const auto interval = manager.watchdog_interval();
  if (!interval) return stop.wait();
  do manager.alive();
  while (stop.wait_for(*interval) == std::future_status::timeout);
}

}  // namespace

int run_front(int argc, const char* const* argv) {
  tell_uncaught_exceptions();
  FrontConfig config;
  if (const auto exit_code = parse_front_config(argc, argv, config)) return *exit_code;
  service::start_logging("ete-front", config.service.log_level, config.service.log_format);
  // protobuf reports every message that does not parse; clients are told, the log need not be.
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel /*level*/, const char* /*file*/, int /*line*/,
                                     const std::string& message) { spdlog::debug("protobuf: {}", message); });
  try {
    (void)service::raise_open_files();
    const service::ServiceManager manager;
    std::promise<void> stop;
    const service::StopSignal stop_signal([&stop](int /*signal*/) { stop.set_value(); });
    if (config.service.exit_with_parent != 0) {
      service::exit_with_parent(static_cast<pid_t>(config.service.exit_with_parent));
    }
    FrontServer::Options options{.workers = config.workers,
                                 .listen = config.service.listen,
                                 .most_requests = config.max_requests,
                                 .tls = config.service.tls,
                                 .token_file = config.service.token_file,
                                 .socket_mode = config.service.socket_mode,
                                 .control = config.service.control};
    if (config.http.listen) options.http = {*config.http.listen, config.http.origins};
    FrontServer server(options);
    service::warn_of_clear_tokens(config.service);
    spdlog::info("listening at {}", server.address().to_string());
    if (options.http) spdlog::info("listening for HTTP at {}", server.http_address().to_string());
    manager.ready("listening at " + server.address().to_string());
    wait_for(stop.get_future(), manager);
    spdlog::info("stopping");
    manager.stopping();
    server.shutdown(config.service.drain_grace);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error_line("ete-front", failure_text(error, "starting to serve")) + "\n";
    return 1;
  }
}

}  // namespace ete::front
