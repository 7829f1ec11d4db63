#include "services/common/stop_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace ete::service {

StopSignal::StopSignal(std::function<void(int)> on_stop) : on_stop_(std::move(on_stop)) {
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGTERM);
  sigaddset(&stops, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  signal_fd_ = signalfd(-1, &stops, SFD_CLOEXEC);
  end_fd_ = eventfd(0, EFD_CLOEXEC);
  if (signal_fd_ < 0 || end_fd_ < 0) throw std::system_error(errno, std::generic_category(), "signalfd");
  thread_ = std::thread([this] { wait(); });
}

StopSignal::~StopSignal() {
  eventfd_write(end_fd_, 1);
  thread_.join();
  close(signal_fd_);
  close(end_fd_);
}

void StopSignal::wait() {
  bool stopping = false;
  pollfd watched[] = {{signal_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
  while (true) {
    if (poll(watched, 2, -1) < 0) continue;
    if (watched[1].revents != 0) return;
    signalfd_siginfo info{};
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    if (stopping) std::_Exit(128 + signal);
    stopping = true;
    on_stop_(signal);
  }
}

}  // namespace ete::service
