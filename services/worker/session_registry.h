#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
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
  // One reply of the largest size, or many ordinary ones.
  static constexpr size_t kMaxLingeringBytes = size_t{64} << 20;

  void enter(std::shared_ptr<SessionStream> stream);
  // May destroy the stream.
  void leave(const SessionStream* stream);

  // False when another stream has this request id.
  bool claim(const std::string& request_id, const SessionStream* stream);
  // Ignored when the id is not this stream's.
  void release(const std::string& request_id, const SessionStream* stream);

  std::shared_ptr<SessionStream> find(const std::string& request_id) const;  // null when there is none
  std::vector<std::shared_ptr<SessionStream>> all() const;
  size_t size() const;

  // The stream's session has ended, but about `bytes` of its replies still wait for the client. The streams
  // that are to be abandoned, so that what waits in this way takes no more than kMaxLingeringBytes: those
  // that have waited longest.
  std::vector<std::shared_ptr<SessionStream>> linger(const SessionStream* stream, size_t bytes);
  // False when streams are left after `timeout`.
  bool wait_empty(std::chrono::milliseconds timeout) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable left_;
  struct Lingering {
    const SessionStream* stream = nullptr;
    size_t bytes = 0;
  };
  void forget_lingering(const SessionStream* stream);  // under the mutex

  std::unordered_map<const SessionStream*, std::shared_ptr<SessionStream>> streams_;
  std::unordered_map<std::string, const SessionStream*> by_request_id_;
  std::list<Lingering> lingering_;  // oldest first
  std::unordered_map<const SessionStream*, std::list<Lingering>::iterator> lingering_of_;
  size_t lingering_bytes_ = 0;
};

}  // namespace ete::worker
