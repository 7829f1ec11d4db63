#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "services/common/tls.h"
#include "services/front/engine_client.h"
#include "services/front/prefix_routes.h"
#include "services/front/worker_names.h"

namespace ete::front {

// The workers behind a front: who serves which model, and which of them a request goes to. New sessions go
// where most of the prompt was computed lately, unless that worker is far busier than the others; else to the
// one with the fewest sessions. Names of DNS are looked up again and again: workers that they no longer name
// finish what runs. Thread-safe.
class WorkerPool {
 public:
  struct Options {
    std::vector<WorkerName> workers;  // at least one
    service::ClientSecurity security = {};
  };

  // How long a worker that was lost is waited for.
  static constexpr std::chrono::milliseconds kComeback{5'000};
  static constexpr std::chrono::milliseconds kPatientComeback{60'000};

  // on_serving: told when requests begin to be worth sending, and when they cease to be. std::runtime_error
  // when a file of `options` cannot be used.
  WorkerPool(const Options& options, std::function<void(bool serving)> on_serving);
  // Cancels the sessions that still run, and waits until all have ended.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // The model of that name; empty: the one that there is. FrontError: unavailable (no worker serves it now),
  // unknown_model (no such name, or it takes one to tell), others (a worker is there, but its model cannot
  // be served). Never null.
  std::shared_ptr<const ServedModel> model(const std::string& name = "") const;
  // One of each name, in the order of the workers. FrontError as model(), when there is none.
  std::vector<std::shared_ptr<const ServedModel>> models() const;

  struct Wait {
    std::chrono::system_clock::time_point deadline;
    std::string model;  // empty: any
    std::chrono::milliseconds patience = kComeback;
  };
  // Calls `then` at once, unless the workers of the model were lost a moment ago and may be on their way
  // back: then on the pool's thread when one serves again, or when it has been waited for long enough.
  void when_settled(const Wait& wait, std::function<void()> then);

  // A worker that serves this very model, for a session that begins with these ids. FrontError(unavailable).
  std::shared_ptr<EngineClient> choose(const ServedModel& model, const std::string& salt,
                                       std::span<const int32_t> ids);
  // The worker has computed them.
  void remember(const std::string& salt, std::span<const int32_t> ids, const EngineClient& worker);

  std::vector<std::shared_ptr<EngineClient>> workers() const;

 private:
  struct Waiting {
    Wait wait;
    std::function<void()> then;
  };

  std::shared_ptr<EngineClient> make_client(const WorkerLabel& label, const std::string& tls_name);
  void changed();
  bool settled(const Wait& wait) const;
  // Waits for workers, and for names.
  void run();
  void run_names();
  void call_settled();
  void look_up_names();
  void retire_unnamed(const std::vector<std::shared_ptr<EngineClient>>& kept);

  const Options options_;
  const std::shared_ptr<service::TlsReader> tls_;     // null: no TLS
  const std::shared_ptr<service::SecretFile> token_;  // null: none
  const std::function<void(bool)> on_serving_;
  PrefixRoutes routes_;

  std::mutex serving_mutex_;  // guards what follows, and the calls of on_serving_
  bool serving_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<std::shared_ptr<EngineClient>> clients_;
  std::vector<std::shared_ptr<EngineClient>> retired_;  // of the names' thread: they finish what runs
  std::vector<Waiting> waiting_;
  size_t turn_ = 0;  // among equals
  bool stop_ = false;

  std::thread thread_;
  std::thread names_thread_;
};

}  // namespace ete::front
