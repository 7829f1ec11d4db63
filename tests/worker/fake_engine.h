#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/engine.h"
#include "engine/runtime/overloaded.h"

namespace ete {

struct FakeEngineOptions {
  int64_t vocab_size = 1000;
  int64_t context = 4096;
  bool inside_calls = false;  // answers in the caller's thread, before the call returns
};

// An engine without a model: its own thread answers each request in order, at once unless held. Row p of a
// session gives top_ids (last + 1, last + 2, ...) modulo the vocabulary, top_logits -1, -2, ..., extra_logits
// and full rows equal to the ids. Counts what is live, so that a test sees a session that was not closed.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(const FakeEngineOptions& options = {});
  ~FakeEngine() override;

  const Plan& plan() const override { return plan_; }
  const ModelConfig& config() const override { return files_.config; }
  const ModelFiles& files() const override { return files_; }
  EngineStatus status() const override;
  std::optional<Error> fatal_error() const override;
  SessionId open(OpenRequest request, std::shared_ptr<SessionListener> listener) override;
  void step(SessionId session, StepRequest request) override;
  void fetch_row(SessionId session, int64_t position,
                 std::function<void(std::vector<float> row, const Error* error)> done) override;
  void close(SessionId session, bool quiet) override;
  // Two bytes a position, no state. A snapshot holds every id but the last.
  SessionImageSizes image_sizes() const override {
    return {.context = options_.context, .vocab_size = options_.vocab_size, .position_bytes = 2};
  }
  void snapshot(std::string salt, std::vector<int32_t> ids,
                std::function<void(SessionImage image, const Error* error)> done) override;
  void restore(std::string salt, SessionImage image,
               std::function<void(int64_t positions, const Error* error)> done) override;

  // While held, prompts and steps wait; closing works.
  void hold(bool held);
  // Every live session hears that.
  void tell_progress(const StepProgress& progress);
  // Every later session is refused with this.
  void refuse_opens(const Overloaded& error);
  // Every later step ends its session with this.
  void fail_steps(const Error& error);
  void fail_for_good(const Error& error);

  int live() const;    // sessions opened and not closed
  int opened() const;  // ever
  int steps() const;   // answered, prompts included
  std::vector<OpenRequest> open_requests() const;
  std::vector<StepRequest> step_requests() const;

  static Plan fake_plan(const FakeEngineOptions& options);
  static ModelFiles fake_files(const FakeEngineOptions& options);

 private:
  struct Session {
    std::shared_ptr<SessionListener> listener;
    int64_t length = 0;
    int32_t last = 0;
  };
  using Work = std::function<void()>;

  void run();
  std::optional<Overloaded> refusal() const;
  void submit(Work work, bool waits_when_held);
  void answer(SessionId id, int64_t position, const std::vector<int32_t>& ids, int64_t n_draft,
              WantedRows rows, const LogitsWanted& wanted);
  LogitsRow make_row(int32_t last, const LogitsWanted& wanted) const;

  FakeEngineOptions options_;
  Plan plan_;
  ModelFiles files_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> work_;
  std::deque<Work> held_work_;
  bool held_ = false;
  bool stopping_ = false;
  std::map<SessionId, Session> sessions_;
  std::optional<Overloaded> refusal_;
  std::optional<Error> step_error_;
  std::optional<Error> fatal_error_;
  std::vector<OpenRequest> open_requests_;
  std::vector<StepRequest> step_requests_;
  SessionId next_id_ = 1;
  int steps_ = 0;

  std::thread thread_;
};

}  // namespace ete
