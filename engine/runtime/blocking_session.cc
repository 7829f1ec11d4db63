#include "engine/runtime/blocking_session.h"

#include <deque>
#include <utility>

#include "engine/runtime/engine_answer.h"

namespace ete {

class BlockingSession::Listener final : public SessionListener {
 public:
  void on_result(StepResult result) override {
    {
      std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
    }
    changed_.notify_all();
  }

  void on_error(const Error& error) override {
    {
      std::lock_guard lock(mutex_);
      error_ = error;
    }
    changed_.notify_all();
  }

  StepResult wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !results_.empty() || error_; });
    if (results_.empty()) throw Error(*error_);
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepResult> results_;
  std::optional<Error> error_;
};

BlockingSession::BlockingSession(Engine& engine, OpenRequest request)
    : engine_(engine),
      listener_(std::make_shared<Listener>()),
      id_(engine.open(std::move(request), listener_)) {}

BlockingSession::~BlockingSession() { engine_.close(id_); }

StepResult BlockingSession::opened() { return listener_->wait(); }

StepResult BlockingSession::wait() { return listener_->wait(); }

StepResult BlockingSession::step(StepRequest request) {
  engine_.step(id_, std::move(request));
  return listener_->wait();
}

std::vector<float> BlockingSession::fetch_row(int64_t position) {
  EngineAnswer<std::vector<float>> row;
  engine_.fetch_row(id_, position, row.callback());
  return row.wait();
}

}  // namespace ete
