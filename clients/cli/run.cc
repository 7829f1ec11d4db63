#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "clients/cli/arguments.h"
#include "clients/cli/command.h"
#include "clients/cli/local_servers.h"
#include "clients/cli/output.h"
#include "clients/cli/run_options.h"
#include "clients/cli/server_client.h"
#include "clients/cli/session_file.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr milliseconds kFailureWait{200};  // from a stream's end to the exit of the process that broke it
constexpr std::chrono::seconds kPlanLimit{5};

// Cancels the call that is under way, and those to come, when a signal comes, one of our servers ends, or
// nobody reads stdout any more. Owns signal_fd's reading and the servers' polling until it is destroyed.
class Watcher {
 public:
  // One call, under way until it is destroyed; one at a time.
  class Call {
   public:
    explicit Call(Watcher& watcher) : watcher_(watcher) { watcher_.begin(&context); }
    ~Call() { watcher_.begin(nullptr); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    grpc::ClientContext context;

   private:
    Watcher& watcher_;
  };

  Watcher(int signal_fd, LocalServers* servers)
      : signal_fd_(signal_fd),
        servers_(servers),
        end_fd_(eventfd(0, EFD_CLOEXEC)),
        cancelled_fd_(eventfd(0, EFD_CLOEXEC)),
        thread_([this] { watch(); }) {}
  ~Watcher() {
    stop();
    close(end_fd_);
    close(cancelled_fd_);
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Nothing is watched afterwards.
  void stop() {
    if (!thread_.joinable()) return;
    eventfd_write(end_fd_, 1);
    thread_.join();
  }
  // Can be read once the call was cancelled.
  int cancelled_fd() const { return cancelled_fd_; }
  // Once stopped: the signal that came, or 0.
  int signal() const { return signal_; }
  bool stdout_closed() const { return stdout_closed_; }

 private:
  void watch() {
    // Without events asked for, poll tells errors: of a pipe, that its reader is gone, even while there is
    // nothing to write.
    pollfd entries[] = {{end_fd_, POLLIN, 0}, {signal_fd_, POLLIN, 0}, {STDOUT_FILENO, 0, 0}};
    while (true) {
      if (poll(entries, std::size(entries), -1) < 0) continue;
      if (entries[0].revents != 0) return;
      const int signal = entries[1].revents != 0 ? next_signal(signal_fd_, milliseconds(0)) : 0;
      if (signal != SIGCHLD) signal_ = signal;
      stdout_closed_ = entries[2].revents != 0;
      const bool server_ended = signal == SIGCHLD && servers_ != nullptr && servers_->failure();
      if (signal_ == 0 && !stdout_closed_ && !server_ended) continue;
      eventfd_write(cancelled_fd_, 1);
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      if (under_way_ != nullptr) under_way_->TryCancel();
      return;
    }
  }
  void begin(grpc::ClientContext* call) {
    const std::lock_guard lock(mutex_);
    under_way_ = call;
    if (cancelled_ && call != nullptr) call->TryCancel();
  }

  const int signal_fd_;
  LocalServers* const servers_;
  const int end_fd_;
  const int cancelled_fd_;
  int signal_ = 0;
  bool stdout_closed_ = false;
  std::mutex mutex_;  // guards what follows
  bool cancelled_ = false;
  grpc::ClientContext* under_way_ = nullptr;
  std::thread thread_;  // last: it uses the others
};

struct Generated {
  v1::PromptInfo prompt;
  std::string text;
  std::vector<int32_t> ids;
  v1::Finish finish;
};

// Reads the stream to its end; `on_text` gets the text as it comes.
grpc::Status read_stream(v1::Generation::Stub& stub, Watcher& watcher, const v1::GenerateRequest& request,
                         const std::function<void(const std::string&)>& on_text, Generated& generated) {
  Watcher::Call call(watcher);
  const auto reader = stub.Generate(&call.context, request);
  v1::GenerateReply reply;
  try {
    while (reader->Read(&reply)) {
      if (reply.has_prompt()) generated.prompt = reply.prompt();
      if (reply.has_finish()) generated.finish = reply.finish();
      if (!reply.has_piece()) continue;
      generated.text += reply.piece().text();
      generated.ids.insert(generated.ids.end(), reply.piece().ids().begin(), reply.piece().ids().end());
      on_text(reply.piece().text());
    }
  } catch (const Error&) {
    call.context.TryCancel();
    reader->Finish();
    throw;
  }
  return reader->Finish();
}

std::string name_of(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop_string";
    case v1::FINISH_REASON_STOP_TOKEN:
      return "stop_token";
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "context_full";
    default:
      throw Error(ErrorCode::internal, "the server ended the text without a reason");
  }
}

Json document(const Generated& generated, const std::string& plan_json) {
  const v1::GenerationTimings& timings = generated.finish.timings();
  return {{"prompt_ids", generated.prompt.prompt_ids()},
          {"ids", generated.ids},
          {"text", generated.text},
          {"finish_reason", name_of(generated.finish.reason())},
          {"timings",
           {{"queued_ms", timings.queued_ms()},
            {"prefill_ms", timings.prefill_ms()},
            {"decode_ms", timings.decode_ms()},
            {"prefill_tokens_per_second", timings.prefill_tokens_per_second()},
            {"decode_tokens_per_second", timings.decode_tokens_per_second()},
            {"full_rows_fetched", timings.full_rows_fetched()},
            {"reused_tokens", generated.finish.reused_tokens()}}},
          {"plan", Json::parse(plan_json)}};
}

// A message of the server about a field, about the flag that filled it instead.
std::string with_flag(const std::string& message) {
  for (const auto& [field, flag] : {std::pair("text", "PROMPT"), std::pair("tokens.ids", "--tokens")}) {
    const std::string name = field;
    if (message.rfind(name + ":", 0) == 0 || message.rfind(name + "[", 0) == 0) {
      return flag + message.substr(name.size());
    }
  }
  return message;
}

// The reason why a call failed: the process that ended, if one did, rather than the broken connection.
Error reason_of(const grpc::Status& status, LocalServers* servers) {
  const auto end = std::chrono::steady_clock::now() + kFailureWait;
  const bool broken = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      status.error_code() == grpc::StatusCode::CANCELLED;
  while (broken && servers != nullptr && std::chrono::steady_clock::now() < end) {
    if (const auto failure = servers->failure()) return *failure;
    std::this_thread::sleep_for(milliseconds(5));
  }
  const bool invalid = status.error_code() == grpc::StatusCode::INVALID_ARGUMENT;
  return Error(invalid ? ErrorCode::invalid_argument : ErrorCode::unavailable,
               invalid ? with_flag(describe(status)) : describe(status));
}

std::string plan_of(v1::Generation::Stub& stub, Watcher& watcher) {
  Watcher::Call call(watcher);
  call.context.set_deadline(std::chrono::system_clock::now() + kPlanLimit);
  v1::GetModelInfoReply model;
  const grpc::Status status = stub.GetModel(&call.context, {}, &model);
  if (!status.ok()) throw Error(ErrorCode::unavailable, "the server's plan: " + describe(status));
  return model.plan_json();
}

// What the plan says about flags that were given.
void tell_notes(const std::string& plan_json) {
  const Json plan = Json::parse(plan_json);
  for (const Json& note : plan.value("notes", Json::array())) warn("ete run", note.get<std::string>());
}

// The request goes on from what the file holds, when there is one.
void continue_session(v1::Generation::Stub& stub, Watcher& watcher, const std::string& path,
                      v1::GenerateRequest& request) {
  std::optional<v1::RestoreReply> restored;
  {
    Watcher::Call call(watcher);
    restored = restore_session(stub, call.context, path);
  }
  if (!restored) return;
  v1::TokenIds prompt;
  *prompt.mutable_ids() = restored->ids();
  if (request.has_text()) {
    Watcher::Call call(watcher);
    v1::TokenizeRequest tokenize;
    tokenize.set_text(request.text());
    tokenize.set_add_special(false);
    v1::TokenizeReply tokenized;
    const grpc::Status status = stub.Tokenize(&call.context, tokenize, &tokenized);
    if (!status.ok()) throw Error(ErrorCode::unavailable, describe(status));
    prompt.mutable_ids()->MergeFrom(tokenized.ids());
  } else {
    prompt.mutable_ids()->MergeFrom(request.tokens().ids());
  }
  *request.mutable_tokens() = std::move(prompt);
  request.set_cache_salt(restored->cache_salt());
}

void keep_session(v1::Generation::Stub& stub, Watcher& watcher, const std::string& path,
                  const v1::GenerateRequest& request, const Generated& generated) {
  v1::SnapshotRequest snapshot;
  *snapshot.mutable_ids() = generated.prompt.prompt_ids();
  snapshot.mutable_ids()->Add(generated.ids.begin(), generated.ids.end());
  snapshot.set_cache_salt(request.cache_salt());
  Watcher::Call call(watcher);
  save_session(stub, call.context, path, snapshot);
}

int run(const CLI::App& command, const RunOptions& options) {
  v1::GenerateRequest request = make_request(command, options);
  if (!options.session.empty()) check_session_path(options.session);
  const int signal_fd = block_signals_into_fd({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD});
  std::unique_ptr<LocalServers> servers;
  if (options.address.empty()) {
    servers = std::make_unique<LocalServers>(options.model.empty() ? default_model() : options.model,
                                             engine_arguments(command));
    const int signal = servers->wait_until_ready(signal_fd);
    if (signal != 0) return kSignalExitBase + signal;
  }
  const auto stub = v1::Generation::NewStub(connect(servers ? servers->address() : options.address));
  Watcher watcher(signal_fd, servers.get());
  const auto write = [&](const std::string& text) { print(text, watcher.cancelled_fd()); };
  const auto on_text = [&](const std::string& text) {
    if (!options.json) write(text);
  };
  Generated generated;
  grpc::Status status;
  std::optional<Error> failure;
  try {
    if (!engine_arguments(command).empty()) tell_notes(plan_of(*stub, watcher));
    const bool keep = !options.session.empty();
    if (keep) continue_session(*stub, watcher, options.session, request);
    status = read_stream(*stub, watcher, request, on_text, generated);
    if (status.ok() && keep) keep_session(*stub, watcher, options.session, request, generated);
    if (status.ok())
      write(options.json ? to_text(document(generated, plan_of(*stub, watcher))) + "\n" : "\n");
  } catch (const Error& error) {
    failure = error;
  }
  watcher.stop();
  if (watcher.signal() != 0) return kSignalExitBase + watcher.signal();
  if (watcher.stdout_closed()) throw Error(ErrorCode::unavailable, "cannot write to stdout: Broken pipe");
  if (failure) throw *failure;
  if (status.ok()) {
    if (!options.json && generated.text.empty() && !generated.ids.empty()) {
      warn("ete run", "no text came of " + std::to_string(generated.ids.size()) + " ids; --json prints them");
    }
    return 0;
  }
  if (!options.json && !generated.text.empty()) print("\n");
  throw reason_of(status, servers.get());
}

}  // namespace

void add_run_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("run", "Continue a text: starts worker and front, streams to stdout");
  auto options = std::make_shared<RunOptions>();
  add_run_flags(*command, *options);
  command->callback(
      [&action, options, command] { action = [options, command] { return run(*command, *options); }; });
}

}  // namespace ete::cli
