#include "clients/cli/server_client.h"

#include <grpcpp/support/client_interceptor.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "services/common/address.h"
#include "services/common/tls.h"
#include "services/common/tls_credentials.h"
#include "services/common/token_file.h"

namespace ete::cli {
namespace {

constexpr std::chrono::milliseconds kProbeLimit{300};

void limit_time(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kProbeLimit);
}

// By number.
constexpr std::array<const char*, 17> kCodes = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// Of a channel whose calls all show a token: call credentials would need TLS.
class ShowToken final : public grpc::experimental::Interceptor {
 public:
  explicit ShowToken(const std::string& authorization) : authorization_(authorization) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", authorization_});
    }
    methods->Proceed();
  }

 private:
  const std::string& authorization_;
};

class ShowTokenFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit ShowTokenFactory(const std::string& token) : authorization_("Bearer " + token) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo* /*info*/) override {
    return new ShowToken(authorization_);
  }

 private:
  const std::string authorization_;
};

}  // namespace

std::shared_ptr<grpc::Channel> connect(const ServerAccess& server) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // A proxy named in the environment is not for this.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Channels that are made anew share no memory of refused connections.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const service::TlsFiles& tls = server.security.tls;
  const auto credentials = server.control ? grpc::experimental::LocalCredentials(UDS)
                           : tls.authority.empty()
                               ? grpc::InsecureChannelCredentials()
                               : service::channel_credentials(service::read_tls_files(tls));
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!server.security.token_file.empty()) {
    interceptors.push_back(
        std::make_unique<ShowTokenFactory>(service::SecretFile(server.security.token_file).token()));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      service::parse_address(server.address).grpc_target(), credentials, arguments, std::move(interceptors));
}

std::optional<v1::GetStatusReply> worker_status(const std::string& address) {
  const auto stub = v1::Engine::NewStub(connect({address}));
  grpc::ClientContext context;
  limit_time(context);
  v1::GetStatusReply reply;
  if (stub->GetStatus(&context, {}, &reply).ok()) return reply;
  return std::nullopt;
}

std::optional<v1::GetModelInfoReply> front_model(const ServerAccess& server) {
  const auto stub = v1::Generation::NewStub(connect(server));
  grpc::ClientContext context;
  limit_time(context);
  v1::GetModelInfoReply reply;
  const grpc::Status status = stub->GetModel(&context, {}, &reply);
  if (status.ok()) return reply;
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return std::nullopt;
    default:
      throw Error(ErrorCode::unsupported, status.error_message());
  }
}

std::string describe(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) return status.error_message();
  const auto code = static_cast<size_t>(status.error_code());
  return (code < kCodes.size() ? std::string(kCodes[code]) : "status " + std::to_string(code)) + ": " +
         status.error_message();
}

}  // namespace ete::cli
