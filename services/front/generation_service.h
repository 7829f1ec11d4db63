#pragma once

#include <chrono>

#include "ete/v1/generation.grpc.pb.h"
#include "services/common/access.h"
#include "services/common/call_count.h"
#include "services/front/chat/chat_renderer.h"
#include "services/front/running_request.h"

namespace ete::front {

// The clients' door: generation.proto. Thread-safe.
class GenerationService final
    : public v1::Generation::WithRawCallbackMethod_Generate<
          v1::Generation::WithRawCallbackMethod_Tokenize<v1::Generation::WithRawCallbackMethod_Detokenize<
              v1::Generation::WithRawCallbackMethod_GetModel<v1::Generation::WithRawCallbackMethod_RenderChat<
                  v1::Generation::WithCallbackMethod_Snapshot<v1::Generation::WithCallbackMethod_Restore<
                      v1::Generation::WithCallbackMethod_Abort<v1::Generation::Service>>>>>>>> {
 public:
  // host's parts, chats and access outlive the service.
  GenerationService(const RunningRequest::Host& host, ChatRenderer& chats, service::Access& access,
                    std::chrono::milliseconds most_unread)
      : host_(host), chats_(chats), access_(access), most_unread_(most_unread) {}

  // Refuses new calls of Generate; returns when the running ones have ended, or false after `grace`.
  bool drain(std::chrono::milliseconds grace);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* reply) override;
  grpc::ServerWriteReactor<v1::SessionPart>* Snapshot(grpc::CallbackServerContext* context,
                                                      const v1::SnapshotRequest* request) override;
  grpc::ServerReadReactor<v1::SessionPart>* Restore(grpc::CallbackServerContext* context,
                                                    v1::RestoreReply* reply) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortReply* reply) override;

 private:
  const RunningRequest::Host host_;
  ChatRenderer& chats_;
  service::Access& access_;
  const std::chrono::milliseconds most_unread_;
  service::CallCount generate_calls_;
};

}  // namespace ete::front
