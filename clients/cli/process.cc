#include "clients/cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <thread>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

extern "C" char** environ;

namespace ete::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPollInterval{2};

class SpawnSettings {
 public:
  SpawnSettings() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    sigset_t set;
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&attributes_, &set);
    sigfillset(&set);
    posix_spawnattr_setsigdefault(&attributes_, &set);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  void send_output_to(const std::string& log_file) {
    if (!log_file.empty()) {
      posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, log_file.c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    }
    posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

std::string describe(const ExitStatus& status) {
  if (status.signal == 0) return "exit code " + std::to_string(status.code);
  const char* name = sigdescr_np(status.signal);
  return "signal " + std::to_string(status.signal) + (name ? " (" + std::string(name) + ")" : "");
}

Child Child::start(const ChildCommand& command) {
  SpawnSettings settings;
  settings.send_output_to(command.log_file);
  std::vector<char*> argv{const_cast<char*>(command.program.c_str())};
  for (const std::string& argument : command.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, command.program.c_str(), settings.actions(), settings.attributes(),
                                argv.data(), environ);
  if (error != 0) {
    throw Error(ErrorCode::unavailable, "cannot start " + command.program + ": " + strerror(error));
  }
  return Child(pid);
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}

Child& Child::operator=(Child&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    status_ = other.status_;
  }
  return *this;
}

Child::~Child() { end(); }

void Child::end() {
  if (pid_ < 0 || status_) return;
  kill();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<ExitStatus> Child::poll() {
  if (status_ || pid_ < 0) return status_;
  int raw = 0;
  if (waitpid(pid_, &raw, WNOHANG) != pid_) return std::nullopt;
  status_ = WIFSIGNALED(raw) ? ExitStatus{0, WTERMSIG(raw)} : ExitStatus{WEXITSTATUS(raw), 0};
  return status_;
}

void Child::signal(int number) {
  // An unreaped child keeps its pid, so this can hit no other process.
  if (pid_ > 0 && !poll()) ::kill(pid_, number);
}

void Child::terminate() { signal(SIGTERM); }

void Child::kill() { signal(SIGKILL); }

bool Child::wait_for(milliseconds limit) { return wait_until(steady_clock::now() + limit); }

bool Child::wait_until(steady_clock::time_point end) {
  while (!poll()) {
    if (steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

void stop_all(const std::vector<Child*>& children, milliseconds grace) {
  for (Child* child : children) child->terminate();
  const auto end = steady_clock::now() + grace;
  for (Child* child : children) {
    if (!child->wait_until(end)) child->kill();
  }
  for (Child* child : children) {
    while (!child->wait_for(std::chrono::seconds(1))) {
    }
  }
}

int block_signals_into_fd(const std::vector<int>& signals) {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0, "pthread_sigmask");
  const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  CHECK(fd >= 0, std::string("signalfd: ") + strerror(errno));
  return fd;
}

int next_signal(int signal_fd, milliseconds limit) {
  pollfd entry{signal_fd, POLLIN, 0};
  if (::poll(&entry, 1, static_cast<int>(limit.count())) <= 0) return 0;
  signalfd_siginfo info;
  if (read(signal_fd, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

std::string beside_executable(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

}  // namespace ete::cli
