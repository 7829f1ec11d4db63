#include "services/front/http/openai_error.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "services/common/safe_text.h"

namespace ete::front {
namespace {

struct Row {
  FrontErrorCode code;
  unsigned status;
  const char* type;
  const char* name;  // null: the type says all
};

constexpr std::array<Row, 12> kTable = {{
    {FrontErrorCode::invalid_argument, 400, "invalid_request_error", nullptr},
    {FrontErrorCode::unknown_model, 404, "invalid_request_error", "model_not_found"},  // as OpenAI has it
    {FrontErrorCode::context_exceeded, 400, "invalid_request_error", "context_length_exceeded"},
    {FrontErrorCode::unsupported, 400, "invalid_request_error", "unsupported"},
    {FrontErrorCode::not_found, 404, "invalid_request_error", "not_found"},
    {FrontErrorCode::failed_precondition, 409, "invalid_request_error", "failed_precondition"},
    {FrontErrorCode::resource_exhausted, 429, "rate_limit_error", "resource_exhausted"},
    {FrontErrorCode::unavailable, 503, "server_error", "unavailable"},
    {FrontErrorCode::deadline_exceeded, 504, "server_error", "deadline_exceeded"},
    {FrontErrorCode::cancelled, 503, "server_error", "cancelled"},
    {FrontErrorCode::corrupt, 500, "server_error", "corrupt"},
    {FrontErrorCode::internal, 500, "server_error", "internal"},
}};

const Row& row_of(FrontErrorCode code) {
  const auto row =
      std::find_if(kTable.begin(), kTable.end(), [code](const Row& one) { return one.code == code; });
  return row != kTable.end() ? *row : kTable.back();
}

// The client's name of a field that generation.proto calls `field`; what follows its first name (an index)
// stays.
std::string client_name(const std::string& field, const FieldNames& names) {
  const std::array<std::pair<std::string, std::string>, 14> known = {{
      {"stopping.max_tokens", names.max_tokens},
      {"logprobs.top", names.logprobs},
      {"logprobs.prompt", "echo"},
      {"tokens.ids", names.prompt},
      {"text: token", names.prompt},
      {"text", names.prompt},
      {"sampling.logit_bias: key", "logit_bias"},
      {"grammar.gbnf", "grammar"},
      {"grammar.json_schema", names.schema},
      {"grammar.json_object", "response_format"},
      {"sampling.", ""},
      {"stopping.", ""},
      {"ids", "tokens"},  // of a DetokenizeRequest
      {"messages", names.prompt},
  }};
  for (const auto& [from, to] : known) {
    if (field.starts_with(from)) return to + field.substr(from.size());
  }
  return field;
}

}  // namespace

FrontError in_client_words(const FrontError& error, const FieldNames& names) {
  if (error.field().empty()) return error;
  const std::string message = error.what();
  const std::string name = client_name(error.field(), names);
  if (!message.starts_with(error.field())) return error;
  return FrontError(error.code(), name + message.substr(error.field().size()), name)
      .after(error.retry_after());
}

RequestJson openai_error(const FrontError& error) {
  const Row& row = row_of(error.code());
  return {{"message", service::safe_text(error.what())},
          {"type", row.type},
          {"param", error.field().empty() ? RequestJson() : RequestJson(error.field())},
          {"code", row.name == nullptr ? RequestJson() : RequestJson(row.name)}};
}

HttpReply error_reply(const FrontError& error) {
  const RequestJson body = {{"error", openai_error(error)}};
  HttpReply reply{.status = row_of(error.code()).status, .body = body.dump()};
  if (reply.status != 429 && reply.status != 503) return reply;
  const std::chrono::milliseconds delay = error.retry_after().value_or(std::chrono::seconds(1));
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(delay);
  reply.headers.emplace_back("Retry-After", std::to_string(seconds.count()));
  // Clients that know it take it first.
  if (error.retry_after()) reply.headers.emplace_back("retry-after-ms", std::to_string(delay.count()));
  return reply;
}

}  // namespace ete::front
