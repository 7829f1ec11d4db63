#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ete/v1/engine.grpc.pb.h"
#include "services/common/tls.h"
#include "services/common/token_file.h"
#include "services/front/engine_session.h"
#include "services/front/front_error.h"
#include "services/front/served_model.h"
#include "services/front/worker_names.h"

namespace ete::front {

// How a front reaches a worker.
struct WorkerLink {
  WorkerLabel label;
  std::string tls_name = {};                             // whose certificate it shows; empty: the address's
  std::shared_ptr<service::TlsReader> tls = nullptr;     // null: no TLS
  std::shared_ptr<service::SecretFile> token = nullptr;  // null: none is shown
};

// The way to one worker. A thread of its own keeps the connection, notices when the worker goes and comes
// back, and fetches the model anew whenever it may have changed; requests that run keep the model with which
// they began. Thread-safe.
class EngineClient {
 public:
  // on_change: told when requests begin to be worth sending, and when they cease to be.
  EngineClient(const WorkerLink& link, std::function<void()> on_change);
  ~EngineClient() { stop(); }
  EngineClient(const EngineClient&) = delete;
  EngineClient& operator=(const EngineClient&) = delete;

  // Cancels the sessions that still run, and waits until all have ended; no other call comes after it. Not
  // from a session's events.
  void stop();

  struct State {
    std::shared_ptr<const ServedModel> serving;  // null: away
    // Why, while it is. FrontError(unavailable): the worker is away or still loading its model (the message
    // says which). Any other code: the worker is there, but its model cannot be served.
    std::optional<FrontError> away;
    // When it was lost, or its model began to be read; the epoch: neither happened yet.
    std::chrono::system_clock::time_point expected_since;
    std::string name;  // of the model that it serves, or served last
  };
  State state() const;
  // What the worker told last of itself; empty: nothing, or it is not connected.
  std::optional<v1::GetStatusReply> status() const;
  // Sessions that it has or that wait there, of this front or of others.
  int64_t load() const;
  // A session ended as if the worker were gone: it counts as lost until it has told its status anew.
  void suspect();

  // For calls that are passed on as they are, whether or not the worker serves; they end before this does.
  std::shared_ptr<v1::Engine::Stub> stub() const;
  // Shows the worker the front's token.
  void authorize(grpc::ClientContext& context) const;
  const std::string& where() const { return where_; }  // not for clients
  const WorkerLabel& label() const { return link_.label; }

  // The session's end also tells when the worker cannot be reached.
  std::shared_ptr<EngineSession> open_session(std::chrono::system_clock::time_point deadline,
                                              const std::string& traceparent,
                                              std::shared_ptr<EngineSession::Events> events);

 private:
  void run();
  // With the TLS files as they are now, if they have changed. Connections keep those that they began with.
  void renew_channel();
  // One look at a connected worker; how long until the next one is due.
  std::chrono::milliseconds inspect();
  std::shared_ptr<const ServedModel> fetch_model();
  std::optional<v1::GetStatusReply> fetch_status();
  void set_away(const std::string& why, FrontErrorCode code = FrontErrorCode::unavailable);
  // Away, for as long as its model takes to be read.
  void expect_soon();
  void set_serving(std::shared_ptr<const ServedModel> model);
  bool serves(const std::string& worker_id) const;
  bool stopping() const;
  bool take_look_now();
  void forget_status();

  // A call of the client's thread that the destructor can cancel.
  class Call;

  const WorkerLink link_;
  const std::string where_;
  const std::function<void()> on_change_;
  // The client's thread's own.
  std::shared_ptr<const service::TlsContents> shown_;  // of the TLS files, null: no TLS
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<const ServedModel> latest_;  // likewise: what was fetched last
  std::string refused_worker_;                 // likewise: the worker_id whose model cannot be served,
  std::optional<FrontError> refusal_;          // and why

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable sessions_ended_;
  std::shared_ptr<v1::Engine::Stub> stub_;
  std::shared_ptr<const ServedModel> serving_;  // null: away
  std::string why_away_;
  FrontErrorCode away_code_ = FrontErrorCode::unavailable;
  // When serving_ became null, or its model began to be read; the epoch: neither happened yet.
  std::chrono::system_clock::time_point expected_since_;
  std::string name_;  // of the model that it serves, or served last
  std::optional<v1::GetStatusReply> status_;
  grpc::ClientContext* running_call_ = nullptr;
  bool stop_ = false;
  bool look_now_ = false;  // the status is due at once
  uint64_t sessions_opened_ = 0;
  std::map<uint64_t, std::weak_ptr<EngineSession>> sessions_;  // those that gRPC has not ended

  std::thread thread_;
};

}  // namespace ete::front
