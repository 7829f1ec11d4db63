#include <arpa/inet.h>

#include <cctype>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "client_impl.h"

namespace ete::client {
namespace {

constexpr std::string_view kUnixScheme = "unix:";

bool is_unix(std::string_view address) { return address.substr(0, kUnixScheme.size()) == kUnixScheme; }

[[noreturn]] void refuse(const std::string& address, const std::string& expected) {
  throw std::invalid_argument("address \"" + address + "\": " + expected + " is expected");
}

// Whatever is not plain in the path of a socket as %XX.
std::string unix_target(std::string_view path) {
  std::string target(kUnixScheme);
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::strchr("/-_.~", c) != nullptr) {
      target += c;
    } else {
      constexpr char kDigits[] = "0123456789ABCDEF";
      target += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return target;
}

// gRPC's name for host:port or unix:PATH.
std::string target_of(const std::string& address) {
  if (is_unix(address)) {
    if (address.size() == kUnixScheme.size()) refuse(address, "unix: and the path of a socket");
    return unix_target(std::string_view(address).substr(kUnixScheme.size()));
  }
  const size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  constexpr size_t kMostDigits = 5;
  if (colon == 0 || address.find('/') != std::string::npos || port.empty() || port.size() > kMostDigits ||
      port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535) {
    refuse(address, "host:port or unix:PATH");
  }
  return address;
}

bool is_local(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  in_addr v4{};
  return is_unix(address) || host == "localhost" || host == "[::1]" ||
         (inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127);
}

std::shared_ptr<grpc::ChannelCredentials> credentials_of(const std::optional<Tls>& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  if (tls->certificate.has_value() != tls->private_key.has_value()) {
    throw std::invalid_argument("tls: certificate and private_key belong together");
  }
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = tls->root_certificates.value_or("");
  options.pem_cert_chain = tls->certificate.value_or("");
  options.pem_private_key = tls->private_key.value_or("");
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> connect(const std::string& address, const std::optional<Tls>& tls) {
  constexpr int kFirstReconnectMs = 100;
  constexpr int kMostReconnectMs = 2000;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMostReconnectMs);
  if (tls && tls->server_name) arguments.SetSslTargetNameOverride(*tls->server_name);
  return grpc::CreateCustomChannel(target_of(address), credentials_of(tls), arguments);
}

void check(const std::string& address, const Options& options) {
  const Retry& retry = options.retry;
  if (retry.attempts < 1 || retry.initial.count() < 0 || retry.maximum < retry.initial) {
    throw std::invalid_argument("retry: at least 1 attempt, and 0 <= initial <= maximum");
  }
  if (options.token && !options.tls && !is_local(address)) {
    throw std::invalid_argument("token: " + address +
                                " is another machine and the connection is not encrypted; give tls");
  }
}

}  // namespace

Client::Impl::Impl(const std::string& address, Options options) : options_(std::move(options)) {
  check(address, options_);
  stub_ = v1::Generation::NewStub(connect(address, options_.tls));
}

Client::Client(const std::string& address, Options options)
    : impl_(std::make_unique<Impl>(address, std::move(options))) {}
Client::Client(Client&& other) noexcept = default;
Client::~Client() = default;

Stream Client::generate(const v1::GenerateRequest& request, std::optional<std::chrono::milliseconds> timeout,
                        OnProgress on_progress) {
  Stream::Impl::Deadline deadline;
  if (timeout) deadline = std::chrono::system_clock::now() + *timeout;
  return Stream(std::make_unique<Stream::Impl>(*impl_, request, deadline, std::move(on_progress)));
}

}  // namespace ete::client
