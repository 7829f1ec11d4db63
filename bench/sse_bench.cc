// What the front adds to a token on its way to a client of its HTTP API: the time from a worker's answer to
// the event at the client, while some clients stream and many more wait. The worker is a stand-in that
// answers at a given pace, one session after another as ete-worker does; it and the clients are in this
// process, the front is one of its own, started here.

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/front/toy_worker.h"

namespace ete {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr int kMostOfEach = 30'000;  // two ids of a byte tell clients apart

struct Options {
  std::string front;
  int active = 64;
  int idle = 512;
  int pace_ms = 50;
  int tokens = 200;       // of each active client
  bool together = false;  // all sessions are answered at once, as by one pass; else each at a time of its own
  double most_p99_ms = 0;
};

void check(bool fine, const std::string& what) {
  if (!fine) throw std::runtime_error(what + ": " + std::strerror(errno));
}

// When the worker answered. A client is known by its prompt: two ids.
class Pacer {
 public:
  explicit Pacer(const Options& options)
      : options_(options), sent_(static_cast<size_t>(options.active)), begun_(Clock::now()) {
    for (auto& times : sent_)
      times = std::vector<std::atomic<int64_t>>(static_cast<size_t>(options.tokens) + 1);
  }

  // Until this reply's turn; it is the only one under way as long as what is returned is held.
  std::unique_lock<std::mutex> wait(const std::vector<int32_t>& prompt, int reply) {
    const int client = prompt.at(0) * 256 + prompt.at(1);
    if (client >= options_.active) {
      while (!stop_) std::this_thread::sleep_for(milliseconds(200));
      return {};
    }
    const milliseconds phase(options_.together ? 0 : client * options_.pace_ms / options_.active);
    const auto ticks = (Clock::now() - begun_ - phase) / milliseconds(options_.pace_ms) + 1;
    std::this_thread::sleep_until(begun_ + phase + ticks * milliseconds(options_.pace_ms));
    std::unique_lock turn(turn_);
    if (reply < options_.tokens) {
      sent_[static_cast<size_t>(client)][static_cast<size_t>(reply)] =
          Clock::now().time_since_epoch().count();
    }
    return turn;
  }
  double ms_since_sent(int client, int reply) const {
    const int64_t sent = sent_[static_cast<size_t>(client)][static_cast<size_t>(reply)];
    return static_cast<double>(Clock::now().time_since_epoch().count() - sent) / 1e6;
  }
  void stop() { stop_ = true; }

 private:
  const Options options_;
  std::vector<std::vector<std::atomic<int64_t>>> sent_;  // [client, reply] ns
  const Clock::time_point begun_;
  std::mutex turn_;
  std::atomic<bool> stop_{false};
};

// The worker waits for its sessions, and they for the pacer, however this ends.
struct Stop {
  Pacer& pacer;
  ~Stop() { pacer.stop(); }
};

int free_port() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  check(bind(probe, reinterpret_cast<sockaddr*>(&address), size) == 0, "bind");
  check(getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
  close(probe);
  return ntohs(address.sin_port);
}

struct Folder {
  Folder() { check(mkdtemp(path.data()) != nullptr, path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = "/tmp/ete-sse-XXXXXX";
};

class Front {
 public:
  Front(const Options& options, const std::string& folder, int port) {
    const std::vector<std::string> words{options.front,
                                         "--worker=unix:" + folder + "/worker",
                                         "--listen=unix:" + folder + "/front",
                                         "--http=127.0.0.1:" + std::to_string(port),
                                         "--max-requests=" + std::to_string(options.active + options.idle),
                                         "--drain-grace=1",
                                         "--log-level=error"};
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_ = fork();
    check(pid_ >= 0, "fork");
    if (pid_ == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Front() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  double cpu_seconds() const {
    std::array<char, 4096> text{};
    FILE* file = fopen(("/proc/" + std::to_string(pid_) + "/stat").c_str(), "r");
    check(file != nullptr, "the front is gone");
    const size_t size = fread(text.data(), 1, text.size() - 1, file);
    fclose(file);
    const std::string all(text.data(), size);
    long user = 0, system = 0;
    sscanf(all.c_str() + all.rfind(')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user,
           &system);
    return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

 private:
  pid_t pid_ = 0;
};

struct Client {
  int socket = -1;
  int tokens = 0;
  std::string unread;  // less than an event
  bool done = false;
};

int connect_to(int port) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int tries = 0; connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0;
       ++tries) {
    check(tries < 200, "connect");
    std::this_thread::sleep_for(milliseconds(50));
  }
  return connection;
}

void ask(const Client& client, int index, int tokens) {
  const std::string body =
      "{\"prompt\": [" + std::to_string(index / 256) + ", " + std::to_string(index % 256) +
      "], \"max_tokens\": " + std::to_string(tokens) +
      ", \"temperature\": 0, \"ignore_eos\": true, \"draft_tokens\": 0, \"stream\": true}";
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  check(write(client.socket, request.data(), request.size()) == static_cast<ssize_t>(request.size()),
        "write");
}

// Streams of all clients, until those that are active have their tokens: ms of each token since the worker's
// answer.
class Streams {
 public:
  Streams(const Options& options, const Pacer& pacer, int port)
      : options_(options), pacer_(pacer), poll_(epoll_create1(0)) {
    const int count = options.active + options.idle;
    clients_.resize(static_cast<size_t>(count));
    // Those that wait first, so that they are there all the while.
    for (int i = count - 1; i >= 0; --i) {
      Client& client = clients_[static_cast<size_t>(i)];
      client.socket = connect_to(port);
      fcntl(client.socket, F_SETFL, O_NONBLOCK);
      epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(i)}};
      check(epoll_ctl(poll_, EPOLL_CTL_ADD, client.socket, &event) == 0, "epoll_ctl");
      ask(client, i, options.tokens);
    }
  }
  ~Streams() {
    for (const Client& client : clients_) close(client.socket);
    close(poll_);
  }

  std::vector<double> run() {
    std::vector<double> added_ms;
    std::array<epoll_event, 64> events{};
    for (int running = options_.active; running > 0;) {
      const int count = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), 60000);
      check(count > 0, "no event for a minute");
      for (int i = 0; i < count; ++i)
        running -= read_some(static_cast<int>(events[static_cast<size_t>(i)].data.u32), added_ms);
    }
    return added_ms;
  }

 private:
  // 1: that was the client's last token.
  int read_some(int index, std::vector<double>& added_ms) {
    Client& client = clients_[static_cast<size_t>(index)];
    std::array<char, 16384> bytes{};
    const ssize_t size = read(client.socket, bytes.data(), bytes.size());
    check(size > 0, "a stream ended early: " + client.unread);
    client.unread.append(bytes.data(), static_cast<size_t>(size));
    for (size_t end; (end = client.unread.find("\n\n")) != std::string::npos;
         client.unread.erase(0, end + 2)) {
      const std::string event = client.unread.substr(0, end);
      if (event.find("\"error\"") != std::string::npos) throw std::runtime_error(event);
      if (index >= options_.active || event.find("\"finish_reason\":null") == std::string::npos) continue;
      added_ms.push_back(pacer_.ms_since_sent(index, client.tokens++));
    }
    if (client.tokens < options_.tokens || index >= options_.active || client.done) return 0;
    client.done = true;
    return 1;
  }

  const Options options_;
  const Pacer& pacer_;
  const int poll_;
  std::vector<Client> clients_;
};

int parse(int argc, char** argv, Options& options) {
  CLI::App app("What the front adds to a token on its way to a client of its HTTP API");
  app.add_option("front", options.front, "ete-front")->required();
  const auto number = [&](const char* name, int& value, int least, const char* what) {
    app.add_option(name, value, what)->check(CLI::Range(least, kMostOfEach))->capture_default_str();
  };
  number("--active", options.active, 1, "clients that are answered");
  number("--idle", options.idle, 0, "clients whose stream stays silent");
  number("--pace", options.pace_ms, 1, "ms between a session's tokens");
  number("--tokens", options.tokens, 1, "of each client that is answered");
  app.add_flag("--together", options.together, "all sessions are answered at once, as by one pass");
  app.add_option("--most-p99", options.most_p99_ms,
                 "fail where the 99th percentile exceeds so many ms; 0: never");
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? -1 : 2;
  }
}

int run(const Options& options) {
  const Folder folder;
  Pacer pacer(options);
  std::vector<double> added_ms;
  double cpu = 0, seconds = 0;
  {
    front::ToyWorker::Options paced;
    paced.path = folder.path + "/worker";
    paced.context = 2048;
    paced.pace = [&](const std::vector<int32_t>& prompt, int reply) { return pacer.wait(prompt, reply); };
    const front::ToyWorker worker(paced);
    const Stop stop{pacer};
    const int port = free_port();
    const Front front(options, folder.path, port);
    Streams streams(options, pacer, port);
    const double cpu_before = front.cpu_seconds();
    const Clock::time_point begin = Clock::now();
    added_ms = streams.run();
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    cpu = front.cpu_seconds() - cpu_before;
  }
  std::sort(added_ms.begin(), added_ms.end());
  const auto percentile = [&](double share) {
    return added_ms[std::min(added_ms.size() - 1,
                             static_cast<size_t>(share * static_cast<double>(added_ms.size())))];
  };
  std::printf("%d active, %d idle, %zu tokens in %.1f s, front %.0f us of CPU a token\n", options.active,
              options.idle, added_ms.size(), seconds, cpu / static_cast<double>(added_ms.size()) * 1e6);
  std::printf("added ms: median %.2f, p90 %.2f, p99 %.2f, p99.9 %.2f, most %.2f\n", percentile(0.5),
              percentile(0.9), percentile(0.99), percentile(0.999), added_ms.back());
  return options.most_p99_ms > 0 && percentile(0.99) > options.most_p99_ms ? 1 : 0;
}

}  // namespace
}  // namespace ete

int main(int argc, char** argv) {
  ete::Options options;
  if (const int code = ete::parse(argc, argv, options); code != 0) return code < 0 ? 0 : code;
  try {
    return ete::run(options);
  } catch (const std::exception& error) {
    std::cerr << "sse_bench: " << error.what() << '\n';
    return 1;
  }
}
