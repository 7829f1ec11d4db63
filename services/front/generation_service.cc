#include "services/front/generation_service.h"

#include <chrono>
#include <exception>
#include <utility>

#include "services/front/generate_call.h"
#include "services/front/http/openai_request.h"
#include "services/front/session_relay.h"
#include "services/front/status.h"
#include "services/front/validation.h"
#include "services/front/wire.h"

namespace ete::front {
namespace {

// OK when `work` returns, else what it throws.
template <typename Work>
grpc::Status status_of(Work work) {
  const auto error = failure_of(work);
  return error ? to_status(*error) : grpc::Status::OK;
}

// Answers with what `make` returns or throws.
template <typename Make>
grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, grpc::ByteBuffer* reply, Make make) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status_of([&] { *reply = serialize(make()); }));
  return reactor;
}

// The same, on a thread of the pool when the request is a large one. `make` must be copyable and own what it
// needs.
template <typename Make>
grpc::ServerUnaryReactor* answer_in(TextPool& texts, grpc::CallbackServerContext* context, size_t bytes,
                                    grpc::ByteBuffer* reply, Make make) {
  if (bytes <= TextPool::kInlineBytes) return answer(context, reply, std::move(make));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status posted = status_of([&] {
    texts.post({bytes,
                [context] {
                  return !context->IsCancelled() && std::chrono::system_clock::now() < context->deadline();
                },
                [reactor, reply, make = std::move(make)](bool wanted) {
                  reactor->Finish(wanted ? status_of([&] { *reply = serialize(make()); })
                                         : grpc::Status::CANCELLED);
                }});
  });
  if (!posted.ok()) reactor->Finish(posted);
  return reactor;
}

// What a template is given, checked as the same conversation in JSON is.
ChatPrompt chat_prompt(const v1::RenderChatRequest& request) {
  RequestJson json = {{"messages", RequestJson::array()}};
  for (const v1::ChatMessage& message : request.messages()) {
    json["messages"].push_back({{"role", message.role()}, {"content", message.content()}});
  }
  if (request.has_add_generation_prompt()) json["add_generation_prompt"] = request.add_generation_prompt();
  JsonFields fields(json);
  return read_chat(fields);
}

}  // namespace

bool GenerationService::drain(std::chrono::milliseconds grace) {
  generate_calls_.close();
  return generate_calls_.wait_none(grace);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                                        const grpc::ByteBuffer* request) {
  return GenerateCall::start({shared_, generate_calls_, most_unread_}, *context, *request);
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* reply) {
  return answer_in(texts_, context, request->Length(), reply, [this, request] {
    const auto message = parse<v1::TokenizeRequest>(*request);
    const EncodeOptions options = validate(message);
    const std::vector<int32_t> ids = client_.model()->tokenizer->encode(message.text(), options);
    v1::TokenizeReply out;
    out.mutable_ids()->Add(ids.begin(), ids.end());
    return out;
  });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* reply) {
  return answer_in(texts_, context, request->Length(), reply, [this, request] {
    const auto message = parse<v1::DetokenizeRequest>(*request);
    const std::shared_ptr<const ServedModel> model = client_.model();
    v1::DetokenizeReply out;
    out.set_text(model->tokenizer->decode(validate(message, *model), message.skip_special()));
    return out;
  });
}

grpc::ServerUnaryReactor* GenerationService::GetModel(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* reply) {
  return answer(context, reply, [&] {
    parse<v1::GetModelInfoRequest>(*request);
    const std::shared_ptr<const ServedModel> model = client_.model();
    v1::GetModelInfoReply out;
    out.set_name(model->name);
    out.set_architecture(model->architecture);
    out.set_vocab_size(model->vocab_size);
    out.set_context(model->context);
    out.mutable_eos_token_ids()->Add(model->eos_token_ids.begin(), model->eos_token_ids.end());
    out.set_tokenizer_sha256(model->tokenizer_sha256);
    out.set_plan_json(model->plan_json);
    return out;
  });
}

grpc::ServerUnaryReactor* GenerationService::RenderChat(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto done = [reactor, reply](ChatRenderer::Result result) {
    reactor->Finish(status_of([&] {
      if (result.error) throw *result.error;
      v1::RenderChatReply out;
      out.set_text(std::move(result.text));
      *reply = serialize(out);
    }));
  };
  const grpc::Status begun = status_of([&] {
    const ChatPrompt chat = chat_prompt(parse<v1::RenderChatRequest>(*request));
    chats_.render(*client_.model()->chat, chat.has_tools, chat.variables, done);
  });
  if (!begun.ok()) reactor->Finish(begun);
  return reactor;
}

grpc::ServerWriteReactor<v1::SessionPart>* GenerationService::Snapshot(grpc::CallbackServerContext* context,
                                                                       const v1::SnapshotRequest* request) {
  return relay_snapshot(client_, *context, *request);
}

grpc::ServerReadReactor<v1::SessionPart>* GenerationService::Restore(grpc::CallbackServerContext* context,
                                                                     v1::RestoreReply* reply) {
  return relay_restore(client_, *context, *reply);
}

grpc::ServerUnaryReactor* GenerationService::Abort(grpc::CallbackServerContext* context,
                                                   const v1::AbortRequest* request, v1::AbortReply* reply) {
  reply->set_aborted(shared_.requests.abort(request->request_id()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace ete::front
