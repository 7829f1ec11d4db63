#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "engine/runtime/engine.h"
#include "ete/v1/engine.pb.h"
#include "services/worker/handover.h"
#include "services/worker/session_registry.h"
#include "services/worker/wire.h"

namespace ete::worker {

// What the sessions of a service share; outlives them.
struct SessionHost {
  Engine& engine;
  ModelLimits limits;
  SessionRegistry& registry;
  Handover& handover;
};

// One call of Engine.Session, between gRPC's threads and the engine's. The registry owns it until gRPC is
// done, the engine until close() has taken effect; so both may call at any time, in any order.
//
// Messages are bytes to gRPC and parsed here: gRPC would report a message that does not parse as the end of
// the stream.
//
// Reading pauses while kMaxQueuedReplies wait to be written, so a client that does not read holds a bounded
// amount of memory, and slows nobody else. The engine counts the sessions, so there is a bounded number of
// them; once this one has ended, the registry bounds what such calls hold together. Neither the engine nor
// gRPC's cancellation is ever called under the mutex.
class SessionStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            public SessionListener,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  // traceparent: for the log; empty: none.
  SessionStream(const SessionHost& host, grpc::CallbackServerContext& context, std::string traceparent = "")
      : host_(host), context_(context), traceparent_(std::move(traceparent)) {}

  // Enters the registry and reads the first message.
  void start();
  // Closes the session in the engine and finishes the call. False when it had already ended.
  bool end(const grpc::Status& status);
  // Cancels the call, whatever its client has not read.
  void abandon();

  // gRPC's threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // The engine thread: these only hand over.
  void on_progress(const StepProgress& progress) override;
  void on_result(StepResult result) override;
  void on_error(const Error& error) override;

 private:
  using Reply = std::variant<v1::Opened, StepResult, FullRow, StepProgress>;
  enum class Stage { waiting_for_open, opening, open };

  grpc::Status handle(const v1::SessionRequest& request);
  grpc::Status handle_open(const v1::Open& open);
  grpc::Status handle_step(const v1::Step& step);
  grpc::Status handle_fetch_row(const v1::FetchRow& fetch);
  // OK, and a reply of `session` is outstanding from now on; or the reason why `field` cannot be served now.
  grpc::Status begin(const std::string& field, SessionId& session);
  // Hands a reply of the engine thread over.
  void reply(Reply reply);
  // False when it had already ended; what was to be sent before is then still dropped unless `send_queued`.
  bool mark_ended(const grpc::Status& status, bool send_queued);
  // The next reply to be written; nullopt: none waits.
  std::optional<Reply> take_reply(const std::lock_guard<std::mutex>& lock);
  // Does what there is to do: closes, writes, reads, finishes.
  void advance();
  void close_in_engine();
  void read_next(const std::lock_guard<std::mutex>& lock);
  size_t waiting_bytes(const std::lock_guard<std::mutex>& lock) const;
  // An error of the engine about the request that is outstanding.
  Error named(const Error& error);
  grpc::Status encode(const Reply& reply);

  const SessionHost host_;
  grpc::CallbackServerContext& context_;  // until OnDone, which comes after Finish
  const std::string traceparent_;
  grpc::ByteBuffer read_buffer_;   // the reading reaction's
  grpc::ByteBuffer write_buffer_;  // whoever set writing_

  std::mutex mutex_;  // guards everything below
  Stage stage_ = Stage::waiting_for_open;
  SessionId session_ = 0;   // 0: the engine has none
  std::string request_id_;  // empty: none claimed
  bool outstanding_ = false;
  bool stepped_ = false;              // the last request that the engine took was a Step
  std::optional<v1::Opened> opened_;  // goes out before the next reply
  std::deque<Reply> replies_;
  bool wants_progress_ = false;           // of the Open or Step under way
  std::optional<StepProgress> progress_;  // the newest, which nobody has been told yet
  bool writing_ = false;
  size_t writing_bytes_ = 0;  // about
  bool reading_paused_ = false;
  std::optional<grpc::Status> ended_;
  bool send_queued_ = false;                              // what is queued goes out before the end
  std::optional<std::chrono::milliseconds> retry_after_;  // goes out with the end
  bool cancelling_ = false;                               // the call must not finish meanwhile
  bool finished_ = false;
};

}  // namespace ete::worker
