#pragma once

// Asio needs it before its own headers under g++ 12.
#include <utility>

#include <array>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "services/common/tls.h"

namespace ete::front {

// The TLS context of an HTTP server, made anew when a file of it has changed. Files that cannot be used then
// are reported, and the context stays. Thread-safe.
class HttpTls {
 public:
  // std::runtime_error naming the file that cannot be used.
  explicit HttpTls(service::TlsFiles files);

  // For connections made from now on.
  std::shared_ptr<boost::asio::ssl::context> context();

 private:
  using Stamps = std::array<std::string, 3>;  // of the files: changed when they differ
  Stamps stamps() const;
  std::shared_ptr<boost::asio::ssl::context> make() const;

  const service::TlsFiles files_;
  std::mutex mutex_;  // guards what follows
  Stamps seen_;
  std::chrono::steady_clock::time_point looked_;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

}  // namespace ete::front
