#include "services/front/generation_service.h"

#include <exception>

#include "services/front/generate_call.h"
#include "services/front/status.h"
#include "services/front/validation.h"
#include "services/front/wire.h"

namespace ete::front {
namespace {

// Answers with what `make` returns or throws.
template <typename Make>
grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, grpc::ByteBuffer* reply, Make make) {
  grpc::Status status;
  try {
    *reply = serialize(make());
  } catch (const FrontError& error) {
    status = to_status(error);
  } catch (const std::exception& error) {
    status = to_status(FrontError(FrontErrorCode::internal, error.what()));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

bool GenerationService::drain(std::chrono::milliseconds grace) {
  generate_calls_.close();
  return generate_calls_.wait_none(grace);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                                        const grpc::ByteBuffer* request) {
  return GenerateCall::start(client_, generate_calls_, *context, *request);
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* reply) {
  return answer(context, reply, [&] {
    const auto message = parse<v1::TokenizeRequest>(*request);
    const std::vector<int32_t> ids = client_.model()->tokenizer->encode(message.text(), validate(message));
    v1::TokenizeReply out;
    out.mutable_ids()->Add(ids.begin(), ids.end());
    return out;
  });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* reply) {
  return answer(context, reply, [&] {
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

}  // namespace ete::front
