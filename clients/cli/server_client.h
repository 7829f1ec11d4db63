#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "ete/v1/engine.grpc.pb.h"
#include "ete/v1/generation.grpc.pb.h"
#include "services/common/tls.h"

namespace ete::cli {

// How a server is reached: its address, as parse_address takes it, and what it is shown.
struct ServerAccess {
  std::string address;
  service::ClientSecurity security = {};
  bool control = false;  // the address is that of its control socket
};
// Every call shows the token. Throws std::runtime_error naming a file that cannot be used.
std::shared_ptr<grpc::Channel> connect(const ServerAccess& server);

// Short questions to servers that may not be there yet: empty when there is no answer at once. Each connects
// anew: gRPC looks at an idle connection of a waiting client only every 5 s, so a refused one would come back
// as late as that, and a server that shuts down would wait as long for the client's goodbye.
std::optional<v1::GetStatusReply> worker_status(const std::string& address);
// Throws Error(unsupported) with the front's message when its worker is there, but has a model that the front
// cannot serve.
std::optional<v1::GetModelInfoReply> front_model(const ServerAccess& server);

// "DEADLINE_EXCEEDED: message"; for INVALID_ARGUMENT the message alone, which names the field.
std::string describe(const grpc::Status& status);

}  // namespace ete::cli
