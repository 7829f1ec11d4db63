#include "clients/cli/generate_call.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "clients/cli/process.h"
#include "clients/cli/server_client.h"

namespace ete::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFailureWait{200};  // from a stream's end to the exit of the process that broke it

// A message of the server about a field, about the flag that filled it instead.
std::string with_flag(const std::string& message, const std::string& prompt_name) {
  const std::pair<std::string, std::string> names[] = {{"text", prompt_name},
                                                       {"tokens.ids", "--tokens"},
                                                       {"grammar.gbnf", "--grammar"},
                                                       {"grammar.json_schema", "--json-schema"},
                                                       {"stopping.min_tokens", "--min-tokens"},
                                                       {"draft_tokens", "--draft-tokens"}};
  for (const auto& [name, flag] : names) {
    if (message.rfind(name + ":", 0) == 0 || message.rfind(name + "[", 0) == 0) {
      return flag + message.substr(name.size());
    }
  }
  return message;
}

ErrorCode code_of(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      return ErrorCode::invalid_argument;
    case grpc::StatusCode::UNIMPLEMENTED:
      return ErrorCode::unsupported;
    default:
      return ErrorCode::unavailable;
  }
}

}  // namespace

CallWatcher::CallWatcher(int signal_fd, LocalServers* servers)
    : signal_fd_(signal_fd),
      servers_(servers),
      end_fd_(eventfd(0, EFD_CLOEXEC)),
      cancelled_fd_(eventfd(0, EFD_CLOEXEC)),
      thread_([this] { watch(); }) {}

CallWatcher::~CallWatcher() {
  stop();
  close(end_fd_);
  close(cancelled_fd_);
}

void CallWatcher::stop() {
  if (!thread_.joinable()) return;
  eventfd_write(end_fd_, 1);
  thread_.join();
}

void CallWatcher::watch() {
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

void CallWatcher::begin(grpc::ClientContext* call) {
  const std::lock_guard lock(mutex_);
  under_way_ = call;
  if (cancelled_ && call != nullptr) call->TryCancel();
}

grpc::Status read_stream(v1::Generation::Stub& stub, CallWatcher& watcher, const v1::GenerateRequest& request,
                         const StreamEvents& events, Generated& generated) {
  CallWatcher::Call call(watcher);
  const auto reader = stub.Generate(&call.context, request);
  v1::GenerateReply reply;
  try {
    while (reader->Read(&reply)) {
      if (reply.has_prompt()) generated.prompt = reply.prompt();
      if (reply.has_progress()) events.on_progress(reply.progress());
      if (reply.has_finish()) generated.finish = reply.finish();
      if (!reply.has_piece()) continue;
      generated.text += reply.piece().text();
      generated.ids.insert(generated.ids.end(), reply.piece().ids().begin(), reply.piece().ids().end());
      events.on_text(reply.piece().text());
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
    case v1::FINISH_REASON_GRAMMAR:
      return "grammar";
    default:
      throw Error(ErrorCode::internal, "the server ended the text without a reason");
  }
}

Error reason_of(const grpc::Status& status, LocalServers* servers, const std::string& prompt_name) {
  const auto end = std::chrono::steady_clock::now() + kFailureWait;
  const bool broken = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      status.error_code() == grpc::StatusCode::CANCELLED;
  while (broken && servers != nullptr && std::chrono::steady_clock::now() < end) {
    if (const auto failure = servers->failure()) return *failure;
    std::this_thread::sleep_for(milliseconds(5));
  }
  const ErrorCode code = code_of(status.error_code());
  const std::string message = describe(status);
  return Error(code, code == ErrorCode::invalid_argument ? with_flag(message, prompt_name) : message);
}

std::string render_chat(v1::Generation::Stub& stub, CallWatcher& watcher,
                        const std::vector<v1::ChatMessage>& messages, LocalServers* servers) {
  v1::RenderChatRequest request;
  for (const v1::ChatMessage& message : messages) *request.add_messages() = message;
  CallWatcher::Call call(watcher);
  v1::RenderChatReply reply;
  const grpc::Status status = stub.RenderChat(&call.context, request, &reply);
  if (!status.ok()) throw reason_of(status, servers);
  return std::move(*reply.mutable_text());
}

void set_chat_prompt(v1::GenerateRequest& request, std::string text) {
  request.set_text(std::move(text));
  // The template wrote the special tokens itself, bos among them.
  request.set_add_special(false);
  request.set_parse_special(true);
}

}  // namespace ete::cli
