#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ete/v1/generation.grpc.pb.h"
#include "ete_client.h"

namespace ete::client {

class Client::Impl {
 public:
  Impl(const std::string& address, Options options);
  const Options& options() const { return options_; }
  v1::Generation::Stub& stub() { return *stub_; }

 private:
  Options options_;
  std::unique_ptr<v1::Generation::Stub> stub_;
};

class Stream::Impl {
 public:
  using Deadline = std::optional<std::chrono::system_clock::time_point>;

  Impl(Client::Impl& client, v1::GenerateRequest request, Deadline deadline, OnProgress on_progress)
      : client_(client),
        request_(std::move(request)),
        deadline_(deadline),
        on_progress_(std::move(on_progress)) {
    if (on_progress_) request_.set_prompt_progress(true);
  }
  ~Impl();

  std::optional<v1::Piece> next();
  void cancel();
  const v1::PromptInfo& prompt() const { return prompt_; }
  const v1::Finish& finish() const { return finish_; }

 private:
  void start();
  // Throws the error unless the generation is to be started once more; waits until then.
  void try_again(const Error& error);
  // Ends the call. Throws Error unless it succeeded.
  void end();

  Client::Impl& client_;
  v1::GenerateRequest request_;
  Deadline deadline_;
  const OnProgress on_progress_;
  v1::PromptInfo prompt_;
  v1::Finish finish_;
  int attempt_ = 0;
  bool handed_out_ = false;

  std::mutex mutex_;
  std::condition_variable woken_;
  bool cancelled_ = false;                        // under mutex_
  std::unique_ptr<grpc::ClientContext> context_;  // replaced under mutex_
  std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader_;
};

}  // namespace ete::client
