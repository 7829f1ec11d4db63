#include "services/common/access.h"

#include <grpcpp/security/auth_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "services/common/logging.h"

namespace ete::service {
namespace {

constexpr std::chrono::seconds kTellInterval{1};
constexpr std::string_view kScheme = "bearer ";

// The token of an Authorization header; empty: it holds none.
std::string_view token_of(std::string_view authorization) {
  if (authorization.size() < kScheme.size()) return {};
  const bool bearer = std::equal(
      kScheme.begin(), kScheme.end(), authorization.begin(),
      [](char expected, char c) { return expected == std::tolower(static_cast<unsigned char>(c)); });
  return bearer ? authorization.substr(kScheme.size()) : std::string_view();
}

// Of the server's control socket, where only its owner's processes are let in.
bool is_local_credentials(const grpc::ServerContextBase& context) {
  const auto auth = context.auth_context();
  if (auth == nullptr) return false;
  const auto kinds = auth->FindPropertyValues("transport_security_type");
  return std::any_of(kinds.begin(), kinds.end(),
                     [](const grpc::string_ref& kind) { return kind == "local"; });
}

}  // namespace

std::string_view metadata_of(const grpc::ServerContextBase& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

std::string valid_traceparent(std::string_view text) {
  constexpr std::string_view kShape = "00-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";
  const auto fits = [](char shape, char c) {
    const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    return shape == 'h' ? hex : c == shape;
  };
  const bool valid =
      text.size() == kShape.size() && std::equal(kShape.begin(), kShape.end(), text.begin(), fits);
  return valid ? std::string(text) : "";
}

Access::Access(const std::string& token_file, std::function<void()> on_refused)
    : tokens_(token_file.empty() ? nullptr : std::make_unique<TokenFile>(token_file)),
      on_refused_(std::move(on_refused)) {}

std::optional<Caller> Access::admit(std::string_view authorization, std::string_view traceparent,
                                    std::string_view peer) {
  Caller caller{.holder = nullptr, .traceparent = valid_traceparent(traceparent)};
  if (tokens_ == nullptr) return caller;
  caller.holder = tokens_->find(token_of(authorization));
  if (caller.holder != nullptr) return caller;
  note_refused("no token, or a wrong one", peer);
  return std::nullopt;
}

std::optional<Caller> Access::admit(const grpc::ServerContextBase& context) {
  const std::string_view traceparent = metadata_of(context, "traceparent");
  if (is_local_credentials(context)) {
    return Caller{.holder = nullptr, .traceparent = valid_traceparent(traceparent)};
  }
  return admit(metadata_of(context, "authorization"), traceparent, context.peer());
}

grpc::Status Access::refusal() {
  return {grpc::StatusCode::UNAUTHENTICATED,
          "authorization: expected metadata \"authorization: Bearer TOKEN\" with a token of this server"};
}

void Access::note_refused(std::string_view reason, std::string_view peer) {
  on_refused_();
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  ++refused_;
  if (now - told_ < kTellInterval) return;
  told_ = now;
  log_event(spdlog::level::warn, "refused",
            {{"reason", std::string(reason)},
             {"peer", std::string(peer)},
             {"calls", std::to_string(std::exchange(refused_, 0))}});
}

}  // namespace ete::service
