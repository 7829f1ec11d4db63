#include "services/front/http/http_stream.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>

namespace ete::front {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr int kMostUnsentBytes = 16 << 10;

}  // namespace

class HttpStream::Tls : public asio::ssl::stream<Socket> {
 public:
  using asio::ssl::stream<Socket>::stream;
};

HttpStream::HttpStream(Socket socket, std::shared_ptr<asio::ssl::context> tls) : context_(std::move(tls)) {
  error_code ignored;  // a Unix socket has no such options
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  // Beyond this, what the client has not room for waits with us: else the kernel takes megabytes that nobody
  // reads, and the client does not seem to be behind.
  (void)setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMostUnsentBytes,
                   sizeof(kMostUnsentBytes));
  if (context_ == nullptr) {
    plain_ = std::make_unique<Socket>(std::move(socket));
  } else {
    tls_ = std::make_unique<Tls>(std::move(socket), *context_);
  }
}

HttpStream::~HttpStream() = default;

HttpStream::Socket& HttpStream::socket() { return tls_ != nullptr ? tls_->next_layer() : *plain_; }

HttpStream::Socket::executor_type HttpStream::executor() { return socket().get_executor(); }

void HttpStream::handshake(Done done) {
  if (tls_ == nullptr) return done({}, 0);
  tls_->async_handshake(asio::ssl::stream_base::server,
                        [done = std::move(done)](const error_code& error) { done(error, 0); });
}

void HttpStream::read_some(asio::mutable_buffer buffer, Done done) {
  if (tls_ != nullptr) {
    tls_->async_read_some(buffer, std::move(done));
  } else {
    plain_->async_read_some(buffer, std::move(done));
  }
}

void HttpStream::write_some(asio::const_buffer buffer, Done done) {
  if (tls_ != nullptr) {
    tls_->async_write_some(buffer, std::move(done));
  } else {
    plain_->async_write_some(buffer, std::move(done));
  }
}

void HttpStream::end_writing(Done done) {
  if (tls_ != nullptr) {
    tls_->async_shutdown([done = std::move(done)](const error_code& error) { done(error, 0); });
    return;
  }
  error_code ignored;
  plain_->shutdown(Socket::shutdown_send, ignored);
}

void HttpStream::close() {
  error_code ignored;
  socket().close(ignored);
}

std::string HttpStream::peer() {
  error_code error;
  const auto endpoint = socket().remote_endpoint(error);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const auto* address = static_cast<const sockaddr*>(static_cast<const void*>(endpoint.data()));
  if (error || address->sa_family == AF_UNIX ||
      getnameinfo(address, static_cast<socklen_t>(endpoint.size()), host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return error ? "" : "unix:";
  }
  return std::string(host) + ":" + port;
}

}  // namespace ete::front
