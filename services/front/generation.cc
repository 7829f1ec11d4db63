#include "services/front/generation.h"

#include <algorithm>
#include <utility>

#include "services/common/process.h"
#include "services/front/floats.h"
#include "services/front/token_logprobs.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr size_t kMostIdBytes = 128;  // of engine.proto's Open.request_id

double milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double per_second(int64_t count, double ms) {
  return count > 0 && ms > 0 ? 1000.0 * static_cast<double>(count) / ms : 0;
}

// Clients may choose equal names; the worker needs unique ones, and its log should still tell whose a session
// is.
std::string session_name(const std::string& request_id) {
  const std::string unique = service::random_id();
  return request_id.substr(0, kMostIdBytes - unique.size() - 1) + "." + unique;
}

template <typename T>
std::span<const T> span_of(const google::protobuf::RepeatedField<T>& field) {
  return {field.data(), static_cast<size_t>(field.size())};
}

}  // namespace

Generation::Generation(std::shared_ptr<const ServedModel> model, GenerationRequest request, Sink& sink,
                       EngineSession& session)
    : model_(std::move(model)),
      request_(std::move(request)),
      sink_(sink),
      session_(&session),
      constraint_(model_, request_.rules, ending_ids(*model_, request_)),
      ids_(request_.prompt_ids),
      sampler_(request_.sampling, model_->vocab_size, request_.prompt_ids, request_.logprobs),
      matcher_(request_.stops),
      decoder_(*model_->tokenizer, true),
      pace_(request_.draft_tokens) {
  const int64_t room = model_->context - static_cast<int64_t>(request_.prompt_ids.size());
  budget_ = std::min(request_.max_tokens.value_or(room), room);
  // The output continues the prompt's text: whether its first space belongs to it depends on what stands
  // before.
  for (int32_t id : request_.prompt_ids) decoder_.push(id);
  // A grammar reads the ids' own bytes.
  if (constraint_.has_grammar()) decoder_.begin_text();
  sampler_.allow(constraint_.allowed());
  if (request_.draft_tokens != 0 && sampler_.asks_alike()) lookup_.emplace(request_.prompt_ids);
  score_from_the_start();
}

void Generation::score_from_the_start() {
  if (!request_.prompt_logprobs || request_.prompt_ids.size() <= 1) return;
  scorer_.emplace(request_.prompt_ids, request_.logprobs.value_or(0));
}

std::vector<int32_t> Generation::ending_ids(const ServedModel& model, const GenerationRequest& request) {
  std::vector<int32_t> ids = request.stop_token_ids;
  if (!request.ignore_eos) ids.insert(ids.end(), model.eos_token_ids.begin(), model.eos_token_ids.end());
  return ids;
}

void Generation::start() {
  started_ = Clock::now();
  if (!scorer_) tell_prompt();
  // An empty text needs no pass.
  if (!scorer_ && budget_ > 0 && ends_with_the_prompt()) return;
  open();
}

void Generation::open() {
  open_due_ = false;
  opened_ = true;
  row_due_ = false;
  drafts_.clear();
  if (scorer_) score_from_the_start();
  v1::SessionRequest message;
  v1::Open* open = message.mutable_open();
  open->set_request_id(session_name(request_.request_id));
  open->set_cache_salt(request_.cache_salt);
  open->set_skip_prefix_cache(request_.skip_prefix_cache);
  open->set_priority(request_.priority);
  if (!scorer_) {
    open->mutable_prompt_ids()->Add(ids_.begin(), ids_.end());
    fill_wanted(open->mutable_wanted());
  }
  session_->send(std::move(message));
}

void Generation::tell_prompt() {
  v1::GenerateReply reply;
  v1::PromptInfo* info = reply.mutable_prompt();
  info->set_request_id(request_.request_id);
  info->mutable_prompt_ids()->Add(request_.prompt_ids.begin(), request_.prompt_ids.end());
  info->set_seed(request_.sampling.seed);
  info->set_model(model_->name);
  if (scorer_) info->mutable_logprobs()->Add(scorer_->scores().begin(), scorer_->scores().end());
  sink_.on_reply(std::move(reply));
}

void Generation::score_next() {
  v1::SessionRequest message;
  *message.mutable_step() = scorer_->next();
  session_->send(std::move(message));
}

// Where nothing is to be generated, or the grammar allows nothing: the end, without a draw.
bool Generation::ends_with_the_prompt() {
  if (budget_ > 0 && !constraint_.over()) return false;
  first_token_ = last_token_ = Clock::now();
  v1::Finish done;
  done.set_reason(budget_ > 0                ? v1::FINISH_REASON_GRAMMAR
                  : request_.max_tokens == 0 ? v1::FINISH_REASON_LENGTH
                                             : v1::FINISH_REASON_CONTEXT_FULL);
  finish(std::move(done));
  return true;
}

void Generation::handle_score(const v1::StepResult& result) {
  if (scorer_->scores().empty()) queued_ms_ = result.timings().queued_ms();
  if (!scorer_->take(result)) return score_next();
  tell_prompt();
  scorer_.reset();
  if (!ends_with_the_prompt()) handle_row(result.rows(result.rows_size() - 1).full_row());
}

void Generation::fill_wanted(v1::Wanted* wanted) const {
  if (budget_ == 0) {
    wanted->set_rows(v1::Wanted::NONE);
    return;
  }
  const LogitsQuery& query = sampler_.query();
  wanted->set_rows(v1::Wanted::LAST);
  wanted->set_top_k(query.top_k);
  wanted->set_temperature(query.temperature);
  wanted->mutable_extra_ids()->Add(query.extra_ids.begin(), query.extra_ids.end());
  if (query.allowed != nullptr) wanted->set_allowed_mask(query.allowed->mask());
  wanted->set_full_row(query.full_row);
}

void Generation::on_session_reply(const v1::SessionReply& reply) {
  if (!ended_) attempt([&] { handle(reply); });
}

template <typename Work>
void Generation::attempt(Work work) {
  if (const auto error = failure_of(work)) end(*error);
}

void Generation::on_session_end(const FrontError& reason) { end(reason); }

void Generation::cancel(const FrontError& reason) { end(reason); }

void Generation::resume() {
  if (ended_ || !paused_) return;
  paused_ = false;
  attempt([this] { step(); });
}

void Generation::move_to(EngineSession& session) {
  session_ = &session;
  open_due_ = true;
  // Else resume() goes on.
  if (!ended_ && !paused_) attempt([this] { open(); });
}

void Generation::handle(const v1::SessionReply& reply) {
  switch (reply.reply_case()) {
    case v1::SessionReply::kOpened:
      if (scorer_) score_next();
      return;
    case v1::SessionReply::kStepResult:
      return handle_step(reply.step_result());
    case v1::SessionReply::kFullRow:
      if (!std::exchange(row_due_, false)) {
        throw FrontError(FrontErrorCode::internal, "the worker sent a row that was not asked for");
      }
      ++rows_fetched_;
      return handle_row(reply.full_row().logits());
    case v1::SessionReply::REPLY_NOT_SET:
      break;
  }
  throw FrontError(FrontErrorCode::internal, "the worker sent a reply of an unknown kind");
}

void Generation::handle_step(const v1::StepResult& result) {
  if (scorer_) return handle_score(result);
  const auto prompt = static_cast<int64_t>(request_.prompt_ids.size());
  if (generated_ == 0) {
    queued_ms_ = result.timings().queued_ms();
    reused_ = result.reused_tokens();
  }
  if (ends_with_the_prompt()) return;
  const auto drafts = static_cast<int64_t>(drafts_.size());
  if (result.rows_size() != 1 + drafts || result.length() != prompt + generated_ + drafts) {
    throw FrontError(FrontErrorCode::internal, "the worker answered a step with " +
                                                   std::to_string(result.rows_size()) + " rows at length " +
                                                   std::to_string(result.length()) + ", expected " +
                                                   std::to_string(1 + drafts) + " at length " +
                                                   std::to_string(prompt + generated_ + drafts));
  }
  result_ = result;
  step_ms_ = milliseconds(Clock::now() - stepped_);
  row_ = 0;
  draw_rows();
}

// From the last step's rows, for as long as what was drawn is what was guessed.
void Generation::draw_rows() {
  while (true) {
    const std::optional<Sampled> sampled = draw(result_.rows(static_cast<int>(row_)));
    if (!sampled) {
      v1::SessionRequest fetch;
      fetch.mutable_fetch_row()->set_position(result_.position() + static_cast<int64_t>(row_));
      row_due_ = true;
      return session_->send(std::move(fetch));
    }
    if (!take(*sampled)) return;
  }
}

std::optional<Sampled> Generation::draw(const v1::LogitsRow& row) {
  if (sampler_.query().full_row) return sampler_.draw_full(floats_of(row.full_row()));
  return sampler_.draw(
      {span_of(row.top_ids()), span_of(row.top_logits()), span_of(row.extra_logits()), row.logsumexp()});
}

void Generation::handle_row(const std::string& little_endian) {
  if (take(sampler_.draw_full(floats_of(little_endian)))) draw_rows();
}

bool Generation::ends(int32_t id) const {
  const auto holds = [id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  return (!request_.ignore_eos && holds(model_->eos_token_ids)) || holds(request_.stop_token_ids);
}

// Decoded text -> what of all text so far has become certain and ends at a character's end.
std::string Generation::certain_text(const std::string& decoded) {
  half_character_ += matcher_.push(decoded);
  std::string text;
  half_character_.erase(0, append_lossy(text, half_character_, InvalidBytes::per_sequence, false));
  return text;
}

// No more ids come: everything held back becomes certain.
std::string Generation::last_text() {
  std::string text = certain_text(decoder_.flush());
  if (matcher_.matched()) return text;
  half_character_ += matcher_.flush();
  append_lossy(text, std::exchange(half_character_, {}), InvalidBytes::per_sequence, true);
  return text;
}

// Whether the next draw is from the next row.
bool Generation::take(const Sampled& sampled) {
  last_token_ = Clock::now();
  if (generated_ == 0) first_token_ = last_token_;
  ++generated_;
  last_id_ = sampled.id;
  ids_.push_back(sampled.id);

  v1::Finish done;
  std::string text;
  if (ends(sampled.id)) {
    done.set_reason(v1::FINISH_REASON_STOP_TOKEN);
    done.set_stop_token_id(sampled.id);
    text = last_text();
  } else {
    text = certain_text(decoder_.push(sampled.id));
    constraint_.accept(sampled.id);
    if (constraint_.over()) {
      done.set_reason(v1::FINISH_REASON_GRAMMAR);
    } else if (generated_ == budget_) {
      done.set_reason(generated_ == request_.max_tokens ? v1::FINISH_REASON_LENGTH
                                                        : v1::FINISH_REASON_CONTEXT_FULL);
    }
    const bool last = done.reason() != v1::FINISH_REASON_UNSPECIFIED;
    if (last && !matcher_.matched()) text += last_text();
  }
  if (matcher_.matched()) {
    done.set_reason(v1::FINISH_REASON_STOP_STRING);
    done.set_stop(request_.stops[*matcher_.matched()]);
  }
  emit(std::move(text), sampled);
  if (done.reason() != v1::FINISH_REASON_UNSPECIFIED) {
    finish(std::move(done));
    return false;
  }
  return goes_on(sampled.id);
}

// After an id that does not end the text: true when its draft was right, and its row is here.
bool Generation::goes_on(int32_t id) {
  const bool guessed = row_ < drafts_.size() && drafts_[row_] == id;
  sampler_.accept(id, guessed);
  if (lookup_) lookup_->accept(id);
  if (guessed) {
    ++row_;
    ++accepted_drafts_;
    return true;
  }
  if (!opened_) pace_.note(static_cast<int>(drafts_.size()), static_cast<int>(row_), step_ms_);
  sampler_.allow(constraint_.allowed());
  if (sink_.wants_more()) {
    step();
  } else {
    paused_ = true;
  }
  return false;
}

void Generation::emit(std::string text, const Sampled& sampled) {
  v1::GenerateReply reply;
  v1::Piece* piece = reply.mutable_piece();
  piece->set_text(std::move(text));
  piece->add_ids(sampled.id);
  if (sampled.logprobs) *piece->add_logprobs() = token_logprobs(sampled.id, *sampled.logprobs);
  sink_.on_reply(std::move(reply));
}

void Generation::step() {
  if (open_due_) return open();
  opened_ = false;
  v1::SessionRequest message;
  v1::Step* step = message.mutable_step();
  step->set_position(static_cast<int64_t>(request_.prompt_ids.size()) + generated_ - 1);
  step->add_ids(last_id_);
  drafts_ = next_drafts();
  step->mutable_ids()->Add(drafts_.begin(), drafts_.end());
  step->set_n_draft(static_cast<int32_t>(drafts_.size()));
  drafted_ += static_cast<int64_t>(drafts_.size());
  fill_wanted(step->mutable_wanted());
  stepped_ = Clock::now();
  session_->send(std::move(message));
}

// What one step yields may fill the budget, never more.
std::vector<int32_t> Generation::next_drafts() const {
  const int64_t most = std::min<int64_t>(pace_.drafts(), budget_ - generated_ - 1);
  return lookup_ && most > 0 ? lookup_->guess(static_cast<size_t>(most)) : std::vector<int32_t>();
}

v1::GenerationTimings Generation::timings() const {
  v1::GenerationTimings timings;
  timings.set_queued_ms(queued_ms_);
  timings.set_prefill_ms(std::max(0.0, milliseconds(first_token_ - started_) - queued_ms_));
  timings.set_decode_ms(milliseconds(last_token_ - first_token_));
  const int64_t computed = static_cast<int64_t>(request_.prompt_ids.size()) - reused_;
  timings.set_prefill_tokens_per_second(per_second(computed, timings.prefill_ms()));
  timings.set_decode_tokens_per_second(per_second(generated_ - 1, timings.decode_ms()));
  timings.set_full_rows_fetched(rows_fetched_);
  timings.set_drafted_tokens(drafted_);
  timings.set_accepted_draft_tokens(accepted_drafts_);
  return timings;
}

void Generation::finish(v1::Finish finish) {
  v1::GenerateReply reply;
  finish.set_prompt_tokens(static_cast<int64_t>(request_.prompt_ids.size()));
  finish.set_generated_tokens(generated_);
  finish.set_reused_tokens(reused_);
  *finish.mutable_timings() = timings();
  *reply.mutable_finish() = std::move(finish);
  sink_.on_reply(std::move(reply));
  end(std::nullopt);
}

void Generation::end(const std::optional<FrontError>& error) {
  if (ended_) return;
  ended_ = true;
  if (error) {
    session_->cancel();
  } else {
    session_->finish();
  }
  sink_.on_end(error);
}

}  // namespace ete::front
