#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace ete::worker {

class SessionStream;

// The streams of a service: owns each until gRPC is done with it, and knows which request id is whose.
// Thread-safe.
class SessionRegistry {
 public:
  void enter(std::shared_ptr<SessionStream> stream);
  // May destroy the stream.
  void leave(const SessionStream* stream);

  // False when another stream has this request id.
  bool claim(const std::string& request_id, const SessionStream* stream);
  // Ignored when the id is not this stream's.
  void release(const std::string& request_id, const SessionStream* stream);

  std::shared_ptr<SessionStream> find(const std::string& request_id) const;  // null when there is none
  std::vector<std::shared_ptr<SessionStream>> all() const;
  // False when streams are left after `timeout`.
  bool wait_empty(std::chrono::milliseconds timeout) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable left_;
  std::unordered_map<const SessionStream*, std::shared_ptr<SessionStream>> streams_;
  std::unordered_map<std::string, const SessionStream*> by_request_id_;
};

}  // namespace ete::worker
