#include "services/front/validation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "services/common/limits.h"
#include "services/common/process.h"
#include "services/front/limits.h"

namespace ete::front {
namespace {

constexpr size_t kMostNameBytes = 128;
constexpr int kMostStops = 64;
constexpr size_t kMostStopBytes = 1024;
constexpr int kMostAllowedIds = 65'536;
constexpr int kMostBreakers = 64;
constexpr size_t kMostBreakerBytes = 64;
constexpr float kMostPenalty = 2.0f;

[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& accepted,
                         FrontErrorCode code = FrontErrorCode::invalid_argument) {
  throw FrontError(code, field + ": " + value + " is not accepted; expected " + accepted, field);
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// As a client can read it: quoted, not too long, control characters and what is not ASCII escaped.
std::string quoted(const std::string& bytes) {
  constexpr size_t kMost = 64;
  std::string out = "\"";
  for (size_t i = 0; i < std::min(bytes.size(), kMost); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte >= 0x20 && byte < 0x7f) {
      out += bytes[i];
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
      out += escaped;
    }
  }
  return out + (bytes.size() > kMost ? "...\"" : "\"");
}

std::string indexed(const std::string& field, int index) { return field + "[" + std::to_string(index) + "]"; }

void check_id(const std::string& field, int32_t id, int32_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    refuse(field, std::to_string(id), "a token id in [0, " + std::to_string(vocab_size) + ")");
  }
}

void check_ids(const std::string& field, const google::protobuf::RepeatedField<int32_t>& ids,
               int32_t vocab_size) {
  for (int i = 0; i < ids.size(); ++i) check_id(indexed(field, i), ids[i], vocab_size);
}

std::string request_name(const v1::GenerateRequest& request) {
  if (!request.has_request_id()) return service::random_id();
  const std::string& name = request.request_id();
  const bool printable = std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
  if (name.empty() || name.size() > kMostNameBytes || !printable) {
    refuse("request_id", quoted(name) + " (" + std::to_string(name.size()) + " bytes)",
           "1 to " + std::to_string(kMostNameBytes) + " bytes of printable ASCII");
  }
  return name;
}

void check_prompt_size(const std::string& field, size_t tokens, const ServedModel& model) {
  if (tokens > static_cast<uint64_t>(model.context)) {
    refuse(field, "a prompt of " + std::to_string(tokens) + " tokens",
           "at most the context of " + std::to_string(model.context), FrontErrorCode::context_exceeded);
  }
}

// A text that no tokenizing can make fit.
void check_text_size(const std::string& text, const ServedModel& model) {
  const auto context = static_cast<uint64_t>(model.context);
  const uint64_t longest = model.longest_token_bytes;
  if (longest == 0 || text.size() / longest < context || text.size() <= context * longest) return;
  refuse("text", std::to_string(text.size()) + " bytes",
         "at most " + std::to_string(context * longest) + ": the context of " + std::to_string(context) +
             " tokens, each of the longest one's " + std::to_string(longest) + " bytes",
         FrontErrorCode::context_exceeded);
}

std::vector<int32_t> ids_of(const v1::GenerateRequest& request, const ServedModel& model) {
  if (request.has_add_special()) {
    refuse("add_special", "a value beside tokens", "it with a text prompt only");
  }
  if (request.has_parse_special()) {
    refuse("parse_special", "a value beside tokens", "it with a text prompt only");
  }
  const auto& ids = request.tokens().ids();
  if (ids.empty()) refuse("tokens.ids", "an empty list", "at least one id");
  check_prompt_size("tokens.ids", static_cast<size_t>(ids.size()), model);
  check_ids("tokens.ids", ids, model.vocab_size);
  return {ids.begin(), ids.end()};
}

// Also refuses NaN.
float in_range(const std::string& field, float value, float low, float high) {
  if (!(value >= low && value <= high)) {
    refuse(field, number(value), "a number in [" + number(low) + ", " + number(high) + "]");
  }
  return value;
}

void read_bias(const v1::Sampling& sampling, int32_t vocab_size, SamplingParams& params) {
  for (const auto& [id, bias] : sampling.logit_bias()) {
    check_id("sampling.logit_bias: key", id, vocab_size);
    if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) {
      refuse("sampling.logit_bias[" + std::to_string(id) + "]", number(bias), "a finite number or -infinity");
    }
    params.logit_bias.emplace_back(id, bias);
  }
  // A map has no order of its own.
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
}

// Also refuses NaN.
float above(const std::string& field, float value, float low, float high) {
  if (!(value > low && value <= high)) {
    refuse(field, number(value), "a number in (" + number(low) + ", " + number(high) + "]");
  }
  return value;
}

// A field that means nothing without another one.
void needs(bool given, const std::string& field, bool other, const std::string& other_field) {
  if (given && !other) refuse(field, "a value", "it beside " + other_field + " only");
}

void read_dry(const v1::Sampling& s, const ServedModel& model, DryParams& dry) {
  constexpr float kMax = std::numeric_limits<float>::max();
  dry.multiplier = in_range("sampling.dry_multiplier", s.dry_multiplier(), 0, kMax);
  const bool on = s.has_dry_multiplier();
  needs(s.has_dry_base(), "sampling.dry_base", on, "dry_multiplier");
  needs(s.has_dry_allowed_length(), "sampling.dry_allowed_length", on, "dry_multiplier");
  needs(s.has_dry_range(), "sampling.dry_range", on, "dry_multiplier");
  needs(s.dry_sequence_breakers_size() > 0, "sampling.dry_sequence_breakers", on, "dry_multiplier");
  if (s.has_dry_base()) dry.base = in_range("sampling.dry_base", s.dry_base(), 1, kMax);
  if (s.has_dry_allowed_length()) dry.allowed_length = s.dry_allowed_length();
  if (dry.allowed_length < 1) {
    refuse("sampling.dry_allowed_length", std::to_string(dry.allowed_length), "at least 1");
  }
  if (s.has_dry_range()) dry.range = s.dry_range();
  if (dry.range < 1 || dry.range > kMostDryRange) {
    refuse("sampling.dry_range", std::to_string(dry.range),
           "an integer in [1, " + std::to_string(kMostDryRange) + "]");
  }
  if (s.dry_sequence_breakers_size() > kMostBreakers) {
    refuse("sampling.dry_sequence_breakers", std::to_string(s.dry_sequence_breakers_size()) + " texts",
           "at most " + std::to_string(kMostBreakers));
  }
  std::vector<std::string> breakers(s.dry_sequence_breakers().begin(), s.dry_sequence_breakers().end());
  for (size_t i = 0; i < breakers.size(); ++i) {
    if (!breakers[i].empty() && breakers[i].size() <= kMostBreakerBytes) continue;
    refuse(indexed("sampling.dry_sequence_breakers", static_cast<int>(i)),
           "a text of " + std::to_string(breakers[i].size()) + " bytes",
           "1 to " + std::to_string(kMostBreakerBytes));
  }
  if (breakers.empty()) breakers = {"\n", ":", "\"", "*"};
  dry.breaks = [tokenizer = model.tokenizer, breakers](int32_t id) {
    const std::string_view bytes = tokenizer->table().bytes(id);
    return std::any_of(breakers.begin(), breakers.end(), [&](const std::string& breaker) {
      return bytes.find(breaker) != std::string_view::npos;
    });
  };
}

void read_mirostat(const v1::Sampling& s, SamplingParams& p) {
  constexpr float kMax = std::numeric_limits<float>::max();
  needs(s.has_mirostat_eta(), "sampling.mirostat_eta", s.has_mirostat_tau(), "mirostat_tau");
  if (!s.has_mirostat_tau()) return;
  p.mirostat_tau = above("sampling.mirostat_tau", s.mirostat_tau(), 0, kMax);
  if (s.has_mirostat_eta()) p.mirostat_eta = above("sampling.mirostat_eta", s.mirostat_eta(), 0, 1);
  const bool cuts = p.top_k > 0 || p.top_p < 1 || p.min_p > 0 || p.typical_p < 1 || p.xtc_probability > 0;
  if (cuts || p.temperature == 0) {
    refuse("sampling.mirostat_tau", number(p.mirostat_tau),
           "it without top_k, top_p, min_p, typical_p, XTC and temperature 0");
  }
}

// Those that SamplingChain and RepetitionGuard know.
void read_chain(const v1::Sampling& s, const ServedModel& model, SamplingParams& p) {
  constexpr float kMax = std::numeric_limits<float>::max();
  if (s.has_typical_p()) p.typical_p = above("sampling.typical_p", s.typical_p(), 0, 1);
  p.xtc_probability = in_range("sampling.xtc_probability", s.xtc_probability(), 0, 1);
  needs(s.has_xtc_threshold(), "sampling.xtc_threshold", s.has_xtc_probability(), "xtc_probability");
  if (s.has_xtc_threshold()) p.xtc_threshold = above("sampling.xtc_threshold", s.xtc_threshold(), 0, 0.5f);
  read_dry(s, model, p.dry);
  const float range = s.dynamic_temperature_range();
  p.dynamic_temperature_range = in_range("sampling.dynamic_temperature_range", range, 0, p.temperature);
  needs(s.has_dynamic_temperature_exponent(), "sampling.dynamic_temperature_exponent",
        s.has_dynamic_temperature_range(), "dynamic_temperature_range");
  if (s.has_dynamic_temperature_exponent()) {
    p.dynamic_temperature_exponent =
        above("sampling.dynamic_temperature_exponent", s.dynamic_temperature_exponent(), 0, kMax);
  }
  read_mirostat(s, p);
}

SamplingParams sampling_of(const v1::Sampling& s, const ServedModel& model) {
  constexpr float kMax = std::numeric_limits<float>::max();
  SamplingParams p;
  if (s.has_temperature()) p.temperature = in_range("sampling.temperature", s.temperature(), 0, kMax);
  if (s.top_k() < 0) refuse("sampling.top_k", std::to_string(s.top_k()), "at least 0 (0: all ids)");
  p.top_k = s.top_k();
  if (s.has_top_p()) p.top_p = above("sampling.top_p", s.top_p(), 0, 1);
  p.min_p = in_range("sampling.min_p", s.min_p(), 0, 1);
  if (s.has_repetition_penalty()) {
    p.repetition_penalty = above("sampling.repetition_penalty", s.repetition_penalty(), 0, kMax);
  }
  p.presence_penalty =
      in_range("sampling.presence_penalty", s.presence_penalty(), -kMostPenalty, kMostPenalty);
  p.frequency_penalty =
      in_range("sampling.frequency_penalty", s.frequency_penalty(), -kMostPenalty, kMostPenalty);
  read_bias(s, model.vocab_size, p);
  read_chain(s, model, p);
  if (s.has_seed()) {
    p.seed = s.seed();
  } else {
    std::random_device device;
    p.seed = (uint64_t{device()} << 32) | device();
  }
  return p;
}

void read_stopping(const v1::Stopping& stopping, int32_t vocab_size, GenerationRequest& out) {
  if (stopping.has_max_tokens()) {
    if (stopping.max_tokens() < 0) {
      refuse("stopping.max_tokens", std::to_string(stopping.max_tokens()), "at least 0");
    }
    out.max_tokens = stopping.max_tokens();
  }
  if (stopping.stop_size() > kMostStops) {
    refuse("stopping.stop", std::to_string(stopping.stop_size()) + " strings",
           "at most " + std::to_string(kMostStops));
  }
  for (int i = 0; i < stopping.stop_size(); ++i) {
    const std::string& stop = stopping.stop(i);
    if (stop.empty() || stop.size() > kMostStopBytes) {
      refuse(indexed("stopping.stop", i), "a string of " + std::to_string(stop.size()) + " bytes",
             "1 to " + std::to_string(kMostStopBytes));
    }
    out.stops.push_back(stop);
  }
  out.ignore_eos = stopping.ignore_eos();
  if (stopping.stop_token_ids_size() > kMostLogprobs) {
    refuse("stopping.stop_token_ids", std::to_string(stopping.stop_token_ids_size()) + " ids",
           "at most " + std::to_string(kMostLogprobs));
  }
  check_ids("stopping.stop_token_ids", stopping.stop_token_ids(), vocab_size);
  out.stop_token_ids.assign(stopping.stop_token_ids().begin(), stopping.stop_token_ids().end());
}

void read_rules(const v1::GenerateRequest& request, const ServedModel& model, GenerationRequest& out) {
  if (request.has_grammar()) out.rules = read_grammar(request.grammar());
  const auto& ids = request.sampling().allowed_token_ids();
  if (ids.size() > kMostAllowedIds) {
    refuse("sampling.allowed_token_ids", std::to_string(ids.size()) + " ids",
           "at most " + std::to_string(kMostAllowedIds));
  }
  check_ids("sampling.allowed_token_ids", ids, model.vocab_size);
  out.rules.allowed_ids.assign(ids.begin(), ids.end());
  const int32_t least = request.stopping().min_tokens();
  if (least < 0) refuse("stopping.min_tokens", std::to_string(least), "at least 0");
  if (out.max_tokens && least > *out.max_tokens) {
    refuse("stopping.min_tokens", std::to_string(least),
           "at most max_tokens, " + std::to_string(*out.max_tokens));
  }
  out.rules.min_tokens = least;
}

}  // namespace

GenerationRequest validate(const v1::GenerateRequest& request, const ServedModel& model) {
  GenerationRequest out;
  out.request_id = request_name(request);
  if (request.has_model() && request.model() != model.name) {
    throw FrontError(FrontErrorCode::unknown_model,
                     "model: " + quoted(request.model()) + " is not accepted; expected " +
                         quoted(model.name) + ", which is served",
                     "model");
  }
  out.sampling = sampling_of(request.sampling(), model);
  read_stopping(request.stopping(), model.vocab_size, out);
  read_rules(request, model, out);
  if (request.has_logprobs()) {
    const int32_t most = std::min(kMostLogprobs, model.vocab_size);
    if (request.logprobs().top() < 0 || request.logprobs().top() > most) {
      refuse("logprobs.top", std::to_string(request.logprobs().top()),
             "an integer in [0, " + std::to_string(most) + "]");
    }
    out.logprobs = request.logprobs().top();
    out.prompt_logprobs = request.logprobs().prompt();
  }
  if (request.cache_salt().size() > service::kMostSaltBytes) {
    refuse("cache_salt", std::to_string(request.cache_salt().size()) + " bytes",
           "at most " + std::to_string(service::kMostSaltBytes));
  }
  out.cache_salt = request.cache_salt();
  out.skip_prefix_cache = request.skip_prefix_cache();
  if (request.priority() < kBestPriority || request.priority() > kLastPriority) {
    refuse("priority", std::to_string(request.priority()),
           "an integer in [" + std::to_string(kBestPriority) + ", " + std::to_string(kLastPriority) + "]");
  }
  out.priority = request.priority();
  if (request.has_draft_tokens()) {
    out.draft_tokens = request.draft_tokens();
    if (*out.draft_tokens < 0 || *out.draft_tokens > kMostDrafts) {
      refuse("draft_tokens", std::to_string(*out.draft_tokens),
             "an integer in [0, " + std::to_string(kMostDrafts) + "]");
    }
  }
  out.prompt_progress = request.prompt_progress();
  switch (request.prompt_case()) {
    case v1::GenerateRequest::PROMPT_NOT_SET:
      refuse("prompt", "nothing", "text or tokens");
    case v1::GenerateRequest::kText:
      check_text_size(request.text(), model);
      break;
    case v1::GenerateRequest::kTokens:
      out.prompt_ids = ids_of(request, model);
      break;
  }
  return out;
}

std::vector<int32_t> encode_prompt(const v1::GenerateRequest& request, const ServedModel& model,
                                   std::function<void()> on_progress) {
  EncodeOptions options{!request.has_add_special() || request.add_special(), request.parse_special()};
  options.on_progress = std::move(on_progress);
  std::vector<int32_t> ids = model.tokenizer->encode(request.text(), options);
  if (ids.empty()) {
    refuse("text", quoted(request.text()),
           "text of at least one token: this model puts none before the text, or add_special is false");
  }
  check_prompt_size("text", ids.size(), model);
  check_ids("text: token", {ids.begin(), ids.end()}, model.vocab_size);
  return ids;
}

EncodeOptions validate(const v1::TokenizeRequest& request) {
  if (request.text().size() > kMostTokenizeBytes) {
    refuse("text", std::to_string(request.text().size()) + " bytes",
           "at most " + std::to_string(kMostTokenizeBytes));
  }
  return {!request.has_add_special() || request.add_special(), request.parse_special()};
}

std::vector<int32_t> validate(const v1::DetokenizeRequest& request, const ServedModel& model) {
  if (request.ids_size() > kMostDetokenizeIds) {
    refuse("ids", std::to_string(request.ids_size()) + " ids",
           "at most " + std::to_string(kMostDetokenizeIds));
  }
  check_ids("ids", request.ids(), model.vocab_size);
  size_t bytes = 0;
  for (const int32_t id : request.ids()) bytes += model.tokenizer->table().bytes(id).size();
  if (bytes > kMostDetokenizedBytes) {
    refuse("ids", "a text of " + std::to_string(bytes) + " bytes",
           "ids of at most " + std::to_string(kMostDetokenizedBytes) + " bytes");
  }
  return {request.ids().begin(), request.ids().end()};
}

}  // namespace ete::front
