#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "services/front/chat/chat_templates.h"
#include "services/front/chat/render_helper.h"
#include "services/front/front_error.h"

namespace ete::front {

// Conversations to text by a model's template, one after the other on a thread of its own, in a process of
// its own that is started when first needed, killed when a template does not end, and started again.
// Thread-safe.
class ChatRenderer {
 public:
  explicit ChatRenderer(RenderLimits limits = {}, std::string python = "/usr/bin/python3");
  // What waits is given up.
  ~ChatRenderer();
  ChatRenderer(const ChatRenderer&) = delete;
  ChatRenderer& operator=(const ChatRenderer&) = delete;

  struct Result {
    std::string text;
    // invalid_argument: the template refuses the conversation. unsupported: it cannot be rendered, it ignores
    // the conversation's tools, or a package is missing. unavailable: try again.
    std::optional<FrontError> error;
  };
  using Done = std::function<void(Result)>;

  // variables: an object, what the template is given beside the special tokens. done is called once, on the
  // renderer's thread or, at its end, on the destructor's; it must not throw. FrontError(resource_exhausted):
  // too many wait; what choose() throws; then done is not called.
  void render(const ChatTemplates& templates, bool has_tools, const nlohmann::ordered_json& variables,
              Done done);

 private:
  struct Job {
    std::string request;
    Done done;
  };

  void run();
  Result answer(const std::string& request);
  RenderHelper::Reply ask(const std::string& request);

  const RenderLimits limits_;
  const std::string python_;
  std::unique_ptr<RenderHelper> helper_;  // the thread's own

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  size_t job_bytes_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ete::front
