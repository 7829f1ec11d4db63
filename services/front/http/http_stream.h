#pragma once

// Asio needs it before its own headers under g++ 12.
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <functional>
#include <memory>
#include <string>

namespace boost::asio::ssl {
class context;
}

namespace ete::front {

// The bytes of one connection, through TLS or not. What is begun here ends on the socket's executor; one read
// and one write at a time. Not thread-safe.
class HttpStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Done = std::function<void(const boost::system::error_code& error, size_t bytes)>;

  // tls: null: none.
  HttpStream(Socket socket, std::shared_ptr<boost::asio::ssl::context> tls);
  ~HttpStream();

  Socket::executor_type executor();
  // First.
  void handshake(Done done);
  void read_some(boost::asio::mutable_buffer buffer, Done done);
  void write_some(boost::asio::const_buffer buffer, Done done);
  // Nothing more is written; the other end is told.
  void end_writing(Done done);
  void close();
  // Whom it goes to, for the log.
  std::string peer();

 private:
  class Tls;
  Socket& socket();

  std::shared_ptr<boost::asio::ssl::context> context_;
  std::unique_ptr<Socket> plain_;  // one of these
  std::unique_ptr<Tls> tls_;
};

}  // namespace ete::front
