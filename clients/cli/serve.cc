#include <signal.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "clients/cli/arguments.h"
#include "clients/cli/command.h"
#include "clients/cli/default_model.h"
#include "clients/cli/listen_check.h"
#include "clients/cli/private_directory.h"
#include "clients/cli/server_client.h"
#include "clients/cli/server_commands.h"
#include "clients/cli/supervisor.h"
#include "clients/options/command_line.h"
#include "clients/options/engine_flags.h"
#include "services/common/service_flags.h"

namespace ete::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStepInterval{50};
constexpr milliseconds kProbeInterval{1000};  // once ready
constexpr milliseconds kStopMargin{2000};     // beyond --drain-grace

struct ServeOptions {
  EngineOptions engine;  // for its checks only: the worker gets the flags as they were given
  service::ServiceOptions service;
  service::HttpOptions http;
  int max_requests = 0;  // 0: the front's own
};

void say(const std::string& line) { std::cerr << error_line("ete serve", line) + "\n"; }

class Serving {
 public:
  Serving(const ServeOptions& options, const std::vector<std::string>& engine_arguments)
      : options_(options),
        worker_address_("unix:" + directory_.file("worker.sock")),
        control_address_("unix:" + directory_.file("front.sock")),
        worker_("ete-worker", worker_command({options.engine.model, engine_arguments, worker_address_,
                                              service_arguments(false), ""})),
        front_("ete-front", front_command({worker_address_, options.service.listen.to_string(),
                                           service_arguments(true), ""})) {}

  // They remove their sockets when they may.
  ~Serving() { stop_all({&front_.child(), &worker_.child()}, kStopMargin); }

  // Until a signal. Throws Error when a server cannot be kept running.
  int run(int signal_fd) {
    while (true) {
      const int signal = next_signal(signal_fd, kStepInterval);
      if (signal != 0 && signal != SIGCHLD) return drain(signal_fd);
      for (Supervised* server : {&worker_, &front_}) {
        const std::string event = server->step();
        if (!event.empty()) {
          say(event);
          probe_at_ = {};
        }
      }
      probe();
    }
  }

 private:
  std::vector<std::string> service_arguments(bool for_front) const {
    const service::ServiceOptions& service = options_.service;
    std::vector<std::string> arguments = {
        "--log-level=" + service.log_level,
        std::string("--log-format=") + (service.log_format == service::LogFormat::json ? "json" : "text"),
        "--drain-grace=" + std::to_string(static_cast<double>(service.drain_grace.count()) / 1000)};
    if (!for_front) return arguments;
    for (const std::string& argument : service::security_arguments(service)) arguments.push_back(argument);
    arguments.push_back("--control=" + control_address_);
    if (options_.max_requests != 0) {
      arguments.push_back("--max-requests=" + std::to_string(options_.max_requests));
    }
    if (options_.http.listen) arguments.push_back("--http=" + options_.http.listen->to_string());
    for (const std::string& origin : options_.http.origins) arguments.push_back("--http-origin=" + origin);
    return arguments;
  }

  // Tells the policies who is ready, and people when both are for the first time.
  void probe() {
    const auto now = std::chrono::steady_clock::now();
    if (now < probe_at_) return;
    const auto status = worker_.running() ? worker_status(worker_address_) : std::nullopt;
    const bool worker_ready = status && status->state() == v1::GetStatusReply::SERVING;
    const bool front_ready = front_.running() && front_answers();
    if (worker_ready) worker_.mark_ready();
    if (front_ready) front_.mark_ready();
    if (!worker_ready || !front_ready) return;
    probe_at_ = now + kProbeInterval;
    if (announced_) return;
    announced_ = true;
    const std::string http = options_.http.listen ? ", HTTP at " + options_.http.listen->to_string() : "";
    say("ready at " + options_.service.listen.to_string() + http + ", worker at " + worker_address_);
  }

  // Throws Error before the first time that both were ready, when a front that refuses its worker's model
  // means that the model cannot be served. Later it is said, and whatever runs goes on.
  bool front_answers() {
    try {
      return front_model({.address = control_address_, .control = true}).has_value();
    } catch (const Error& error) {
      if (!announced_) throw;
      if (error.what() != last_refusal_) say(error.what());
      last_refusal_ = error.what();
      return false;
    }
  }

  // The front first, so that what runs can end; a second signal ends both at once.
  int drain(int signal_fd) {
    const auto end = std::chrono::steady_clock::now() + options_.service.drain_grace + kStopMargin;
    for (Supervised* server : {&front_, &worker_}) {
      server->child().terminate();
      while (!server->child().poll() && std::chrono::steady_clock::now() < end) {
        const int signal = next_signal(signal_fd, kStepInterval);
        if (signal != 0 && signal != SIGCHLD) return 0;
      }
    }
    return 0;
  }

  const ServeOptions& options_;
  PrivateDirectory directory_;
  std::string worker_address_;
  std::string control_address_;  // the front's, for our own questions
  Supervised worker_;
  Supervised front_;
  std::chrono::steady_clock::time_point probe_at_;
  bool announced_ = false;
  std::string last_refusal_;
};

// Throws UsageError for an address that clients must not have, Error for one that is taken.
void check_listen(const std::string& flag, const service::Address& listen, bool anywhere) {
  if (listen.inherited_fd >= 0) {
    throw UsageError(flag + ": fd:" + std::to_string(listen.inherited_fd) +
                     " is not accepted: the front is a process of its own; ete-front takes it");
  }
  if (const auto refused = service::refuse_listen(flag, listen, anywhere)) {
    throw UsageError(*refused);
  }
  if (listen.kind == service::Address::Kind::tcp && listen.port == 0) {
    throw UsageError(flag + ": port 0 is not accepted: the front could not come back at the same port");
  }
  check_can_listen(flag, listen);
}

int serve(const CLI::App& command, ServeOptions options) {
  options.engine.model = model_or_default(command, options.engine.model);
  const bool anywhere = options.service.insecure_listen_anywhere || options.service.authenticates();
  check_listen("--listen", options.service.listen, anywhere);
  if (options.http.listen) check_listen("--http", *options.http.listen, anywhere);
  const int signal_fd = block_signals_into_fd({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD});
  Serving serving(options, engine_arguments(command));
  return serving.run(signal_fd);
}

}  // namespace

void add_serve_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("serve", "Worker and front, started again when they end, until a signal");
  auto options = std::make_shared<ServeOptions>();
  add_optional_model_flag(*command, options->engine.model);
  options->service.listen = service::parse_address("127.0.0.1:50051");
  service::add_service_flags(*command, options->service);
  command->get_option("--listen")
      ->required(false)
      ->description("unix:/path or host:port where clients connect [127.0.0.1:50051]");
  service::add_http_flags(*command, options->http);
  command->get_option("--http")->description("serve OpenAI's HTTP API there too: unix:/path or host:port");
  service::add_max_requests_flag(*command, options->max_requests);
  for (const char* own : {"--exit-with-parent", "--control"}) {
    command->remove_option(command->get_option(own));
  }
  add_engine_flags(*command, options->engine);
  command->callback(
      [&action, options, command] { action = [options, command] { return serve(*command, *options); }; });
}

}  // namespace ete::cli
