#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/runtime/engine.h"

namespace ete {

// A session used from one thread that waits for each answer: for command lines and tests. Errors of the
// session are thrown, by the call that meets them and by every later one. Destruction closes the session. The
// engine must outlive it.
class BlockingSession {
 public:
  // Returns at once; opened() waits. The prompt may be empty.
  BlockingSession(Engine& engine, OpenRequest request);
  ~BlockingSession();
  BlockingSession(const BlockingSession&) = delete;
  BlockingSession& operator=(const BlockingSession&) = delete;

  SessionId id() const { return id_; }
  StepResult opened();  // the result of the prompt; once, and only when the prompt was not empty
  StepResult step(StepRequest request);
  void submit(StepRequest request) { engine_.step(id_, std::move(request)); }
  StepResult wait();                               // the next result
  std::vector<float> fetch_row(int64_t position);  // [vocab]
  void close() { engine_.close(id_); }

 private:
  class Listener;
  Engine& engine_;
  std::shared_ptr<Listener> listener_;
  SessionId id_;
};

}  // namespace ete
