#pragma once

#include <memory>

#include "ete/v1/engine.pb.h"
#include "services/front/front_error.h"

namespace ete::front {

// One session with a worker, engine.proto's Session, whatever carries it. Nothing here blocks. Thread-safe.
class EngineSession {
 public:
  // Calls come one at a time, from any thread, possibly before send() has returned.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_session_reply(v1::SessionReply reply) = 0;
    // Last, once. After finish() or cancel() the reason says nothing of interest.
    virtual void on_session_end(const FrontError& reason) = 0;
  };

  virtual ~EngineSession() = default;

  virtual void send(v1::SessionRequest request) = 0;
  // After what was sent: the session is over, its memory may go.
  virtual void finish() = 0;
  // At once, also in the middle of a pass.
  virtual void cancel() = 0;
};

}  // namespace ete::front
