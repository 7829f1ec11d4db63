#include "services/common/connection_acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace ete::service {
namespace {

constexpr int kPauseMs = 100;  // after a failure, as when descriptors run out

}  // namespace

ConnectionAcceptor::ConnectionAcceptor(int fd, std::unique_ptr<Sink> sink)
    : listener_(fd), end_fd_(eventfd(0, EFD_CLOEXEC)), sink_(std::move(sink)) {
  if (end_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  // Another process may accept what poll has told of.
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0) {
    throw std::system_error(errno, std::generic_category(), "fcntl");
  }
}

ConnectionAcceptor::~ConnectionAcceptor() {
  stop();
  close(listener_);
  close(end_fd_);
}

void ConnectionAcceptor::start() {
  thread_ = std::thread([this] { accept_until_stopped(); });
}

void ConnectionAcceptor::stop() {
  if (!thread_.joinable()) return;
  eventfd_write(end_fd_, 1);
  thread_.join();
}

void ConnectionAcceptor::accept_until_stopped() {
  pollfd watched[] = {{listener_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
  while (true) {
    if (poll(watched, 2, -1) < 0) continue;
    if (watched[1].revents != 0) return;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Sink::NewConnectionParameters connection;
      connection.fd = fd;
      sink_->HandleNewConnection(&connection);
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      poll(&watched[1], 1, kPauseMs);
    }
  }
}

}  // namespace ete::service
