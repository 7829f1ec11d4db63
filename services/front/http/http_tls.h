#pragma once

// Asio needs it before its own headers under g++ 12.
#include <utility>

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <mutex>

#include "services/common/tls.h"

namespace ete::front {

// The TLS context of an HTTP server, made anew when its files have changed. Thread-safe.
class HttpTls {
 public:
  // std::runtime_error naming the file that cannot be used.
  explicit HttpTls(service::TlsFiles files);

  // For connections made from now on.
  std::shared_ptr<boost::asio::ssl::context> context();

 private:
  service::TlsReader reader_;
  std::mutex mutex_;                                     // guards what follows
  std::shared_ptr<const service::TlsContents> made_of_;  // what the context was
  std::shared_ptr<boost::asio::ssl::context> context_;
};

}  // namespace ete::front
