#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <future>
#include <iostream>
#include <memory>
#include <string>

#include "clients/cli/command.h"
#include "clients/cli/server_client.h"
#include "clients/options/command_line.h"
#include "engine/base/error.h"
#include "services/common/address.h"
#include "services/common/service_flags.h"
#include "services/common/tls.h"

namespace ete::cli {
namespace {

constexpr const char* kMethod = "/grpc.health.v1.Health/Check";
constexpr double kMostSeconds = 3600;

struct HealthOptions {
  service::Address address;
  service::ClientSecurity security;
  std::chrono::milliseconds timeout{2000};
};

// Of a grpc.health.v1.HealthCheckResponse, whose one field is an enum of number 1: the bytes 8 and its value.
std::string status_name(const grpc::ByteBuffer& reply) {
  grpc::Slice slice;
  if (!reply.DumpToSingleSlice(&slice).ok()) throw Error(ErrorCode::corrupt, "the reply cannot be read");
  if (slice.size() == 0) return "UNKNOWN";
  if (slice.size() != 2 || slice.begin()[0] != 8) {
    throw Error(ErrorCode::corrupt, "the reply is no HealthCheckResponse");
  }
  switch (slice.begin()[1]) {
    case 1:
      return "SERVING";
    case 2:
      return "NOT_SERVING";
    default:
      return "UNKNOWN";
  }
}

int health(const HealthOptions& options) {
  const std::string address = options.address.to_string();
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(
      connect({.address = address, .security = options.security}));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + options.timeout);
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  const auto done = std::make_shared<std::promise<grpc::Status>>();
  stub.UnaryCall(&context, kMethod, {}, &request, &reply,
                 [done](const grpc::Status& status) { done->set_value(status); });
  const grpc::Status status = done->get_future().get();
  if (!status.ok()) throw Error(ErrorCode::unavailable, address + ": " + describe(status));
  const std::string name = status_name(reply);
  if (name != "SERVING") throw Error(ErrorCode::unavailable, address + ": " + name);
  std::cout << name << std::endl;
  return 0;
}

}  // namespace

void add_health_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("health", "Whether the server at an address serves: exit code 0 or 1");
  auto options = std::make_shared<HealthOptions>();
  service::add_address_flag(*command, "--address", "of a worker or a front: unix:/path or host:port",
                            options->address)
      ->required();
  service::add_client_security_flags(*command, "", "the server", options->security);
  command
      ->add_option_function<std::string>(
          "--timeout",
          [options](const std::string& text) {
            const auto seconds = parse_number(text, 0.001, kMostSeconds);
            if (!seconds) reject_flag("--timeout", text, "seconds, 0.001 to 3600");
            options->timeout = std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000));
          },
          "how long the answer may take [2]")
      ->type_name("SECONDS");
  command->callback([&action, options] { action = [options] { return health(*options); }; });
}

}  // namespace ete::cli
