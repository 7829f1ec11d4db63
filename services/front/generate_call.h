#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "ete/v1/generation.pb.h"
#include "services/common/call_count.h"
#include "services/front/running_request.h"

namespace ete::front {

// One call of Generate: a client's stream. gRPC holds the call until it is done with it.
//
// One write is in flight. What is generated meanwhile joins the piece that waits; when kMostWaiting tokens or
// bytes wait the generation pauses, so a client that does not read holds a bounded amount of memory. It does
// not hold it for ever: when no write has ended for `most_unread` the request fails, which frees the worker's
// session, and after as long again the call is cancelled.
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public RunningRequest {
 public:
  static constexpr int64_t kMostWaitingTokens = 64;
  static constexpr size_t kMostWaitingBytes = 256 << 10;

  // What the calls of a service share; outlives them.
  struct Host {
    RunningRequest::Host shared;
    service::CallCount& calls;
    std::chrono::milliseconds most_unread;
  };

  // The reactor owns itself. Ends as unavailable when `host.calls` is closed.
  static GenerateCall* start(const Host& host, grpc::CallbackServerContext& context, service::Caller caller,
                             const grpc::ByteBuffer& request);

  GenerateCall(const Host& host, grpc::CallbackServerContext& context, service::Caller caller)
      : RunningRequest(host.shared, std::move(caller), context.deadline()),
        host_(host),
        context_(context),
        counted_(host.calls.enter()) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  bool wants_more() override;

 private:
  void deliver(v1::GenerateReply reply) override;
  void on_ended(const std::optional<FrontError>& error) override;
  void read(const grpc::ByteBuffer& request);
  std::shared_ptr<GenerateCall> self();
  bool write();
  void write_next();
  void watch_the_reader();
  // It was set when `writes_ended` writes had ended.
  void on_alarm(bool fired, uint64_t writes_ended);

  const Host host_;
  grpc::CallbackServerContext& context_;  // until OnDone
  const bool counted_;
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  std::deque<v1::GenerateReply> waiting_;
  int64_t waiting_tokens_ = 0;
  size_t waiting_bytes_ = 0;
  grpc::ByteBuffer buffer_;  // the write in flight
  uint64_t writes_ended_ = 0;
  std::unique_ptr<grpc::Alarm> alarm_;  // set while the reader is behind
  int alarms_ = 0;                      // that went off since the last write ended
  bool writing_ = false;
  bool finished_ = false;
  std::optional<FrontError> error_;
};

}  // namespace ete::front
