#pragma once

#include <grpcpp/server_context.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "services/common/token_file.h"

namespace ete::service {

// Where a request comes from.
struct Caller {
  std::shared_ptr<TokenHolder> holder;  // null: no token is asked for
  std::string traceparent;              // as W3C's Trace Context has it; empty: none, or not one

  std::string name() const { return holder ? holder->name() : ""; }
  // The salt under which a worker caches what this caller's request computes.
  std::string salted(const std::string& salt) const { return holder ? holder->salted(salt) : salt; }
};

// Lets callers in who have a token of the file, where there is one. Those it turns away are told in the log,
// at most a line a second, without what they sent. Thread-safe.
class Access {
 public:
  // token_file: empty: everybody may call. std::runtime_error as TokenFile. on_refused: told of each.
  explicit Access(
      const std::string& token_file, std::function<void()> on_refused = [] {});

  // authorization: the header's value. peer: for the log. Absent: refused.
  std::optional<Caller> admit(std::string_view authorization, std::string_view traceparent,
                              std::string_view peer);
  // The same, of a call's metadata. Callers on a control socket need no token.
  std::optional<Caller> admit(const grpc::ServerContextBase& context);

  static grpc::Status refusal();

  // Somebody was turned away elsewhere, as by TLS.
  void note_refused(std::string_view reason, std::string_view peer);

 private:
  std::unique_ptr<TokenFile> tokens_;  // null: none is asked for
  const std::function<void()> on_refused_;
  std::mutex mutex_;  // guards what follows
  std::chrono::steady_clock::time_point told_;
  int refused_ = 0;  // since then
};

// The metadata of a call; empty when it is not there.
std::string_view metadata_of(const grpc::ServerContextBase& context, const char* key);

// The text, if it is one of version 00; else empty.
std::string valid_traceparent(std::string_view text);

}  // namespace ete::service
