#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ete/v1/engine.pb.h"
#include "ete/v1/generation.pb.h"
#include "services/front/draft_pace.h"
#include "services/front/engine_session.h"
#include "services/front/prompt_lookup.h"
#include "services/front/prompt_scorer.h"
#include "services/front/sampler.h"
#include "services/front/served_model.h"
#include "services/front/stop_matcher.h"
#include "services/front/token_constraint.h"
#include "services/front/tokenizer/stream_decoder.h"

namespace ete::front {

// A client's request, validated, its defaults filled in, its prompt encoded.
struct GenerationRequest {
  std::string request_id;           // the client's name for it
  std::vector<int32_t> prompt_ids;  // at least one, at most the context
  std::string cache_salt;
  bool skip_prefix_cache = false;
  int32_t priority = 0;  // of generation.proto
  SamplingParams sampling;
  std::optional<int32_t> logprobs;      // how many best ids beside each; absent: none asked
  std::optional<int64_t> max_tokens;    // absent: until the context is full
  std::vector<std::string> stops;       // 1 to 1,024 bytes each
  std::vector<int32_t> stop_token_ids;  // end the generation also when ignore_eos is set
  bool ignore_eos = false;              // go on after the model's end-of-generation ids
  OutputRules rules;
  bool prompt_logprobs = false;         // of the prompt's ids too, with as many best ones beside each
  std::optional<int32_t> draft_tokens;  // ids to guess a step; absent: as many as pay
};

// One request from prompt to last token: a state machine that is told of events and never waits. The text
// handed out continues the prompt's text: characters are whole, and nothing is said that a stop string may
// take back. Special tokens have no text. Prompt and output together fill at most the context. Not
// thread-safe: whoever owns it serialises the calls.
class Generation {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    // PromptInfo, then Pieces (one a token), then Finish unless the request fails.
    virtual void on_reply(v1::GenerateReply reply) = 0;
    // False: the reader is behind. No further token is begun until resume().
    virtual bool wants_more() = 0;
    // Last, once. Absent: the request finished.
    virtual void on_end(const std::optional<FrontError>& error) = 0;
  };

  // sink and session outlive it.
  Generation(std::shared_ptr<const ServedModel> model, GenerationRequest request, Sink& sink,
             EngineSession& session);

  void start();
  // What the session tells; see EngineSession::Events.
  void on_session_reply(const v1::SessionReply& reply);
  void on_session_end(const FrontError& reason);
  // The sink wants more again.
  void resume();
  // The session was lost: this one goes on from the prompt and the ids so far. It outlives the generation.
  void move_to(EngineSession& session);
  // Ends the request: the client's cancellation, or its deadline.
  void cancel(const FrontError& reason);

  const GenerationRequest& request() const { return request_; }
  const ServedModel& model() const { return *model_; }
  // The prompt's, then those generated.
  const std::vector<int32_t>& ids() const { return ids_; }
  int64_t generated() const { return generated_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Does `work`; what it throws ends the request.
  template <typename Work>
  void attempt(Work work);
  void handle(const v1::SessionReply& reply);
  void tell_prompt();
  void score_from_the_start();
  void score_next();
  void handle_score(const v1::StepResult& result);
  bool ends_with_the_prompt();
  void handle_step(const v1::StepResult& result);
  void handle_row(const std::string& little_endian);
  void draw_rows();
  std::optional<Sampled> draw(const v1::LogitsRow& row);
  bool take(const Sampled& sampled);
  bool goes_on(int32_t id);
  void open();
  void step();
  std::vector<int32_t> next_drafts() const;
  void fill_wanted(v1::Wanted* wanted) const;
  static std::vector<int32_t> ending_ids(const ServedModel& model, const GenerationRequest& request);
  bool ends(int32_t id) const;
  std::string certain_text(const std::string& decoded);
  std::string last_text();
  void emit(std::string text, const Sampled& sampled);
  void finish(v1::Finish finish);
  void end(const std::optional<FrontError>& error);
  v1::GenerationTimings timings() const;

  const std::shared_ptr<const ServedModel> model_;
  const GenerationRequest request_;
  Sink& sink_;
  EngineSession* session_;
  bool open_due_ = true;  // the session knows nothing yet
  bool opened_ = false;   // by what was sent last
  bool row_due_ = false;  // a FetchRow was sent
  TokenConstraint constraint_;
  std::vector<int32_t> ids_;  // the prompt's, then those generated
  Sampler sampler_;
  StopMatcher matcher_;
  StreamDecoder decoder_;
  std::string half_character_;  // certain bytes whose character is not

  bool ended_ = false;
  bool paused_ = false;
  int64_t budget_ = 0;  // tokens to generate at most
  int64_t generated_ = 0;
  int64_t reused_ = 0;
  int64_t rows_fetched_ = 0;
  int32_t last_id_ = 0;
  std::optional<PromptScorer> scorer_;  // while the prompt is scored
  std::optional<PromptLookup> lookup_;  // none: nothing is guessed
  DraftPace pace_;
  std::vector<int32_t> drafts_;  // of the step under way
  v1::StepResult result_;        // the last one: a row for the step's id and one for each draft
  size_t row_ = 0;               // of them, whose turn it is
  int64_t drafted_ = 0;
  int64_t accepted_drafts_ = 0;
  double queued_ms_ = 0;
  Clock::time_point started_, first_token_, last_token_;
  Clock::time_point stepped_;
  double step_ms_ = 0;  // from the last step to its answer
};

}  // namespace ete::front
