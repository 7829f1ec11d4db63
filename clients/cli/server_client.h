#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "ete/v1/engine.grpc.pb.h"
#include "ete/v1/generation.grpc.pb.h"

namespace ete::cli {

// A channel that tries again quickly while a server starts. `address` is one that parse_address takes.
std::shared_ptr<grpc::Channel> connect(const std::string& address);

// Short questions to servers that may not be there yet: empty when there is no answer at once.
class WorkerProbe {
 public:
  explicit WorkerProbe(const std::string& address);
  std::optional<v1::GetStatusReply> status();

 private:
  std::unique_ptr<v1::Engine::Stub> stub_;
};

class FrontProbe {
 public:
  explicit FrontProbe(const std::string& address);
  // Throws Error(unsupported) with the front's message when its worker is there, but has a model that the
  // front cannot serve.
  std::optional<v1::GetModelInfoReply> model();

 private:
  std::unique_ptr<v1::Generation::Stub> stub_;
};

// "DEADLINE_EXCEEDED: message"; for INVALID_ARGUMENT the message alone, which names the field.
std::string describe(const grpc::Status& status);

}  // namespace ete::cli
