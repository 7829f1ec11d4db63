#pragma once

#include <grpcpp/support/status_code_enum.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "ete/v1/generation.pb.h"

// A client of the streaming text generation of an `ete serve`.
namespace ete::client {

// What a call ends with other than success.
class Error : public std::runtime_error {
 public:
  Error(grpc::StatusCode code, const std::string& message,
        std::optional<std::chrono::milliseconds> retry_delay);
  grpc::StatusCode code() const { return code_; }
  // As the protocol writes it, such as INVALID_ARGUMENT; what() begins with it.
  std::string code_name() const;
  const std::string& message() const { return message_; }
  // Of the request, that was refused; empty: none.
  const std::string& field() const { return field_; }
  // What the server asks to wait, negative when it asks not to try again; empty: it does not say.
  std::optional<std::chrono::milliseconds> retry_delay() const { return retry_delay_; }

 private:
  grpc::StatusCode code_;
  std::string message_;
  std::string field_;
  std::optional<std::chrono::milliseconds> retry_delay_;
};

// PEM. Without root certificates those of the system that gRPC knows; certificate and key for servers that
// ask who calls; server_name when the server's certificate has another name than the address.
struct Tls {
  std::optional<std::string> root_certificates;
  std::optional<std::string> certificate;
  std::optional<std::string> private_key;
  std::optional<std::string> server_name;
};

// Tries again, while nothing has been handed out, when the server is not available, and whenever it says
// after which delay to come back. Without that the delay doubles from initial to maximum, each a fifth more
// or less.
struct Retry {
  int attempts = 5;  // at least 1
  std::chrono::milliseconds initial{200};
  std::chrono::milliseconds maximum{5000};
};

struct Options {
  std::optional<Tls> tls;  // empty: not encrypted
  // Sent as "authorization: Bearer TOKEN", in the clear only to this machine.
  std::optional<std::string> token;
  Retry retry;
  // Told of each new attempt: what the last one ended with, its number from 1 on, the time until the next.
  std::function<void(const Error& error, int attempt, std::chrono::milliseconds delay)> on_retry;
};

// Told how much of the prompt is processed, by next() before the first piece.
using OnProgress = std::function<void(const v1::PromptProgress& progress)>;

// The pieces of one generation, for one thread; cancel() may be called by any. Outlived by its Client. The
// destructor cancels what still runs.
class Stream {
 public:
  Stream(Stream&& other) noexcept;
  ~Stream();

  // Waits for a piece. Empty: the text is complete. Throws Error; the pieces before it stand.
  std::optional<v1::Piece> next();
  // Ends the generation on the server too; next() then throws CANCELLED.
  void cancel();

  // What the server made of the prompt, from the first piece on.
  const v1::PromptInfo& prompt() const;
  // Why the generation ended, once next() was empty.
  const v1::Finish& finish() const;

 private:
  friend class Client;
  class Impl;
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One connection, for any number of threads.
class Client {
 public:
  // address: host:port or unix:PATH. Throws std::invalid_argument for options that contradict each other.
  explicit Client(const std::string& address, Options options = {});
  Client(Client&& other) noexcept;
  ~Client();

  // Starts a generation. timeout: until DEADLINE_EXCEEDED, all attempts together; empty: none.
  Stream generate(const v1::GenerateRequest& request,
                  std::optional<std::chrono::milliseconds> timeout = std::nullopt,
                  OnProgress on_progress = nullptr);

 private:
  friend class Stream::Impl;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ete::client
