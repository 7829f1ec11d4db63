#include "services/front/chat/render_helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "services/front/chat/render_script.h"
#include "services/front/front_error.h"

namespace ete::front {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint32_t kMostReplyBytes = 64u << 20;

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw FrontError(FrontErrorCode::unavailable,
                     std::string("no pipe to the chat templates: ") + strerror(errno));
  }
  return {ends[0], ends[1]};
}

FrontError not_installed(const std::string& what) {
  return {FrontErrorCode::unsupported,
          "messages: chat templates need " + what +
              ", which is not installed; on Debian: apt install python3-jinja2",
          "messages"};
}

// True once the descriptor is ready; false when time is up.
bool wait_for(int fd, int16_t events, steady_clock::time_point end) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready > 0) return true;
    if (ready == 0 && left.count() <= 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

RenderHelper::RenderHelper(const std::string& python, const RenderLimits& limits) : limits_(limits) {
  spawn(python);
  try {
    wait_until_ready();
  } catch (const FrontError&) {
    stop();
    throw;
  }
}

RenderHelper::~RenderHelper() { stop(); }

void RenderHelper::spawn(const std::string& python) {
  if (access(python.c_str(), X_OK) != 0) throw not_installed(python);
  const Pipe in = make_pipe();
  const Pipe out = make_pipe();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t set;
  sigemptyset(&set);
  posix_spawnattr_setsigmask(&attributes, &set);
  sigfillset(&set);
  posix_spawnattr_setsigdefault(&attributes, &set);
  posix_spawnattr_setpgroup(&attributes, 0);  // a terminal's Ctrl-C is not for it
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::array<std::string, 6> words = {
      python, "-I", "-B", "-c", render_script(), std::to_string(limits_.memory_bytes)};
  std::array<char*, 7> arguments{};
  std::transform(words.begin(), words.end(), arguments.begin(),
                 [](std::string& word) { return word.data(); });
  std::string locale = "LC_ALL=C.UTF-8";
  std::array<char*, 2> environment = {locale.data(), nullptr};
  const int error =
      posix_spawn(&pid_, python.c_str(), &actions, &attributes, arguments.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(in.read);
  close(out.write);
  to_ = in.write;
  from_ = out.read;
  fcntl(to_, F_SETFL, O_NONBLOCK);
  fcntl(from_, F_SETFL, O_NONBLOCK);
  if (error == 0) return;
  pid_ = -1;
  stop();
  throw FrontError(FrontErrorCode::unavailable, "cannot start " + python + ": " + strerror(error));
}

void RenderHelper::wait_until_ready() {
  std::string frame;
  if (!read_frame(frame, steady_clock::now() + limits_.start) || frame.empty()) {
    throw FrontError(FrontErrorCode::unavailable,
                     "the process for chat templates does not start; try again later");
  }
  if (frame[0] == 'm') throw not_installed("Jinja2");
}

RenderHelper::Reply RenderHelper::render(const std::string& request) {
  const Time end = steady_clock::now() + limits_.render;
  const auto size = static_cast<uint32_t>(request.size());
  std::string bytes(sizeof(size), '\0');
  memcpy(bytes.data(), &size, sizeof(size));
  std::string frame;
  if (!write_all(bytes + request, end) || !read_frame(frame, end) || frame.empty()) {
    const bool hung = steady_clock::now() >= end;
    stop();
    if (!hung) return {Reply::Kind::lost, "the process that renders it ended"};
    return {Reply::Kind::hung, "it did not end within " + std::to_string(limits_.render.count()) + " ms"};
  }
  const char kind = frame[0];
  frame.erase(0, 1);
  return {kind == 't'   ? Reply::Kind::text
          : kind == 'r' ? Reply::Kind::raised
          : kind == 'i' ? Reply::Kind::ignored
                        : Reply::Kind::broken,
          std::move(frame)};
}

bool RenderHelper::write_all(const std::string& bytes, Time end) {
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t n = ::write(to_, bytes.data() + written, bytes.size() - written);
    if (n > 0) {
      written += static_cast<size_t>(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      return false;
    } else if (!wait_for(to_, POLLOUT, end)) {
      return false;
    }
  }
  return true;
}

bool RenderHelper::read_all(char* bytes, size_t size, Time end) {
  while (size > 0) {
    const ssize_t n = ::read(from_, bytes, size);
    if (n > 0) {
      bytes += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (!wait_for(from_, POLLIN, end)) {
      return false;
    }
  }
  return true;
}

bool RenderHelper::read_frame(std::string& frame, Time end) {
  uint32_t size = 0;
  std::array<char, sizeof(size)> prefix{};
  if (!read_all(prefix.data(), prefix.size(), end)) return false;
  memcpy(&size, prefix.data(), sizeof(size));
  if (size > kMostReplyBytes) return false;
  frame.resize(size);
  return read_all(frame.data(), size, end);
}

void RenderHelper::stop() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  to_ = from_ = -1;
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace ete::front
