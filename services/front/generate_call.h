#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <optional>

#include "ete/v1/generation.pb.h"
#include "services/common/call_count.h"
#include "services/front/engine_client.h"
#include "services/front/generation.h"
#include "services/front/strand.h"

namespace ete::front {

// One call of Generate: joins a client's stream to a Generation and that to a worker's session. Everything
// that happens, on whatever thread, becomes a task of the call's strand, so nothing below is locked. gRPC
// holds the call until it is done with it, the session until it has ended.
//
// One write is in flight. What is generated meanwhile joins the piece that waits; when kMostWaiting tokens or
// bytes wait the generation pauses, so a client that does not read holds a bounded amount of memory.
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public EngineSession::Events,
                           public Generation::Sink,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  static constexpr int64_t kMostWaitingTokens = 64;
  static constexpr size_t kMostWaitingBytes = 256 << 10;

  // client and calls outlive the call. The reactor owns itself. Ends as unavailable when `calls` is closed.
  static GenerateCall* start(EngineClient& client, service::CallCount& calls,
                             const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request);

  explicit GenerateCall(service::CallCount& calls) : calls_(calls), counted_(calls.enter()) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void on_session_reply(v1::SessionReply reply) override;
  void on_session_end(const FrontError& reason) override;

  void on_reply(v1::GenerateReply reply) override;
  bool wants_more() override;
  void on_end(const std::optional<FrontError>& error) override;

 private:
  void begin(EngineClient& client, std::chrono::system_clock::time_point deadline,
             const grpc::ByteBuffer& request);
  void write_next();

  service::CallCount& calls_;
  const bool counted_;
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  Strand strand_;
  std::shared_ptr<EngineSession> session_;
  std::optional<Generation> generation_;
  std::deque<v1::GenerateReply> waiting_;
  int64_t waiting_tokens_ = 0;
  size_t waiting_bytes_ = 0;
  grpc::ByteBuffer buffer_;  // the write in flight
  bool writing_ = false;
  bool ended_ = false;
  bool finished_ = false;
  std::optional<FrontError> error_;
};

}  // namespace ete::front
