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

// Of a call of strangers.
template <typename Message>
class RefusedStream final : public grpc::ServerWriteReactor<Message> {
 public:
  RefusedStream() { this->Finish(service::Access::refusal()); }
  void OnDone() override { delete this; }
};

grpc::ServerUnaryReactor* refuse(grpc::CallbackServerContext* context) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(service::Access::refusal());
  return reactor;
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
  auto caller = access_.admit(*context);
  if (!caller) return new RefusedStream<grpc::ByteBuffer>;
  return GenerateCall::start({host_, generate_calls_, most_unread_}, *context, std::move(*caller), *request);
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* reply) {
  if (!access_.admit(*context)) return refuse(context);
  return answer_in(host_.texts, context, request->Length(), reply, [this, request] {
    const auto message = parse<v1::TokenizeRequest>(*request);
    const EncodeOptions options = validate(message);
    const std::vector<int32_t> ids =
        host_.workers.model(message.model())->tokenizer->encode(message.text(), options);
    v1::TokenizeReply out;
    out.mutable_ids()->Add(ids.begin(), ids.end());
    return out;
  });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* reply) {
  if (!access_.admit(*context)) return refuse(context);
  return answer_in(host_.texts, context, request->Length(), reply, [this, request] {
    const auto message = parse<v1::DetokenizeRequest>(*request);
    const std::shared_ptr<const ServedModel> model = host_.workers.model(message.model());
    v1::DetokenizeReply out;
    out.set_text(model->tokenizer->decode(validate(message, *model), message.skip_special()));
    return out;
  });
}

grpc::ServerUnaryReactor* GenerationService::GetModel(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* reply) {
  if (!access_.admit(*context)) return refuse(context);
  return answer(context, reply, [&] {
    const auto message = parse<v1::GetModelInfoRequest>(*request);
    const auto models = host_.workers.models();
    const auto model = message.has_model() ? host_.workers.model(message.model()) : models[0];
    v1::GetModelInfoReply out;
    out.set_name(model->name);
    out.set_architecture(model->architecture);
    out.set_vocab_size(model->vocab_size);
    out.set_context(model->context);
    out.mutable_eos_token_ids()->Add(model->eos_token_ids.begin(), model->eos_token_ids.end());
    out.set_tokenizer_sha256(model->tokenizer_sha256);
    out.set_plan_json(model->plan_json);
    for (const auto& one : models) out.add_served_models(one->name);
    return out;
  });
}

grpc::ServerUnaryReactor* GenerationService::RenderChat(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* reply) {
  if (!access_.admit(*context)) return refuse(context);
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
    const auto message = parse<v1::RenderChatRequest>(*request);
    const ChatPrompt chat = chat_prompt(message);
    chats_.render(*host_.workers.model(message.model())->chat, chat.has_tools, chat.variables, done);
  });
  if (!begun.ok()) reactor->Finish(begun);
  return reactor;
}

grpc::ServerWriteReactor<v1::SessionPart>* GenerationService::Snapshot(grpc::CallbackServerContext* context,
                                                                       const v1::SnapshotRequest* request) {
  const auto caller = access_.admit(*context);
  if (!caller) return new RefusedStream<v1::SessionPart>;
  return relay_snapshot(host_.workers, *context, *caller, *request);
}

grpc::ServerReadReactor<v1::SessionPart>* GenerationService::Restore(grpc::CallbackServerContext* context,
                                                                     v1::RestoreReply* reply) {
  const auto caller = access_.admit(*context);
  return relay_restore(host_.workers, *context, caller, *reply);
}

grpc::ServerUnaryReactor* GenerationService::Abort(grpc::CallbackServerContext* context,
                                                   const v1::AbortRequest* request, v1::AbortReply* reply) {
  const auto caller = access_.admit(*context);
  if (!caller) return refuse(context);
  reply->set_aborted(host_.requests.abort(request->request_id(), caller->name()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace ete::front
