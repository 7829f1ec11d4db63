#include "services/worker/session_calls.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "services/common/process.h"
#include "services/worker/status.h"
#include "services/worker/wire.h"

namespace ete::worker {
namespace {

constexpr size_t kMostPartBytes = size_t{1} << 20;

// One of the few calls that run at once; throws when there are too many.
class Turn {
 public:
  explicit Turn(std::atomic<int>& running) : running_(running) {
    if (running_.fetch_add(1) < SessionCallHost::kMostAtOnce) return;
    running_.fetch_sub(1);
    throw Error(ErrorCode::resource_exhausted,
                "session: " + std::to_string(SessionCallHost::kMostAtOnce) +
                    " are being kept or brought back already, the most that may at once");
  }
  ~Turn() { running_.fetch_sub(1); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<int>& running_;
};

template <typename Work>
std::optional<grpc::Status> failure_of(Work work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return to_status(error);
  } catch (const std::exception& error) {
    return to_status(Error(ErrorCode::internal, error.what()));
  }
}

class SnapshotCall final : public grpc::ServerWriteReactor<v1::SessionPart> {
 public:
  SnapshotCall(const SessionCallHost& host, const v1::SnapshotRequest& request) : host_(host) {
    const auto failed = failure_of([&] {
      check_salt(request.cache_salt(), "cache_salt");
      turn_.emplace(host_.running);
      host_.engine.snapshot(
          request.cache_salt(), {request.ids().begin(), request.ids().end()},
          [this](SessionImage image, const Error* error) { taken(std::move(image), error); });
    });
    if (failed) Finish(*failed);
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      send_next();
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  // On the engine thread.
  void taken(SessionImage image, const Error* error) {
    std::optional<grpc::Status> failed;
    if (error != nullptr) failed = to_status(*error);
    host_.handover.post([this, failed, image = std::make_shared<SessionImage>(std::move(image))] {
      if (failed) return Finish(*failed);
      const auto unwritten = failure_of([&] { document_ = write_session(*image, host_.format); });
      if (unwritten) return Finish(*unwritten);
      send_next();
    });
  }

  void send_next() {
    if (sent_ == document_.size()) return Finish(grpc::Status::OK);
    part_.set_data(document_.substr(sent_, kMostPartBytes));
    sent_ += part_.data().size();
    StartWrite(&part_);
  }

  const SessionCallHost host_;
  std::optional<Turn> turn_;
  std::string document_;
  size_t sent_ = 0;
  v1::SessionPart part_;
};

class RestoreCall final : public grpc::ServerReadReactor<v1::SessionPart> {
 public:
  RestoreCall(const SessionCallHost& host, grpc::CallbackServerContext& context, v1::RestoreReply& reply)
      : host_(host), context_(context), reply_(reply) {
    const auto failed = failure_of([&] { turn_.emplace(host_.running); });
    if (failed) {
      Finish(*failed);
    } else {
      StartRead(&part_);
    }
  }

  void OnReadDone(bool ok) override {
    if (context_.IsCancelled()) return Finish(grpc::Status::CANCELLED);
    const auto failed = failure_of([&] {
      if (ok) {
        append();
      } else {
        restore(read_session(document_, host_.format));
      }
    });
    if (failed) {
      Finish(*failed);
    } else if (ok) {
      StartRead(&part_);
    }
  }
  void OnDone() override { delete this; }

 private:
  // Nothing is held that a session of this model cannot be part of.
  void append() {
    document_ += part_.data();
    if (document_.size() < kSessionHeaderBytes) return;
    const size_t bytes = session_bytes(document_, host_.format);
    if (document_.size() > bytes) {
      throw Error(ErrorCode::invalid_argument,
                  "session: more than the " + std::to_string(bytes) + " bytes of which its header tells");
    }
  }

  void restore(SessionImage image) {
    document_.clear();
    document_.shrink_to_fit();
    reply_.mutable_ids()->Add(image.ids.begin(), image.ids.end());
    reply_.set_cache_salt("restored." + service::random_id());
    host_.engine.restore(reply_.cache_salt(), std::move(image),
                         [this](int64_t positions, const Error* error) {
                           std::optional<grpc::Status> failed;
                           if (error != nullptr) failed = to_status(*error);
                           host_.handover.post([this, positions, failed] {
                             reply_.set_positions(positions);
                             Finish(failed.value_or(grpc::Status::OK));
                           });
                         });
  }

  const SessionCallHost host_;
  grpc::CallbackServerContext& context_;
  v1::RestoreReply& reply_;
  std::optional<Turn> turn_;
  std::string document_;
  v1::SessionPart part_;
};

// A call that ends at once.
template <typename Reactor>
class Refused final : public Reactor {
 public:
  explicit Refused(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerWriteReactor<v1::SessionPart>* start_snapshot(const SessionCallHost& host,
                                                          const v1::SnapshotRequest& request) {
  return new SnapshotCall(host, request);
}

grpc::ServerReadReactor<v1::SessionPart>* start_restore(const SessionCallHost& host,
                                                        grpc::CallbackServerContext& context,
                                                        v1::RestoreReply& reply) {
  return new RestoreCall(host, context, reply);
}

grpc::ServerWriteReactor<v1::SessionPart>* refuse_snapshot(const grpc::Status& status) {
  return new Refused<grpc::ServerWriteReactor<v1::SessionPart>>(status);
}

grpc::ServerReadReactor<v1::SessionPart>* refuse_restore(const grpc::Status& status) {
  return new Refused<grpc::ServerReadReactor<v1::SessionPart>>(status);
}

}  // namespace ete::worker
