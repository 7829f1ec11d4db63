#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "ete/v1/generation.pb.h"
#include "services/common/access.h"
#include "services/front/generation.h"
#include "services/front/metrics.h"
#include "services/front/request_registry.h"
#include "services/front/strand.h"
#include "services/front/text_pool.h"
#include "services/front/worker_pool.h"

namespace ete::front {

// One generation from a client's message to its last token, whatever carries it: keeps to the caller's
// limits, waits for a worker, validates, encodes the prompt (a long one in the pool), and joins a Generation
// to a session; to another one when its worker is lost, before the first token or where the client asked for
// it. Whoever derives from it is the client's end. Everything that happens, on whatever thread, becomes a
// task of the strand, so that nothing of one request is locked; the session holds the request until it has
// ended.
class RunningRequest : public EngineSession::Events,
                       public Generation::Sink,
                       public std::enable_shared_from_this<RunningRequest> {
 public:
  // What all requests of a front share; outlives them.
  struct Host {
    WorkerPool& workers;
    TextPool& texts;
    RequestRegistry& requests;
    Metrics& metrics;
  };

  void on_session_reply(v1::SessionReply reply) override;
  void on_session_end(const FrontError& reason) override;
  void on_reply(v1::GenerateReply reply) final;
  void on_end(const std::optional<FrontError>& error) final;
  // Any thread: somebody asked for the request's end. Its client is told.
  void abort();

 protected:
  using Clock = std::chrono::steady_clock;

  RunningRequest(const Host& host, service::Caller caller, std::chrono::system_clock::time_point deadline)
      : host_(host), caller_(std::move(caller)), deadline_(deadline) {}

  // What follows belongs to the strand.

  // Does `work`; what it throws ends the request.
  template <typename Work>
  void attempt(Work work) {
    if (const auto error = failure_of(work)) fail(*error);
  }
  // asked: when the client asked for it, which times count from.
  void begin(v1::GenerateRequest request, Clock::time_point asked = Clock::now());
  // Ends the request, at whatever stage it is, with its session.
  void fail(const FrontError& reason);
  // wants_more() turned true.
  void resume();
  bool ended() const { return ended_; }
  // Of Generation::Sink.
  virtual void deliver(v1::GenerateReply reply) = 0;
  // Last, once. Absent: the request finished.
  virtual void on_ended(const std::optional<FrontError>& error) = 0;

  // Any thread: the client is gone. Spares work that nobody waits for; fail() must still come.
  void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }
  Strand& strand() { return strand_; }

 private:
  // A request on its way from message to session.
  struct Start {
    v1::GenerateRequest request;
    std::shared_ptr<const ServedModel> model;
    GenerationRequest valid;
  };

  void name(const std::string& request_id);
  void prepare(std::shared_ptr<Start> start);
  void encode_in_pool(std::shared_ptr<Start> start);
  void open(Start& start);
  // The worker is lost: whether the request goes on at another one, or at this one once it is back.
  bool moves_on(const FrontError& reason);
  void move();
  void count(const v1::GenerateReply& reply);
  void tell_end(const std::optional<FrontError>& error);
  // Whether the client still waits. Any thread.
  bool wanted() const;

  const Host host_;
  const service::Caller caller_;
  const std::chrono::system_clock::time_point deadline_;
  std::atomic<bool> given_up_{false};
  Strand strand_;
  std::unique_ptr<RequestRegistry::Place> place_;  // from begin() to the end
  std::shared_ptr<EngineClient> worker_;
  std::shared_ptr<EngineSession> session_;
  std::optional<Generation> generation_;
  bool begun_counted_ = false;  // by the metrics
  bool admitted_ = false;       // counted by the caller's limits
  bool resume_ = false;         // the client asked for it
  int moves_ = 0;
  Clock::time_point begun_, first_token_, last_token_;
  int64_t reused_tokens_ = 0;
  bool ended_ = false;
};

}  // namespace ete::front
