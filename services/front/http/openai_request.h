#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ete/v1/generation.pb.h"
#include "services/front/http/chat_tools.h"
#include "services/front/http/json_fields.h"
#include "services/front/http/openai_error.h"

namespace ete::front {

// A conversation as a chat template takes it.
struct ChatPrompt {
  RequestJson variables;   // an object: messages, add_generation_prompt and what the client adds
  bool has_tools = false;  // a model may have a template of its own for them
  ChatTools tools;
};

// A body of OpenAI's API as generations to run. What its fields mean is checked once, by validate() for
// generation.proto's messages; here their types are, and what this server does not do is refused by name.
struct OpenAiRequest {
  static constexpr int64_t kMostChoices = 64;  // prompts times n

  v1::GenerateRequest settings;              // everything but the prompt
  std::vector<v1::GenerateRequest> prompts;  // text or tokens only; empty: chat
  std::optional<ChatPrompt> chat;
  int n = 1;  // choices of each prompt
  bool stream = false;
  bool include_usage = false;
  bool usage_so_far = false;  // in every event of a stream
  bool echo_prompt = false;   // completions begin with their prompt
  bool token_ids = false;     // the ids of prompt and reply are told beside the text
  FieldNames names;
  RequestJson echo;  // what a response repeats of it, where one does

  // The choice's own message: choice i of each prompt draws with the seed that was given plus i.
  v1::GenerateRequest choice(const v1::GenerateRequest& prompt, int index) const;
};

// FrontError(invalid_argument, unsupported): names the field.
OpenAiRequest parse_completion(const std::string& body);       // POST /v1/completions
OpenAiRequest parse_chat_completion(const std::string& body);  // POST /v1/chat/completions

// messages, and whatever else a template is given, for other requests that hold them.
ChatPrompt read_chat(JsonFields& fields);

// What all of them have: model, sampling, stopping, streaming.
void read_common(JsonFields& fields, OpenAiRequest& request);

// Where llama.cpp's clients ask for as much as fits.
inline constexpr int64_t kNoLimit = -1;
void limit_tokens(int64_t most, v1::Stopping& stopping);

inline constexpr const char* kTemplateArguments = "chat_template_kwargs reach the model's template";

// A call that has to be made leaves no room for rules of the output's own, which `rules` asked for.
void refuse_two_rules(OpenAiRequest& request, const std::string& rules);

}  // namespace ete::front
