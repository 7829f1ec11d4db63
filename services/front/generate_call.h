#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "ete/v1/generation.pb.h"
#include "services/common/call_count.h"
#include "services/front/engine_client.h"
#include "services/front/generation.h"
#include "services/front/strand.h"
#include "services/front/text_pool.h"

namespace ete::front {

// One call of Generate: joins a client's stream to a Generation and that to a worker's session. Everything
// that happens, on whatever thread, becomes a task of the call's strand, so nothing below is locked. gRPC
// holds the call until it is done with it, the session until it has ended.
//
// One write is in flight. What is generated meanwhile joins the piece that waits; when kMostWaiting tokens or
// bytes wait the generation pauses, so a client that does not read holds a bounded amount of memory. It does
// not hold it for ever: when no write has ended for `most_unread` the request fails, which frees the worker's
// session, and after as long again the call is cancelled.
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public EngineSession::Events,
                           public Generation::Sink,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  static constexpr int64_t kMostWaitingTokens = 64;
  static constexpr size_t kMostWaitingBytes = 256 << 10;

  // What the calls of a service share; outlives them.
  struct Host {
    EngineClient& client;
    service::CallCount& calls;
    TextPool& texts;
    std::chrono::milliseconds most_unread;
  };

  // The reactor owns itself. Ends as unavailable when `host.calls` is closed.
  static GenerateCall* start(const Host& host, grpc::CallbackServerContext& context,
                             const grpc::ByteBuffer& request);

  GenerateCall(const Host& host, grpc::CallbackServerContext& context)
      : host_(host), context_(context), deadline_(context.deadline()), counted_(host.calls.enter()) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void on_session_reply(v1::SessionReply reply) override;
  void on_session_end(const FrontError& reason) override;

  void on_reply(v1::GenerateReply reply) override;
  bool wants_more() override;
  void on_end(const std::optional<FrontError>& error) override;

 private:
  // A request on its way from bytes to a session.
  struct Start {
    v1::GenerateRequest request;
    std::shared_ptr<const ServedModel> model;
    GenerationRequest valid;
  };

  // Does `work`; what it throws ends the call.
  template <typename Work>
  void attempt(Work work);
  void begin(const grpc::ByteBuffer& request);
  void encode_in_pool(std::shared_ptr<Start> start);
  void open(Start& start);
  // Whether the client still waits. Any thread.
  bool wanted() const;
  void fail(const FrontError& reason);
  bool write();
  void write_next();
  void watch_the_reader();
  // It was set when `writes_ended` writes had ended.
  void on_alarm(bool fired, uint64_t writes_ended);

  const Host host_;
  grpc::CallbackServerContext& context_;  // until OnDone
  const std::chrono::system_clock::time_point deadline_;
  const bool counted_;
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  Strand strand_;
  std::shared_ptr<EngineSession> session_;
  std::optional<Generation> generation_;
  std::deque<v1::GenerateReply> waiting_;
  int64_t waiting_tokens_ = 0;
  size_t waiting_bytes_ = 0;
  grpc::ByteBuffer buffer_;  // the write in flight
  uint64_t writes_ended_ = 0;
  std::unique_ptr<grpc::Alarm> alarm_;  // set while the reader is behind
  int alarms_ = 0;                      // that went off since the last write ended
  bool writing_ = false;
  bool ended_ = false;
  bool finished_ = false;
  std::optional<FrontError> error_;
};

}  // namespace ete::front
