#include "services/worker/wire.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "engine/runtime/planner.h"
#include "services/common/limits.h"

namespace ete::worker {
namespace {

static_assert(std::endian::native == std::endian::little,
              "rows of logits and masks travel as they lie in memory");

constexpr size_t kMaxRequestId = 128;
// Of a reply: what a row takes beside its arrays, and an id with its logit at most.
constexpr uint64_t kRowOverheadBytes = 64;
constexpr uint64_t kTopBytes = 5 + sizeof(float);

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

std::string range_of(int64_t vocab_size) { return "[0, " + std::to_string(vocab_size) + ")"; }

std::vector<int32_t> checked_ids(const google::protobuf::RepeatedField<int32_t>& ids, const char* field,
                                 const ModelLimits& limits) {
  const auto outside = std::find_if(ids.begin(), ids.end(),
                                    [&limits](int32_t id) { return id < 0 || id >= limits.vocab_size; });
  if (outside != ids.end()) {
    refuse(std::string(field) + "[" + std::to_string(outside - ids.begin()) +
           "]: " + std::to_string(*outside) + " is not a token id, those are " + range_of(limits.vocab_size));
  }
  return {ids.begin(), ids.end()};
}

std::vector<uint64_t> checked_mask(const std::string& mask, const std::string& field,
                                   const ModelLimits& limits) {
  if (mask.empty()) return {};
  const size_t bytes = (static_cast<size_t>(limits.vocab_size) + 7) / 8;
  if (mask.size() != bytes) {
    refuse(field + ".allowed_mask: " + std::to_string(mask.size()) + " bytes, a vocabulary of " +
           std::to_string(limits.vocab_size) + " takes " + std::to_string(bytes) + ", or none");
  }
  std::vector<uint64_t> words((bytes + 7) / 8);
  std::memcpy(words.data(), mask.data(), bytes);
  // Bits past the last id name nothing.
  if (const int64_t rest = limits.vocab_size % 64; rest != 0) words.back() &= (uint64_t{1} << rest) - 1;
  if (std::all_of(words.begin(), words.end(), [](uint64_t word) { return word == 0; })) {
    refuse(field + ".allowed_mask: no id is allowed");
  }
  return words;
}

WantedRows checked_rows(v1::Wanted::Rows rows, const std::string& field) {
  switch (rows) {
    case v1::Wanted::LAST:
      return WantedRows::last;
    case v1::Wanted::NONE:
      return WantedRows::none;
    case v1::Wanted::ALL:
      return WantedRows::all;
    default:
      refuse(field + ".rows: " + std::to_string(static_cast<int>(rows)) + " is none of LAST, NONE, ALL");
  }
}

LogitsWanted checked_wanted(const v1::Wanted& wanted, const std::string& field, const ModelLimits& limits) {
  LogitsWanted checked;
  if (wanted.top_k() < 0 || wanted.top_k() > limits.vocab_size) {
    refuse(field + ".top_k: " + std::to_string(wanted.top_k()) + " is not in [0, " +
           std::to_string(limits.vocab_size) + "]");
  }
  checked.top_k = wanted.top_k();
  if (wanted.has_temperature()) checked.temperature = wanted.temperature();
  if (!std::isfinite(checked.temperature) || checked.temperature <= 0) {
    refuse(field + ".temperature: " + std::to_string(checked.temperature) +
           " is not a finite number above 0");
  }
  checked.extra_ids = checked_ids(wanted.extra_ids(), (field + ".extra_ids").c_str(), limits);
  checked.allowed_mask = checked_mask(wanted.allowed_mask(), field, limits);
  checked.full_row = wanted.full_row();
  return checked;
}

// `ids` is how many rows ALL would return, `last` how many LAST would.
void check_reply_size(WantedRows rows, const LogitsWanted& wanted, uint64_t ids, uint64_t last,
                      const std::string& field, const ModelLimits& limits) {
  const uint64_t count = rows == WantedRows::all ? ids : rows == WantedRows::last ? last : 0;
  const uint64_t row_bytes = kRowOverheadBytes + static_cast<uint64_t>(wanted.top_k) * kTopBytes +
                             wanted.extra_ids.size() * sizeof(float) +
                             (wanted.full_row ? static_cast<uint64_t>(limits.vocab_size) * sizeof(float) : 0);
  if (count != 0 && row_bytes > kMaxReplyBytes / count) {
    refuse(field + ": " + std::to_string(count) + " rows of " + std::to_string(row_bytes) +
           " bytes make a reply larger than " + std::to_string(kMaxReplyBytes) +
           " bytes: ask for fewer rows, a smaller top_k or no full_row");
  }
}

void check_request_id(const std::string& id) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
  if (id.empty() || id.size() > kMaxRequestId || !printable) {
    refuse("open.request_id: 1 to " + std::to_string(kMaxRequestId) + " bytes of printable ASCII, this has " +
           std::to_string(id.size()) + (printable ? "" : ", not all of them printable"));
  }
}

void write_row(const LogitsRow& row, v1::LogitsRow& message) {
  message.mutable_top_ids()->Add(row.top_ids.begin(), row.top_ids.end());
  message.mutable_top_logits()->Add(row.top_logits.begin(), row.top_logits.end());
  message.mutable_extra_logits()->Add(row.extra_logits.begin(), row.extra_logits.end());
  message.set_logsumexp(row.logsumexp);
  message.set_max_logit(row.max_logit);
  message.set_full_row(row.full.data(), row.full.size() * sizeof(float));
}

}  // namespace

void check_salt(const std::string& salt, const std::string& field) {
  if (salt.size() > service::kMostSaltBytes) {
    refuse(field + ": " + std::to_string(salt.size()) + " bytes; accepted: at most " +
           std::to_string(service::kMostSaltBytes));
  }
}

OpenRequest to_open_request(const v1::Open& open, const ModelLimits& limits) {
  OpenRequest request;
  check_request_id(open.request_id());
  if (open.prompt_ids_size() > limits.context) {
    throw Error(ErrorCode::resource_exhausted, "open.prompt_ids: " + std::to_string(open.prompt_ids_size()) +
                                                   " ids, a session holds " + std::to_string(limits.context) +
                                                   " positions");
  }
  request.request_id = open.request_id();
  request.prompt_ids = checked_ids(open.prompt_ids(), "open.prompt_ids", limits);
  check_salt(open.cache_salt(), "open.cache_salt");
  request.cache_salt = open.cache_salt();
  request.skip_prefix_cache = open.skip_prefix_cache();
  if (open.priority() < kBestPriority || open.priority() > kLastPriority) {
    refuse("open.priority: " + std::to_string(open.priority()) + " is not in [" +
           std::to_string(kBestPriority) + ", " + std::to_string(kLastPriority) + "]");
  }
  request.priority = open.priority();
  if (open.has_fork_of()) {
    const v1::Fork& fork = open.fork_of();
    if (fork.session() == 0) refuse("open.fork_of.session: 0 is no session; Opened.session names one");
    if (fork.has_length() && (fork.length() < 0 || fork.length() > limits.context)) {
      refuse("open.fork_of.length: " + std::to_string(fork.length()) + " is not in [0, " +
             std::to_string(limits.context) + "]");
    }
    request.fork_of = fork.session();
    request.fork_position = fork.has_length() ? fork.length() : -1;
  }
  request.rows = checked_rows(open.wanted().rows(), "open.wanted");
  request.wanted = checked_wanted(open.wanted(), "open.wanted", limits);
  check_reply_size(request.rows, request.wanted, request.prompt_ids.size(),
                   request.prompt_ids.empty() ? 0 : 1, "open.wanted", limits);
  return request;
}

StepRequest to_step_request(const v1::Step& step, const ModelLimits& limits) {
  StepRequest request;
  const int64_t count = step.ids_size();
  if (step.position() < 0) refuse("step.position: " + std::to_string(step.position()) + " is negative");
  if (count == 0) refuse("step.ids: at least one id is needed");
  if (count > limits.context || step.position() > limits.context - count) {
    throw Error(ErrorCode::resource_exhausted, "step: " + std::to_string(count) + " ids at position " +
                                                   std::to_string(step.position()) + ", a session holds " +
                                                   std::to_string(limits.context) + " positions");
  }
  const int64_t most_drafts = std::min(count - 1, kMaxDrafts);
  if (step.n_draft() < 0 || step.n_draft() > most_drafts) {
    refuse("step.n_draft: " + std::to_string(step.n_draft()) + " is not in [0, " +
           std::to_string(most_drafts) + "]: at least one id is committed, and at most " +
           std::to_string(kMaxDrafts) + " are drafts");
  }
  request.position = step.position();
  request.ids = checked_ids(step.ids(), "step.ids", limits);
  request.n_draft = step.n_draft();
  request.rows = checked_rows(step.wanted().rows(), "step.wanted");
  request.wanted = checked_wanted(step.wanted(), "step.wanted", limits);
  check_reply_size(request.rows, request.wanted, request.ids.size(),
                   static_cast<uint64_t>(request.n_draft) + 1, "step.wanted", limits);
  return request;
}

v1::SessionReply to_reply(const StepResult& result) {
  v1::SessionReply reply;
  v1::StepResult& message = *reply.mutable_step_result();
  message.set_position(result.position);
  message.set_length(result.length);
  message.set_reused_tokens(result.reused_tokens);
  message.mutable_timings()->set_queued_ms(result.timings.queued_ms);
  message.mutable_timings()->set_compute_ms(result.timings.compute_ms);
  message.mutable_timings()->set_passes(result.timings.passes);
  message.mutable_timings()->set_rows(result.timings.rows);
  message.mutable_rows()->Reserve(static_cast<int>(result.rows.size()));
  for (const LogitsRow& row : result.rows) write_row(row, *message.add_rows());
  return reply;
}

v1::SessionReply to_reply(const FullRow& row) {
  v1::SessionReply reply;
  reply.mutable_full_row()->set_position(row.position);
  reply.mutable_full_row()->set_logits(row.logits.data(), row.logits.size() * sizeof(float));
  return reply;
}

}  // namespace ete::worker
