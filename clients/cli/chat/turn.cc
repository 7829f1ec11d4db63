#include "clients/cli/chat/turn.h"

#include <optional>
#include <stdexcept>

#include "clients/cli/output.h"
#include "clients/cli/prompt_bar.h"
#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::cli {
namespace {

constexpr uint32_t kDelete = 0x7f;
constexpr uint32_t kLastControl = 0x9f;

std::string reason_text(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "; cut at max-tokens";
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "; the context is full";
    case v1::FINISH_REASON_STOP_STRING:
      return "; ended by a stop string";
    default:
      return "";
  }
}

}  // namespace

std::unique_ptr<v1::Generation::Stub> stub_of(const ChatHost& host) {
  try {
    return v1::Generation::NewStub(connect(host.front));
  } catch (const std::runtime_error& error) {
    throw Error(ErrorCode::unavailable, error.what());
  }
}

Reply Replies::ask(const Conversation& conversation, const ChatSettings& settings) {
  v1::GenerateRequest request;
  *request.mutable_sampling() = settings.sampling;
  *request.mutable_stopping() = settings.stopping;
  CallWatcher watcher(host_.signal_fd, host_.servers);
  Reply reply;
  PromptBar bar(request);
  StreamEvents events;
  events.on_progress = [&](const v1::PromptProgress& progress) { bar.draw(progress); };
  events.on_text = [&](const std::string& text) {
    bar.clear();
    print(host_.to_terminal ? without_controls(text) : text, watcher.cancelled_fd());
  };
  std::optional<Error> failure;
  grpc::Status status;
  try {
    const auto stub = stub_of(host_);
    set_chat_prompt(request, render_chat(*stub, watcher, conversation.messages(), host_.servers));
    status = read_stream(*stub, watcher, request, events, reply.generated);
    bar.clear();
  } catch (const Error& error) {
    failure = error;
  }
  watcher.stop();
  reply.signal = watcher.signal();
  if (watcher.stdout_closed()) throw Error(ErrorCode::unavailable, "cannot write to stdout: Broken pipe");
  const bool ended = (status.ok() && !failure) || reply.signal != 0;
  if (ended || !reply.generated.text.empty()) print("\n");
  if (reply.signal != 0) return reply;
  if (failure) throw *failure;
  if (!status.ok()) throw reason_of(status, host_.servers, "the conversation");
  return reply;
}

std::string figures_of(const Reply& reply) {
  const v1::Finish& finish = reply.generated.finish;
  if (reply.signal != 0) return "[stopped after " + std::to_string(reply.generated.ids.size()) + " tokens]";
  const v1::GenerationTimings& timings = finish.timings();
  std::string text = formatted("[%lld tokens", static_cast<long long>(finish.generated_tokens()));
  if (timings.decode_tokens_per_second() > 0) {
    text += formatted(", %.1f tokens/s", timings.decode_tokens_per_second());
  }
  text += formatted("; prompt %lld tokens", static_cast<long long>(finish.prompt_tokens()));
  if (finish.reused_tokens() > 0) {
    text += formatted(", %lld reused", static_cast<long long>(finish.reused_tokens()));
  }
  if (timings.prefill_tokens_per_second() > 0) {
    text += formatted(", %.0f tokens/s", timings.prefill_tokens_per_second());
  }
  return text + reason_text(finish.reason()) + "]";
}

std::string without_controls(const std::string& text) {
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const front::Utf8Char c = front::read_utf8(rest);
    const bool is_control = c.code_point < ' ' ? c.code_point != '\n' && c.code_point != '\t'
                                               : c.code_point >= kDelete && c.code_point <= kLastControl;
    out += !c.valid || is_control ? front::kReplacement : rest.substr(0, c.length);
    rest.remove_prefix(c.length);
  }
  return out;
}

}  // namespace ete::cli
