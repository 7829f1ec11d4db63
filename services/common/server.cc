#include "services/common/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>

#include <stdexcept>
#include <thread>

#include "services/common/tls_credentials.h"

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

[[noreturn]] void cannot_listen(const Address& address) {
  throw std::runtime_error("cannot listen at " + address.to_string() +
                           ": the address is in use, not of this machine, or not permitted");
}

}  // namespace

ListeningServer::ListeningServer(const ListenOptions& options, const std::vector<grpc::Service*>& services)
    : address_(options.address), credentials_(server_credentials(options.tls)) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  set_limits(builder, options);
  const bool inherited = address_.inherited_fd >= 0;
  int port = 0;
  int control_port = 0;
  if (inherited) {
    using Source = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = std::make_unique<ConnectionAcceptor>(
        address_.inherited_fd,
        builder.experimental().AddExternalConnectionAcceptor(Source::FROM_FD, credentials_));
  } else {
    builder.AddListeningPort(address_.grpc_target(), credentials_, &port);
  }
  if (options.control) {
    builder.AddListeningPort(options.control->grpc_target(), grpc::experimental::LocalServerCredentials(UDS),
                             &control_port);
    claim_socket_path(options.control->path);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);

  // gRPC removes whatever socket file it finds, also a live server's.
  const bool makes_file = address_.kind == Address::Kind::unix_socket && !inherited;
  if (makes_file) claim_socket_path(address_.path);
  {
    const PrivateFiles private_files;
    server_ = builder.BuildAndStart();
  }
  if (server_ == nullptr) {
    // gRPC stops at the first port that it cannot have.
    const bool has_first = inherited || port != 0;
    cannot_listen(has_first && options.control ? *options.control : address_);
  }
  if (makes_file) set_socket_mode(address_.path, options.socket_mode);
  set_serving(false);
  if (address_.kind == Address::Kind::tcp && !inherited) address_.port = port;
  if (acceptor_ != nullptr) acceptor_->start();
}

ListeningServer::~ListeningServer() { shutdown(std::chrono::milliseconds(0)); }

void ListeningServer::set_serving(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

void ListeningServer::shutdown(std::chrono::milliseconds grace) {
  if (acceptor_ != nullptr) acceptor_->stop();
  // gRPC ends a connection with its last call. A client that writes then (a window update, the answer to a
  // ping) gets an error and loses what it has not read, which may be the status of that call.
  if (grace > kLinger) std::this_thread::sleep_for(kLinger);
  server_->Shutdown(std::chrono::system_clock::now() + grace);
}

}  // namespace ete::service
