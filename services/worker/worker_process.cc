#include "services/worker/worker_process.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "clients/options/command_line.h"
#include "clients/options/failure.h"
#include "engine/base/formatted.h"
#include "services/common/logging.h"
#include "services/common/process.h"
#include "services/common/server.h"
#include "services/common/service_manager.h"
#include "services/common/stop_signal.h"
#include "services/worker/config.h"
#include "services/worker/engine_service.h"
#include "services/worker/status.h"
#include "services/worker/watchdog.h"

namespace ete::worker {
namespace {

constexpr const char* kName = "ete-worker";
constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr auto kHealthCheckInterval = std::chrono::milliseconds(200);
constexpr auto kShutdownGrace = std::chrono::milliseconds(500);

void print_failure(const std::string& message) {
  std::cerr << error_line(kName, message) + "\n" << std::flush;
}

// What the main thread waits for.
class Events {
 public:
  void stop(int signal) {
    change([&] { signal_ = signal; });
  }
  void loaded(std::unique_ptr<Engine> engine) {
    change([&] {
      engine_ = std::move(engine);
      load_ended_ = true;
    });
  }
  void load_failed(const Error& error) {
    change([&] {
      error_ = error;
      load_ended_ = true;
    });
  }

  bool stopping() const {
    const std::lock_guard lock(mutex_);
    return signal_ != 0;
  }
  void wait_for_load_or_stop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return load_ended_ || signal_ != 0; });
  }
  bool wait_for_load(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return load_ended_; });
  }
  bool wait_for_stop(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return signal_ != 0; });
  }
  std::unique_ptr<Engine> take_engine() {
    const std::lock_guard lock(mutex_);
    return std::move(engine_);
  }
  std::optional<Error> error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  template <typename Change>
  void change(Change what) {
    {
      const std::lock_guard lock(mutex_);
      what();
    }
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int signal_ = 0;
  bool load_ended_ = false;
  std::unique_ptr<Engine> engine_;
  std::optional<Error> error_;
};

void load(const EngineOptions& options, const EngineSource& source, EngineService& service, Events& events,
          const service::ServiceManager& manager) {
  std::string step;
  const LoadProgress progress = [&](double fraction, const std::string& what) {
    step = what;
    // The only way to interrupt a load that may take minutes.
    if (events.stopping()) throw Error(ErrorCode::cancelled, "stopped while loading");
    service.report_progress(fraction, what);
    manager.loading(formatted("loading: %.0f %%, %s", fraction * 100, what.c_str()));
    spdlog::debug("loading: {:.0f} %, {}", fraction * 100, what);
  };
  try {
    progress(0, "opening the model's files");
    {
      ModelFiles files;
      const Plan plan = source.plan(options, &files);
      service.set_model(files, plan);
    }
    events.loaded(source.load(options, progress));
  } catch (const Error& error) {
    events.load_failed(error);
  } catch (const std::exception& error) {
    const std::string doing = "loading " + options.model + " (" + step + ")";
    events.load_failed(Error(ErrorCode::internal, failure_text(error, doing)));
  }
}

// Returns when the process should stop; does not return when the device has failed for good.
void wait_while_healthy(Engine& engine, EngineService& service, service::ListeningServer& server,
                        Events& events, const service::ServiceManager& manager) {
  Watchdog watchdog(manager);
  while (!events.wait_for_stop(kHealthCheckInterval)) {
    watchdog.look_at(engine);
    const std::optional<Error> fatal = engine.fatal_error();
    if (!fatal) continue;
    server.set_serving(false);
    service.end_sessions(to_status(*fatal));
    server.shutdown(kShutdownGrace);
    print_failure(fatal->what());
    // The destructors would wait for a device that no longer answers.
    std::_Exit(kFailed);
  }
}

int serve(const WorkerConfig& config, std::unique_ptr<Engine> engine, EngineService& service,
          service::ListeningServer& server, Events& events, const service::ServiceManager& manager) {
  service.serve(*engine);
  server.set_serving(true);
  manager.ready("serving " + engine->config().name);
  spdlog::info("serving {} at {}", engine->config().name, server.address().to_string());
  wait_while_healthy(*engine, service, server, events, manager);
  spdlog::info("stopping");
  manager.stopping();
  server.set_serving(false);
  service.drain(config.service.drain_grace);
  server.shutdown(kShutdownGrace);
  service.stop();
  return 0;
}

int load_and_serve(const WorkerConfig& config, const EngineSource& source, Events& events,
                   const service::ServiceManager& manager) {
  service::Access access(config.service.token_file);
  EngineService service(access);
  service::ListeningServer server({.address = config.service.listen,
                                   .tls = config.service.tls,
                                   .socket_mode = config.service.socket_mode,
                                   .control = config.service.control},
                                  {&service});
  service::warn_of_clear_tokens(config.service);
  if (config.service.listen.kind == service::Address::Kind::tcp && !config.service.authenticates()) {
    spdlog::warn("without --token-file or --tls-client-ca whoever reaches {} is taken for a front",
                 server.address().to_string());
  }
  spdlog::info("listening at {}", server.address().to_string());
  std::thread loader([&] { load(config.engine, source, service, events, manager); });
  events.wait_for_load_or_stop();
  if (!events.wait_for_load(events.stopping() ? config.service.drain_grace : std::chrono::milliseconds(0))) {
    server.shutdown(kShutdownGrace);
    std::_Exit(0);
  }
  loader.join();
  if (const std::optional<Error> error = events.error()) {
    if (events.stopping()) return 0;
    print_failure(error->what());
    return error->code() == ErrorCode::invalid_argument ? kUsage : kFailed;
  }
  return serve(config, events.take_engine(), service, server, events, manager);
}

}  // namespace

int run_worker(int argc, const char* const* argv, const EngineSource& source) {
  tell_uncaught_exceptions();
  WorkerConfig config;
  if (const auto exit_code = parse_worker_config(argc, argv, config)) return *exit_code;
  service::start_logging(kName, config.service.log_level, config.service.log_format);
  try {
    (void)service::raise_open_files();
    const service::ServiceManager manager;
    Events events;
    const service::StopSignal stop_signal([&events](int signal) { events.stop(signal); });
    if (config.service.exit_with_parent != 0) {
      service::exit_with_parent(static_cast<pid_t>(config.service.exit_with_parent));
    }
    return load_and_serve(config, source, events, manager);
  } catch (const std::exception& error) {
    print_failure(failure_text(error, "starting to serve " + config.engine.model));
    return kFailed;
  }
}

}  // namespace ete::worker
