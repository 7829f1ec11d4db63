#include "services/front/http/token_calls.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "services/front/http/openai_error.h"
#include "services/front/http/openai_reply.h"
#include "services/front/http/openai_request.h"
#include "services/front/tokenizer/utf8.h"
#include "services/front/validation.h"

namespace ete::front {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

using Exchange = std::shared_ptr<HttpExchange>;

// Answers with what `make` returns or throws.
void answer(const Exchange& exchange, const FieldNames& names, const std::function<RequestJson()>& make) {
  const auto error = failure_of([&] { exchange->reply({.body = json_text(make())}); });
  if (error) exchange->reply(error_reply(in_client_words(*error, names)));
}

// The same, on a thread of the pool when the text is a long one.
void answer_in(TextPool& texts, const Exchange& exchange, size_t bytes, const FieldNames& names,
               std::function<RequestJson()> make) {
  if (bytes <= TextPool::kInlineBytes) return answer(exchange, names, make);
  texts.post({bytes, [] { return true; },
              [exchange, names, make = std::move(make)](bool wanted) {
                if (wanted) return answer(exchange, names, make);
                exchange->reply(
                    error_reply(FrontError(FrontErrorCode::unavailable, "the front is shutting down")));
              }});
}

void encode(const OpenAiHost& host, const Exchange& exchange, const FieldNames& names,
            const v1::TokenizeRequest& message) {
  answer_in(host.shared.texts, exchange, message.text().size(), names,
            [message, workers = &host.shared.workers] {
              const EncodeOptions options = validate(message);
              const std::shared_ptr<const ServedModel> model = workers->model(message.model());
              const std::vector<int32_t> ids = model->tokenizer->encode(message.text(), options);
              return RequestJson{{"count", ids.size()}, {"max_model_len", model->context}, {"tokens", ids}};
            });
}

void encode_chat(const OpenAiHost& host, const Exchange& exchange, const ChatPrompt& chat,
                 const std::string& model) {
  const FieldNames names{.prompt = "messages"};
  const auto done = [host, exchange, names, model](const ChatRenderer::Result& result) {
    if (result.error) return exchange->reply(error_reply(*result.error));
    v1::TokenizeRequest message;
    message.set_model(model);
    message.set_text(result.text);
    message.set_add_special(false);
    message.set_parse_special(true);
    try {
      encode(host, exchange, names, message);
    } catch (const FrontError& error) {
      exchange->reply(error_reply(error));
    }
  };
  host.chats.render(*host.shared.workers.model(model)->chat, chat.has_tools, chat.variables, done);
}

}  // namespace

void answer_tokenize(const OpenAiHost& host, const Exchange& exchange) {
  const RequestJson json = parse_request_json(exchange->request().body);
  JsonFields fields(json);
  v1::TokenizeRequest message;
  message.set_model(fields.string("model").value_or(""));
  const std::optional<std::string> prompt = fields.string("prompt");
  const bool has_messages = fields.find("messages") != nullptr;
  if (prompt && has_messages) refuse_field("messages", "it beside prompt", "one of them");
  if (has_messages) {
    const ChatPrompt chat = read_chat(fields);
    fields.refuse_others();
    return encode_chat(host, exchange, chat, message.model());
  }
  if (!prompt) refuse_field("prompt", "nothing", "a string, or messages in its place");
  message.set_text(*prompt);
  if (const auto value = fields.boolean("add_special_tokens")) message.set_add_special(*value);
  if (const auto value = fields.boolean("parse_special_tokens")) message.set_parse_special(*value);
  fields.refuse_others();
  encode(host, exchange, {}, message);
}

void answer_detokenize(const OpenAiHost& host, const Exchange& exchange) {
  const RequestJson json = parse_request_json(exchange->request().body);
  JsonFields fields(json);
  v1::DetokenizeRequest message;
  message.set_model(fields.string("model").value_or(""));
  const RequestJson* tokens = fields.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    refuse_field("tokens", tokens == nullptr ? "nothing" : shown(*tokens), "a list of token ids");
  }
  for (const RequestJson& id : *tokens) {
    if (!id.is_number_integer() || id < 0 || id > kInt32Max) {
      refuse_field("tokens[" + std::to_string(message.ids_size()) + "]", shown(id), "a token id");
    }
    message.add_ids(id.get<int32_t>());
  }
  fields.refuse_others();
  const size_t bytes = exchange->request().body.size();
  const FieldNames names;
  answer_in(host.shared.texts, exchange, bytes, names, [message, workers = &host.shared.workers] {
    const std::shared_ptr<const ServedModel> model = workers->model(message.model());
    std::string text;
    // Ids may begin or end within a character.
    append_lossy(text, model->tokenizer->decode(validate(message, *model)), InvalidBytes::per_sequence, true);
    return RequestJson{{"prompt", text}};
  });
}

}  // namespace ete::front
