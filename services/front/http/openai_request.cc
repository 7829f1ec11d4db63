#include "services/front/http/openai_request.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "services/front/front_error.h"
#include "services/front/http/response_format.h"
#include "services/front/limits.h"

namespace ete::front {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt32Min = std::numeric_limits<int32_t>::min();
constexpr int32_t kCompletionTokens = 16;  // OpenAI's default for /v1/completions

struct NumberField {
  const char* name;
  void (v1::Sampling::*set)(float);
};
constexpr NumberField kNumbers[] = {
    {"temperature", &v1::Sampling::set_temperature},
    {"top_p", &v1::Sampling::set_top_p},
    {"min_p", &v1::Sampling::set_min_p},
    {"presence_penalty", &v1::Sampling::set_presence_penalty},
    {"frequency_penalty", &v1::Sampling::set_frequency_penalty},
    {"repetition_penalty", &v1::Sampling::set_repetition_penalty},
    {"typical_p", &v1::Sampling::set_typical_p},
    {"xtc_probability", &v1::Sampling::set_xtc_probability},
    {"xtc_threshold", &v1::Sampling::set_xtc_threshold},
    {"dry_multiplier", &v1::Sampling::set_dry_multiplier},
    {"dry_base", &v1::Sampling::set_dry_base},
    {"mirostat_tau", &v1::Sampling::set_mirostat_tau},
    {"mirostat_eta", &v1::Sampling::set_mirostat_eta},
    {"dynamic_temperature_range", &v1::Sampling::set_dynamic_temperature_range},
    {"dynamic_temperature_exponent", &v1::Sampling::set_dynamic_temperature_exponent},
};

// A list of integers, as ids.
v1::TokenIds ids_of(const RequestJson& list, const std::string& path) {
  v1::TokenIds ids;
  for (const RequestJson& value : list) {
    if (!value.is_number_integer() || value > kInt32Max || value < kInt32Min) {
      refuse_field(path + "[" + std::to_string(ids.ids_size()) + "]", shown(value), "a token id");
    }
    ids.add_ids(value.get<int32_t>());
  }
  return ids;
}

void read_bias(JsonFields& fields, v1::Sampling& sampling) {
  const RequestJson* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  const JsonFields checked(*bias, fields.path_of("logit_bias"));
  for (const auto& [key, value] : bias->items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      refuse_field("logit_bias", "the key " + shown(key), "token ids as keys");
    }
    if (value.is_null()) continue;
    (*sampling.mutable_logit_bias())[id] = static_cast<float>(number_of(value, checked.path_of(key)));
  }
}

void read_sampling(JsonFields& fields, v1::Sampling& sampling) {
  // -1 is how others write "all".
  if (const auto value = fields.integer("top_k", -1, kInt32Max)) {
    sampling.set_top_k(static_cast<int32_t>(std::max<int64_t>(*value, 0)));
  }
  for (const auto& [name, set] : kNumbers) {
    if (const auto value = fields.number(name)) (sampling.*set)(static_cast<float>(*value));
  }
  const auto length = fields.integer("dry_allowed_length", 1, kInt32Max);
  if (length) sampling.set_dry_allowed_length(static_cast<int32_t>(*length));
  const auto range = fields.integer("dry_range", 1, kMostDryRange);
  if (range) sampling.set_dry_range(static_cast<int32_t>(*range));
  if (const RequestJson* breakers = fields.find("dry_sequence_breakers"); breakers != nullptr) {
    if (!breakers->is_array()) refuse_field("dry_sequence_breakers", shown(*breakers), "a list of strings");
    for (const RequestJson& one : *breakers) {
      if (!one.is_string()) refuse_field("dry_sequence_breakers", shown(one), "strings");
      sampling.add_dry_sequence_breakers(one.get<std::string>());
    }
  }
  const auto seed =
      fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  if (seed) sampling.set_seed(static_cast<uint64_t>(*seed));
  read_bias(fields, sampling);
  if (const RequestJson* ids = fields.find("allowed_token_ids"); ids != nullptr) {
    if (!ids->is_array() || ids->empty())
      refuse_field("allowed_token_ids", shown(*ids), "a list of token ids");
    const v1::TokenIds read = ids_of(*ids, "allowed_token_ids");
    *sampling.mutable_allowed_token_ids() = read.ids();
  }
}

void read_stopping(JsonFields& fields, v1::Stopping& stopping) {
  if (const RequestJson* stop = fields.find("stop"); stop != nullptr && stop->is_array()) {
    for (const RequestJson& value : *stop) {
      if (!value.is_string()) {
        refuse_field("stop[" + std::to_string(stopping.stop_size()) + "]", shown(value), "a string");
      }
      stopping.add_stop(value.get<std::string>());
    }
  } else if (stop != nullptr && *stop != "") {  // which is how some front ends write none
    if (!stop->is_string()) refuse_field("stop", shown(*stop), "a string or a list of strings");
    stopping.add_stop(stop->get<std::string>());
  }
  if (const auto value = fields.boolean("ignore_eos")) stopping.set_ignore_eos(*value);
  if (const auto value = fields.integer("min_tokens", 0, kInt32Max)) {
    stopping.set_min_tokens(static_cast<int32_t>(*value));
  }
  if (const RequestJson* ids = fields.find("stop_token_ids"); ids != nullptr) {
    if (!ids->is_array()) refuse_field("stop_token_ids", shown(*ids), "a list of token ids");
    const v1::TokenIds read = ids_of(*ids, "stop_token_ids");
    *stopping.mutable_stop_token_ids() = read.ids();
  }
}

void read_streaming(JsonFields& fields, OpenAiRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const RequestJson* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!request.stream) refuse_field("stream_options", shown(*options), "it with \"stream\": true only");
  JsonFields values(*options, "stream_options");
  request.include_usage = values.boolean("include_usage").value_or(false);
  request.usage_so_far = values.boolean("continuous_usage_stats").value_or(false);
  if (request.usage_so_far && !request.include_usage) {
    refuse_field("stream_options.continuous_usage_stats", "true", "it with \"include_usage\": true only");
  }
  values.ignore("include_obfuscation");
  values.refuse_others();
}

// Where nothing is streamed there is nothing to tell it in.
void read_progress(JsonFields& fields, OpenAiRequest& request) {
  const bool wanted = fields.boolean("return_progress").value_or(false);
  if (wanted && request.stream) request.settings.set_prompt_progress(true);
}

}  // namespace

void read_common(JsonFields& fields, OpenAiRequest& request) {
  v1::GenerateRequest& settings = request.settings;
  if (auto model = fields.string("model")) settings.set_model(std::move(*model));
  read_sampling(fields, *settings.mutable_sampling());
  read_stopping(fields, *settings.mutable_stopping());
  read_streaming(fields, request);
  read_response_format(fields, settings);
  request.n = static_cast<int>(fields.integer("n", 1, OpenAiRequest::kMostChoices).value_or(1));
  if (const auto priority = fields.integer("priority", kBestPriority, kLastPriority)) {
    settings.set_priority(static_cast<int32_t>(*priority));
  }
  if (const auto drafts = fields.integer("draft_tokens", 0, kMostDrafts)) {
    settings.set_draft_tokens(static_cast<int32_t>(*drafts));
  }
  if (auto salt = fields.string("cache_salt")) settings.set_cache_salt(std::move(*salt));
  if (!fields.boolean("cache_prompt").value_or(true)) settings.set_skip_prefix_cache(true);
  if (const auto value = fields.boolean("resume")) settings.set_resume(*value);
  for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier",
                           "prompt_cache_key", "prompt_cache_retention"}) {
    fields.ignore(name);
  }
}

void limit_tokens(int64_t most, v1::Stopping& stopping) {
  if (most != kNoLimit) stopping.set_max_tokens(static_cast<int32_t>(most));
}

void refuse_two_rules(OpenAiRequest& request, const std::string& rules) {
  if (request.chat->tools.forced.is_null()) return;
  if (request.settings.has_grammar()) {
    refuse_field("tool_choice", "a call that has to be made, beside " + rules + " or grammar",
                 "none or auto");
  }
  request.names.schema = "tools";
}

namespace {

void read_prompts(JsonFields& fields, OpenAiRequest& request) {
  const RequestJson* prompt = fields.find("prompt");
  const std::string accepted = "a string, a list of strings, a list of token ids or a list of such lists";
  if (prompt == nullptr) refuse_field("prompt", "nothing", accepted);
  if (prompt->is_string()) {
    request.prompts.emplace_back().set_text(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array() || prompt->empty()) refuse_field("prompt", shown(*prompt), accepted);
  if (prompt->front().is_number()) {
    *request.prompts.emplace_back().mutable_tokens() = ids_of(*prompt, "prompt");
    return;
  }
  if (prompt->size() * static_cast<size_t>(request.n) > OpenAiRequest::kMostChoices) {
    refuse_field("prompt",
                 std::to_string(prompt->size()) + " prompts of " + std::to_string(request.n) + " choices",
                 "at most " + std::to_string(OpenAiRequest::kMostChoices) + " choices in all");
  }
  for (const RequestJson& one : *prompt) {
    const std::string path = "prompt[" + std::to_string(request.prompts.size()) + "]";
    v1::GenerateRequest& added = request.prompts.emplace_back();
    if (one.is_string()) {
      added.set_text(one.get<std::string>());
    } else if (one.is_array()) {
      *added.mutable_tokens() = ids_of(one, path);
    } else {
      refuse_field(path, shown(one), "a string or a list of token ids");
    }
  }
}

void read_logprobs(JsonFields& fields, v1::GenerateRequest& settings) {
  const RequestJson* value = fields.find("logprobs");
  if (value != nullptr && value->is_boolean()) {
    refuse_field("logprobs", shown(*value),
                 "an integer in [0, " + std::to_string(kMostLogprobs) +
                     "] or null: true and false are for chat completions");
  }
  if (const auto top = fields.integer("logprobs", 0, kMostLogprobs)) {
    settings.mutable_logprobs()->set_top(static_cast<int32_t>(*top));
  }
}

}  // namespace

v1::GenerateRequest OpenAiRequest::choice(const v1::GenerateRequest& prompt, int index) const {
  v1::GenerateRequest message = settings;
  message.MergeFrom(prompt);
  if (message.has_tokens()) message.clear_add_special();
  if (message.sampling().has_seed()) {
    message.mutable_sampling()->set_seed(message.sampling().seed() + static_cast<uint64_t>(index));
  }
  return message;
}

OpenAiRequest parse_completion(const std::string& body) {
  const RequestJson json = parse_request_json(body);
  JsonFields fields(json);
  OpenAiRequest request;
  read_common(fields, request);
  read_progress(fields, request);
  read_prompts(fields, request);
  v1::Stopping& stopping = *request.settings.mutable_stopping();
  const int64_t most = fields.integer("max_tokens", kNoLimit, kInt32Max).value_or(kCompletionTokens);
  limit_tokens(most, stopping);
  read_logprobs(fields, request.settings);
  if (const auto value = fields.boolean("add_special_tokens")) request.settings.set_add_special(*value);
  const auto best_of = fields.integer("best_of", 1, OpenAiRequest::kMostChoices);
  if (best_of.value_or(request.n) != request.n)
    refuse_field("best_of", std::to_string(*best_of), "the same as n");
  request.echo_prompt = fields.boolean("echo").value_or(false);
  request.token_ids = fields.boolean("return_token_ids").value_or(false);
  if (request.echo_prompt && request.settings.has_logprobs()) {
    request.settings.mutable_logprobs()->set_prompt(true);
  }
  fields.unsupported("suffix");
  fields.refuse_others();
  return request;
}

OpenAiRequest parse_chat_completion(const std::string& body) {
  const RequestJson json = parse_request_json(body);
  JsonFields fields(json);
  OpenAiRequest request;
  request.names = {"messages", "max_completion_tokens", "top_logprobs"};
  read_common(fields, request);
  read_progress(fields, request);
  request.chat = read_chat(fields);
  request.token_ids = fields.boolean("return_token_ids").value_or(false);
  std::optional<int64_t> most = fields.integer("max_completion_tokens", kNoLimit, kInt32Max);
  const std::optional<int64_t> older = fields.integer("max_tokens", kNoLimit, kInt32Max);
  if (!most && older) request.names.max_tokens = "max_tokens";
  if (most && older && *most != *older) {
    refuse_field("max_tokens", std::to_string(*older),
                 "the same as max_completion_tokens, or only one of them");
  }
  if (!most) most = older;
  if (most) limit_tokens(*most, *request.settings.mutable_stopping());
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMostLogprobs);
  if (top && *top != 0 && !logprobs) {
    refuse_field("top_logprobs", std::to_string(*top), "it with \"logprobs\": true only");
  }
  if (logprobs) request.settings.mutable_logprobs()->set_top(static_cast<int32_t>(top.value_or(0)));
  for (const char* name : {"functions", "audio", "prediction", "web_search_options"}) {
    fields.unsupported(name);
  }
  fields.unsupported_but("function_call", "none");
  fields.unsupported_but("verbosity", "medium");
  fields.unsupported_but("reasoning_effort", "medium", kTemplateArguments);
  refuse_two_rules(request, "response_format");
  if (const RequestJson* modalities = fields.find("modalities");
      modalities != nullptr && *modalities != RequestJson::array({"text"})) {
    fields.unsupported("modalities", "expected [\"text\"]");
  }
  fields.refuse_others();
  return request;
}

}  // namespace ete::front
