#include "clients/cli/server_client.h"

#include <array>
#include <chrono>

#include "engine/base/error.h"
#include "services/common/address.h"

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

}  // namespace

std::shared_ptr<grpc::Channel> connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // A proxy named in the environment is not for this.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Channels that are made anew share no memory of refused connections.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(service::parse_address(address).grpc_target(),
                                   grpc::InsecureChannelCredentials(), arguments);
}

std::optional<v1::GetStatusReply> worker_status(const std::string& address) {
  const auto stub = v1::Engine::NewStub(connect(address));
  grpc::ClientContext context;
  limit_time(context);
  v1::GetStatusReply reply;
  if (stub->GetStatus(&context, {}, &reply).ok()) return reply;
  return std::nullopt;
}

std::optional<v1::GetModelInfoReply> front_model(const std::string& address) {
  const auto stub = v1::Generation::NewStub(connect(address));
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
