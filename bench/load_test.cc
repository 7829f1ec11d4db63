// Many clients of a server at once, each stream compared bit for bit with the same request run alone before:
// ids, text and log probabilities. Prints what clients waited for, and the memory of processes at rest, at
// minute marks. Exits with 1 when a stream failed or differed, or memory grew by more than is allowed.

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "clients/options/command_line.h"
#include "ete/v1/generation.grpc.pb.h"
#include "services/common/address.h"
#include "services/common/process.h"
#include "services/common/retry_after.h"

namespace ete {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kRest{1};

struct Options {
  std::string address = "127.0.0.1:50051";
  int streams = 64;
  double seconds = 60;
  double warm_seconds = 0;  // of the same load before those; memory is compared with what it is behind them
  int pool = 24;            // different requests
  int prompt_tokens = 200;  // at most
  int max_tokens = 48;      // likewise
  double pause_ms = 50;     // between a stream's requests, on average
  int join = 0;             // tokens of a prompt that joins the streams; 0: random arrival instead
  unsigned seed = 1;
  std::vector<int> pids;
  std::optional<double> most_growth_mib;  // of each of them
};

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// What a stream said.
struct Said {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;  // one an id
  std::string text;
  bool operator==(const Said&) const = default;
};

struct Outcome {
  grpc::Status status;
  Said said;
  double first_ms = 0;              // to the first token
  std::vector<double> gaps_ms;      // between tokens
  std::vector<double> gap_ends_ms;  // when each ended, of the load's clock
  std::optional<std::chrono::milliseconds> retry_after;
};

class Server {
 public:
  explicit Server(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    // A connection carries a bounded number of calls.
    for (size_t i = 0; i < kConnections; ++i) {
      arguments.SetInt("ete.load.connection", static_cast<int>(i));
      stubs_.push_back(v1::Generation::NewStub(grpc::CreateCustomChannel(
          service::parse_address(address).grpc_target(), grpc::InsecureChannelCredentials(), arguments)));
    }
  }

  v1::GetModelInfoReply model() const {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::GetModelInfoReply reply;
    const grpc::Status status = stubs_[0]->GetModel(&context, {}, &reply);
    if (!status.ok()) throw std::runtime_error("GetModel: " + status.error_message());
    return reply;
  }

  // start: of the load's clock.
  Outcome generate(size_t stream, v1::GenerateRequest request, Clock::time_point start) const {
    // Nothing is reused: what comes from an earlier reply is alike within tolerance only.
    request.set_cache_salt(service::random_id());
    Outcome outcome;
    grpc::ClientContext context;
    const Clock::time_point asked = Clock::now();
    Clock::time_point last = asked;
    const auto reader = stubs_[stream % kConnections]->Generate(&context, request);
    for (v1::GenerateReply reply; reader->Read(&reply);) {
      if (!reply.has_piece()) continue;
      const v1::Piece& piece = reply.piece();
      if (outcome.said.ids.empty()) {
        outcome.first_ms = ms_since(asked);
      } else {
        outcome.gaps_ms.push_back(ms_since(last));
        outcome.gap_ends_ms.push_back(ms_since(start));
      }
      last = Clock::now();
      outcome.said.ids.insert(outcome.said.ids.end(), piece.ids().begin(), piece.ids().end());
      for (const auto& one : piece.logprobs()) outcome.said.logprobs.push_back(one.logprob());
      outcome.said.text += piece.text();
    }
    outcome.status = reader->Finish();
    outcome.retry_after = service::retry_after(context.GetServerTrailingMetadata());
    return outcome;
  }

 private:
  static constexpr size_t kConnections = 4;
  std::vector<std::unique_ptr<v1::Generation::Stub>> stubs_;
};

v1::GenerateRequest random_request(std::mt19937& random, int vocab_size, int prompt_tokens, int max_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < prompt_tokens; ++i) {
    request.mutable_tokens()->add_ids(static_cast<int32_t>(random() % static_cast<unsigned>(vocab_size)));
  }
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_seed(random());
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_logprobs()->set_top(0);
  return request;
}

// Short prompts mostly, and some long ones.
std::vector<v1::GenerateRequest> make_pool(const Options& options, int vocab_size) {
  std::mt19937 random(options.seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<v1::GenerateRequest> pool;
  for (int i = 0; i < options.pool; ++i) {
    const double share = uniform(random);
    const int prompt = 1 + static_cast<int>(share * share * (options.prompt_tokens - 1));
    const int tokens = 1 + static_cast<int>(uniform(random) * (options.max_tokens - 1));
    pool.push_back(random_request(random, vocab_size, prompt, tokens));
  }
  return pool;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

void print_line(const char* name, const std::vector<double>& values) {
  std::printf("%-22s p50 %8.2f  p99 %8.2f  most %8.2f ms, of %zu\n", name, percentile(values, 0.5),
              percentile(values, 0.99), percentile(values, 1), values.size());
}

// Lets streams begin a request, or waits until none runs.
class Gate {
 public:
  void enter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !closed_; });
    ++inside_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --inside_;
    changed_.notify_all();
  }
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    changed_.wait(lock, [this] { return inside_ == 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int inside_ = 0;
};

double resident_mib(int pid) {
  std::ifstream statm("/proc/" + std::to_string(pid) + "/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// What processes hold at marks, of which the first is the measure of the others: at rest, since sessions that
// run hold as much as they please within the plan.
class Memory {
 public:
  explicit Memory(const Options& options) : options_(options) {}
  void mark(const std::string& name) {
    for (const int pid : options_.pids) {
      const double mib = resident_mib(pid);
      std::printf("%s: process %d holds %.1f MiB\n", name.c_str(), pid, mib);
      const double first = first_.emplace(pid, mib).first->second;
      if (!options_.most_growth_mib || mib <= first + *options_.most_growth_mib) continue;
      flat_ = false;
      std::fprintf(stderr, "load_test: process %d has grown from %.1f to %.1f MiB; accepted: %.1f more\n",
                   pid, first, mib, *options_.most_growth_mib);
    }
    std::fflush(stdout);
  }
  bool flat() const { return flat_; }

 private:
  const Options& options_;
  std::map<int, double> first_;  // by process
  bool flat_ = true;
};

// What all streams saw. Thread-safe.
class Tally {
 public:
  void add(const Outcome& outcome, const Said& expected) {
    const std::lock_guard lock(mutex_);
    if (outcome.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      ++refused_;
      return;
    }
    ++ended_;
    if (!outcome.status.ok()) {
      fail(outcome.status.error_message());
    } else if (!(outcome.said == expected)) {
      fail("a stream of " + std::to_string(outcome.said.ids.size()) + " tokens is not that of the same " +
           "request alone");
    }
    first_ms_.push_back(outcome.first_ms);
    gaps_ms_.insert(gaps_ms_.end(), outcome.gaps_ms.begin(), outcome.gaps_ms.end());
    gap_ends_ms_.insert(gap_ends_ms_.end(), outcome.gap_ends_ms.begin(), outcome.gap_ends_ms.end());
    tokens_ += outcome.said.ids.size();
  }
  bool good() const { return failures_ == 0 && ended_ > 0; }
  void print(double seconds) const {
    std::printf("%d streams ended, %d refused for a while, %d failed or differed; %.1f tokens/s\n", ended_,
                refused_, failures_, static_cast<double>(tokens_) / seconds);
    print_line("first token", first_ms_);
    print_line("between tokens", gaps_ms_);
  }
  // Of the gaps that ended within [from, to) of the load's clock.
  std::vector<double> gaps_between(double from, double to) const {
    std::vector<double> gaps;
    for (size_t i = 0; i < gaps_ms_.size(); ++i) {
      if (gap_ends_ms_[i] >= from && gap_ends_ms_[i] < to) gaps.push_back(gaps_ms_[i]);
    }
    return gaps;
  }

 private:
  void fail(const std::string& why) {
    if (++failures_ <= 5) std::fprintf(stderr, "load_test: %s\n", why.c_str());
  }

  std::mutex mutex_;
  int ended_ = 0, refused_ = 0, failures_ = 0;
  size_t tokens_ = 0;
  std::vector<double> first_ms_, gaps_ms_, gap_ends_ms_;
};

std::vector<Said> run_alone(const Server& server, const std::vector<v1::GenerateRequest>& pool) {
  std::vector<Said> alone;
  for (const v1::GenerateRequest& request : pool) {
    Outcome outcome = server.generate(0, request, Clock::now());
    if (!outcome.status.ok()) throw std::runtime_error("alone: " + outcome.status.error_message());
    alone.push_back(std::move(outcome.said));
  }
  return alone;
}

// Streams that come and go at random for a while.
bool run_load(const Options& options, const Server& server, const std::vector<v1::GenerateRequest>& pool) {
  const std::vector<Said> alone = run_alone(server, pool);
  Tally tally;
  Gate gate;
  const double warm_ms = options.warm_seconds * 1000;
  std::atomic<double> end_ms = warm_ms + options.seconds * 1000;  // later by what rests take
  const Clock::time_point start = Clock::now();
  const auto sleep_until = [&](double ms) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms - ms_since(start)));
  };
  const auto stream = [&](int number) {
    std::mt19937 random(options.seed * 1000 + static_cast<unsigned>(number));
    std::exponential_distribution<double> pause(1 / std::max(options.pause_ms, 1e-3));
    while (ms_since(start) < end_ms) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pause(random)));
      const size_t which = random() % pool.size();
      gate.enter();
      // Over while it waited there.
      if (ms_since(start) >= end_ms) return gate.leave();
      const Outcome outcome = server.generate(static_cast<size_t>(number), pool[which], start);
      gate.leave();
      tally.add(outcome, alone[which]);
      if (outcome.retry_after) std::this_thread::sleep_for(*outcome.retry_after);
    }
  };
  std::vector<std::jthread> streams;
  for (int i = 0; i < options.streams; ++i) streams.emplace_back(stream, i);
  Memory memory(options);
  const auto mark_at_rest = [&](const std::string& name) {
    gate.close();
    // Sessions end behind their replies.
    std::this_thread::sleep_for(kRest);
    memory.mark(name);
  };
  sleep_until(warm_ms);
  for (int mark = 0; ms_since(start) < end_ms; ++mark) {
    const double from = ms_since(start);
    mark_at_rest("minute " + std::to_string(mark));
    end_ms += ms_since(start) - from;
    gate.open();
    sleep_until(std::min(ms_since(start) + 60'000, end_ms.load()));
  }
  mark_at_rest("end");
  gate.open();
  streams.clear();
  tally.print(ms_since(start) / 1000);
  return tally.good() && memory.flat();
}

// Streams that decode, and a long prompt that joins them.
bool run_join(const Options& options, const Server& server, int vocab_size) {
  std::mt19937 random(options.seed);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < options.streams; ++i) {
    requests.push_back(random_request(random, vocab_size, 16, options.max_tokens));
  }
  const v1::GenerateRequest joining = random_request(random, vocab_size, options.join, 1);
  const std::vector<Said> alone = run_alone(server, requests);
  const Said joined_alone = run_alone(server, {joining}).front();
  Tally tally;
  const Clock::time_point start = Clock::now();
  std::vector<std::jthread> streams;
  for (int i = 0; i < options.streams; ++i) {
    streams.emplace_back([&, i] {
      const auto index = static_cast<size_t>(i);
      tally.add(server.generate(index, requests[index], start), alone[index]);
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  const double from = ms_since(start);
  const Outcome outcome = server.generate(0, joining, start);
  const double to = ms_since(start);
  streams.clear();
  const bool same = outcome.status.ok() && outcome.said == joined_alone;
  std::printf("a prompt of %d tokens joined %d streams, and had its token after %.0f ms%s\n", options.join,
              options.streams, to - from, same ? "" : ", which is not that of the same request alone");
  print_line("between tokens before", tally.gaps_between(from / 2, from));
  print_line("  while it joined", tally.gaps_between(from, to));
  tally.print(ms_since(start) / 1000);
  return same && tally.good();
}

std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app("Runs many streams against a server and compares each with the same request alone.",
               "load_test");
  app.add_option("--address", options.address, "where the server listens [127.0.0.1:50051]");
  app.add_option("--streams", options.streams, "streams at a time [64]")->check(CLI::Range(1, 4096));
  app.add_option("--seconds", options.seconds, "how long; with --join: until the prompt joins [60]")
      ->check(CLI::Range(0.1, 86'400.0));
  app.add_option("--warm-seconds", options.warm_seconds, "of the same load before those [0]")
      ->check(CLI::Range(0.0, 86'400.0));
  app.add_option("--pool", options.pool, "different requests [24]")->check(CLI::Range(1, 10'000));
  app.add_option("--prompt-tokens", options.prompt_tokens, "of a prompt, at most [200]")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-tokens", options.max_tokens, "of a reply, at most [48]")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--pause-ms", options.pause_ms, "between two requests of a stream, on average [50]")
      ->check(CLI::Range(0.0, 3.6e6));
  app.add_option("--join", options.join, "tokens of a prompt that joins the streams [none: random arrival]")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", options.seed, "of requests and pauses [1]");
  app.add_option("--pid", options.pids, "processes whose memory is printed");
  app.add_option("--most-growth", options.most_growth_mib,
                 "MiB that each of these may grow by, from minute 0 on [any]")
      ->check(CLI::Range(0.0, 1e6));
  return parse_command_line(app, argc, argv);
}

int run(const Options& options) {
  const Server server(options.address);
  const v1::GetModelInfoReply model = server.model();
  const int most = std::max(options.join, options.prompt_tokens) + options.max_tokens;
  if (most > model.context()) {
    throw std::runtime_error("--prompt-tokens and --max-tokens: " + std::to_string(most) +
                             " tokens; accepted: together at most the context of " +
                             std::to_string(model.context()));
  }
  const bool good = options.join > 0 ? run_join(options, server, model.vocab_size())
                                     : run_load(options, server, make_pool(options, model.vocab_size()));
  return good ? 0 : 1;
}

}  // namespace
}  // namespace ete

int main(int argc, char** argv) {
  ete::Options options;
  if (const auto exit_code = ete::parse(argc, argv, options)) return *exit_code;
  try {
    return ete::run(options);
  } catch (const std::exception& error) {
    std::cerr << ete::error_line("load_test", error.what()) << "\n";
    return 1;
  }
}
