#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "clients/cli/private_directory.h"
#include "clients/cli/process.h"
#include "ete/v1/engine.grpc.pb.h"
#include "ete/v1/generation.grpc.pb.h"

namespace ete {

// `ete serve` as a process, listening on a Unix socket in a directory of its own.
class ServeProcess {
 public:
  explicit ServeProcess(const std::vector<std::string>& arguments);

  // Waits until `text` is in its stderr `count` times; false after 60 s or once it has ended.
  bool wait_for_log(const std::string& text, int count = 1);
  std::string log() const;
  cli::Child& child() { return child_; }
  std::string address() const { return "unix:" + directory_.file("front.sock"); }
  // Once ready.
  std::string worker_address() const;
  // The id of its child process of that program; -1: none.
  pid_t server(const std::string& program) const;
  std::unique_ptr<v1::Generation::Stub> front() const;
  std::unique_ptr<v1::Engine::Stub> worker() const;
  std::string log_file() const { return directory_.file("log"); }

 private:
  cli::PrivateDirectory directory_;
  cli::Child child_;
};

// A prompt whose continuation takes as long as the context lasts.
v1::GenerateRequest endless_request();

}  // namespace ete
