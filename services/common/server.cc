#include "services/common/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>

#include <stdexcept>
#include <thread>

namespace ete::service {
namespace {

constexpr int kKeepaliveMs = 20'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kMinPingIntervalMs = 5'000;
// From the end of the last call to the end of its connection.
constexpr std::chrono::milliseconds kLinger{50};

// Files made while it lives have no permission for group and others.
class PrivateFiles {
 public:
  PrivateFiles() : previous_(umask(0177)) {}
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;
  ~PrivateFiles() { umask(previous_); }

 private:
  mode_t previous_;
};

void set_limits(grpc::ServerBuilder& builder, const ListenOptions& options) {
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  if (options.max_buffer_bytes != 0) {
    builder.SetResourceQuota(grpc::ResourceQuota("server").Resize(options.max_buffer_bytes));
  }
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  // Else a second server binds the same port, and connections go to either.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace

ListeningServer::ListeningServer(const ListenOptions& options, const std::vector<grpc::Service*>& services)
    : address_(options.address) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  set_limits(builder, options);
  int port = 0;
  int control_port = 1;
  builder.AddListeningPort(address_.grpc_target(), server_credentials(options.tls), &port);
  if (options.control) {
    builder.AddListeningPort(options.control->grpc_target(), grpc::experimental::LocalServerCredentials(UDS),
                             &control_port);
    claim_socket_path(options.control->path);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);

  // gRPC removes whatever socket file it finds, also a live server's.
  if (address_.kind == Address::Kind::unix_socket) claim_socket_path(address_.path);
  {
    const PrivateFiles private_files;
    server_ = builder.BuildAndStart();
  }
  if (server_ == nullptr || port == 0 || control_port == 0) {
    const Address& refused = control_port == 0 ? *options.control : address_;
    throw std::runtime_error("cannot listen at " + refused.to_string() +
                             ": the address is in use, not of this machine, or not permitted");
  }
  if (address_.kind == Address::Kind::unix_socket) set_socket_mode(address_.path, options.socket_mode);
  set_serving(false);
  if (address_.kind == Address::Kind::tcp) address_.port = port;
}

ListeningServer::~ListeningServer() { shutdown(std::chrono::milliseconds(0)); }

void ListeningServer::set_serving(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

void ListeningServer::shutdown(std::chrono::milliseconds grace) {
  // gRPC ends a connection with its last call. A client that writes then (a window update, the answer to a
  // ping) gets an error and loses what it has not read, which may be the status of that call.
  if (grace > kLinger) std::this_thread::sleep_for(kLinger);
  server_->Shutdown(std::chrono::system_clock::now() + grace);
}

}  // namespace ete::service
