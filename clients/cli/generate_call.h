#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "clients/cli/local_servers.h"
#include "engine/base/error.h"
#include "ete/v1/generation.grpc.pb.h"

// One call of Generation.Generate from the command line: what it gives, what ends it, and why it failed.

namespace ete::cli {

// Cancels the call that is under way, and those to come, when a signal comes, one of our servers ends, or
// nobody reads stdout any more. Owns signal_fd's reading and the servers' polling until it is destroyed.
class CallWatcher {
 public:
  // One call, under way until it is destroyed; one at a time.
  class Call {
   public:
    explicit Call(CallWatcher& watcher) : watcher_(watcher) { watcher_.begin(&context); }
    ~Call() { watcher_.begin(nullptr); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    grpc::ClientContext context;

   private:
    CallWatcher& watcher_;
  };

  CallWatcher(int signal_fd, LocalServers* servers);
  ~CallWatcher();
  CallWatcher(const CallWatcher&) = delete;
  CallWatcher& operator=(const CallWatcher&) = delete;

  // Nothing is watched afterwards.
  void stop();
  // Can be read once the call was cancelled.
  int cancelled_fd() const { return cancelled_fd_; }
  // Once stopped: the signal that came, or 0.
  int signal() const { return signal_; }
  bool stdout_closed() const { return stdout_closed_; }

 private:
  void watch();
  void begin(grpc::ClientContext* call);

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

struct StreamEvents {
  std::function<void(const v1::PromptProgress& progress)> on_progress;  // before any text
  std::function<void(const std::string& text)> on_text;  // as it comes; whatever it throws is passed on
};

// Reads the stream to its end, or to its failure: `generated` then holds what came before.
grpc::Status read_stream(v1::Generation::Stub& stub, CallWatcher& watcher, const v1::GenerateRequest& request,
                         const StreamEvents& events, Generated& generated);

// "length", "stop_string", "stop_token", "context_full". Throws Error(internal) for a stream that
// ended without a reason.
std::string name_of(v1::FinishReason reason);

// The reason why a call failed: the process that ended, if one did, rather than the broken connection. What
// the server says about the prompt's text is said about `prompt_name`.
Error reason_of(const grpc::Status& status, LocalServers* servers, const std::string& prompt_name = "PROMPT");

// A conversation as the text of a prompt, which ends where the assistant's turn begins. Throws Error: with
// code unsupported when the model has no template or it cannot be rendered.
std::string render_chat(v1::Generation::Stub& stub, CallWatcher& watcher,
                        const std::vector<v1::ChatMessage>& messages, LocalServers* servers);

// The request's prompt becomes this text of render_chat.
void set_chat_prompt(v1::GenerateRequest& request, std::string text);

}  // namespace ete::cli
