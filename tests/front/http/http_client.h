#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace ete::front {

struct HttpAnswer {
  int status = 0;  // 0: the connection ended before a whole answer
  std::map<std::string, std::string> headers;
  std::string body;

  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

// One connection to a port of this machine; byte by byte what a test says. Reads give up after 20 s.
class HttpClient {
 public:
  explicit HttpClient(int port, int receive_buffer = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    const timeval limit{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Nothing more will be sent; what comes is still read.
  void end_sending() { shutdown(fd_, SHUT_WR); }
  bool send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  static std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  // Until `mark` is among what has come and was not taken; false when the connection ends first.
  bool wait_for(const std::string& mark) {
    while (in_.find(mark) == std::string::npos) {
      if (!receive()) return false;
    }
    return true;
  }
  HttpAnswer read() {
    HttpAnswer answer;
    if (!wait_for("\r\n\r\n")) return answer;
    const size_t end = in_.find("\r\n\r\n");
    const std::string head = in_.substr(0, end + 2);
    in_.erase(0, end + 4);
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t line_end = head.find("\r\n", at);
      const std::string line = head.substr(at, line_end - at);
      const size_t colon = line.find(':');
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(tolower(c));
      answer.headers[name] = line.substr(line.find_first_not_of(' ', colon + 1));
      at = line_end + 2;
    }
    if (read_body(answer)) answer.status = std::atoi(head.c_str() + head.find(' '));
    return answer;
  }
  HttpAnswer ask(const std::string& request) {
    send(request);
    return read();
  }
  // True when the server has closed the connection and nothing else came.
  bool ended() { return in_.empty() && !receive() && errno != EAGAIN; }

 private:
  bool receive() {
    char bytes[4096];
    errno = 0;
    const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
    if (n > 0) in_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }
  bool take(size_t size, std::string& out) {
    while (in_.size() < size) {
      if (!receive()) return false;
    }
    out += in_.substr(0, size);
    in_.erase(0, size);
    return true;
  }
  bool read_body(HttpAnswer& answer) {
    if (answer.headers.contains("content-length")) {
      return take(std::stoul(answer.headers["content-length"]), answer.body);
    }
    if (answer.headers["transfer-encoding"] != "chunked") return true;
    while (wait_for("\r\n")) {
      const size_t size = std::stoul(in_, nullptr, 16);
      in_.erase(0, in_.find("\r\n") + 2);
      std::string end;
      if (!take(size, answer.body) || !take(2, end)) return false;
      if (size == 0) return true;
    }
    return false;
  }

  int fd_;
  bool connected_ = false;
  std::string in_;
};

}  // namespace ete::front
