#include "services/front/chat/chat_renderer.h"

#include <utility>

namespace ete::front {
namespace {

// what: as render_helper.py names it. Answering as if it had not been there would be answering something
// else.
FrontError ignores(const std::string& what) {
  if (what == "tools") {
    return {FrontErrorCode::unsupported,
            "tools: the model's chat template does not take tools; expected a request without them or with "
            "\"tool_choice\": \"none\", or a model whose template takes them",
            "tools"};
  }
  const std::string dropped = what == "tool" ? "turns of the role \"tool\"" : "tool_calls";
  return {FrontErrorCode::unsupported,
          "messages: the model's chat template drops " + dropped +
              "; expected a conversation without them, or a model whose template takes them",
          "messages"};
}

}  // namespace

ChatRenderer::ChatRenderer(RenderLimits limits, std::string python)
    : limits_(limits), python_(std::move(python)), thread_([this] { run(); }) {}

ChatRenderer::~ChatRenderer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  for (const Job& job : jobs_) {
    job.done({"", FrontError(FrontErrorCode::unavailable, "the front is shutting down")});
  }
}

void ChatRenderer::render(const ChatTemplates& templates, bool has_tools,
                          const nlohmann::ordered_json& variables, Done done) {
  nlohmann::ordered_json request = {{"template", templates.choose(has_tools)},
                                    {"variables", templates.special_tokens},
                                    {"output_bytes", limits_.output_bytes}};
  request["variables"].update(variables);
  Job job{request.dump(), std::move(done)};
  const std::lock_guard lock(mutex_);
  if (jobs_.size() >= limits_.jobs || job_bytes_ + job.request.size() > limits_.job_bytes) {
    throw FrontError(FrontErrorCode::resource_exhausted,
                     "too many conversations wait for the model's chat template; try again later");
  }
  job_bytes_ += job.request.size();
  jobs_.push_back(std::move(job));
  wake_.notify_all();
}

void ChatRenderer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) break;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    job_bytes_ -= job.request.size();
    lock.unlock();
    job.done(answer(job.request));
    job = {};
    lock.lock();
  }
  lock.unlock();
  helper_.reset();
}

ChatRenderer::Result ChatRenderer::answer(const std::string& request) {
  using Kind = RenderHelper::Reply::Kind;
  try {
    RenderHelper::Reply reply = ask(request);
    // It may have been killed while it had nothing to do.
    if (reply.kind == Kind::lost) reply = ask(request);
    if (reply.kind == Kind::text) return {std::move(reply.text), std::nullopt};
    if (reply.kind == Kind::ignored) return {"", ignores(reply.text)};
    if (reply.kind == Kind::raised) {
      return {"", FrontError(FrontErrorCode::invalid_argument,
                             "messages: the model's chat template refuses them: " + reply.text, "messages")};
    }
    return {"",
            FrontError(FrontErrorCode::unsupported,
                       "messages: the model's chat template cannot be rendered: " + reply.text, "messages")};
  } catch (const FrontError& error) {
    return {"", error};
  } catch (const std::exception& error) {
    return {"", FrontError(FrontErrorCode::internal, error.what())};
  }
}

RenderHelper::Reply ChatRenderer::ask(const std::string& request) {
  if (helper_ == nullptr) helper_ = std::make_unique<RenderHelper>(python_, limits_);
  RenderHelper::Reply reply = helper_->render(request);
  const bool useless =
      reply.kind == RenderHelper::Reply::Kind::hung || reply.kind == RenderHelper::Reply::Kind::lost;
  if (useless) helper_.reset();
  return reply;
}

}  // namespace ete::front
