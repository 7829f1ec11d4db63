#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "services/front/limits.h"

namespace ete::front {

class RunningRequest;

// The requests of a front, from their arrival to their end: how many there may be, and which is called what.
// Thread-safe.
class RequestRegistry {
 public:
  explicit RequestRegistry(int most = kMostRequests) : most_(most) {}

  int most() const { return most_; }

  // A request's place. Leaves when it is destroyed.
  class Place {
   public:
    Place(RequestRegistry& registry, const RunningRequest* request)
        : registry_(registry), request_(request), entered_(std::chrono::steady_clock::now()) {}
    ~Place() { registry_.leave(*this); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    friend class RequestRegistry;
    RequestRegistry& registry_;
    const RunningRequest* request_;
    const std::chrono::steady_clock::time_point entered_;
    std::string name_;  // empty: none yet
  };

  // FrontError(resource_exhausted), with when to come again, where there are as many as there may be.
  std::unique_ptr<Place> enter(const RunningRequest& request);
  // caller: the name of whose token it came with; empty: none was asked for.
  void name(Place& place, const std::string& request_id, const std::string& caller,
            std::weak_ptr<RunningRequest> request);
  // Ends the caller's requests that are called so, or, of a caller without a token, all that are; how many
  // there were. They lose the name at once, so that one that is about to end is not counted again.
  int abort(const std::string& request_id, const std::string& caller);

 private:
  void leave(const Place& place);

  const int most_;
  std::mutex mutex_;  // guards what follows
  int running_ = 0;
  double mean_ms_ = 0;  // that requests took lately; 0: not known
  struct Named {
    const RunningRequest* key;
    std::string caller;
    std::weak_ptr<RunningRequest> request;
  };
  std::multimap<std::string, Named> by_name_;
};

}  // namespace ete::front
