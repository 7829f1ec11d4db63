#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>

namespace ete::front {

struct RenderLimits {
  std::chrono::milliseconds start{20'000};  // until the helper is ready
  std::chrono::milliseconds render{2'000};
  size_t output_bytes = size_t{4} << 20;
  size_t memory_bytes = size_t{512} << 20;  // of the helper's address space
  size_t jobs = 64;                         // that wait
  size_t job_bytes = size_t{32} << 20;      // theirs together
};

// A Python process that runs Jinja2's sandbox, render_helper.py, and nothing else. Not thread-safe. The
// thread that starts it must outlive it.
class RenderHelper {
 public:
  // FrontError(unsupported): Python or Jinja2 is not installed. (unavailable): it does not start.
  RenderHelper(const std::string& python, const RenderLimits& limits);
  ~RenderHelper();  // kills it
  RenderHelper(const RenderHelper&) = delete;
  RenderHelper& operator=(const RenderHelper&) = delete;

  struct Reply {
    enum class Kind {
      text,
      raised,   // by the template, about the conversation
      ignored,  // something of tools, which leaves no trace in the text: "tools", "tool_calls" or "tool"
      broken,   // the template cannot be rendered
      hung,     // it took too long; this helper is of no more use
      lost,     // it ended; likewise
    };
    Kind kind = Kind::lost;
    std::string text;  // or why not
  };
  // request: as render_helper.py takes it.
  Reply render(const std::string& request);

 private:
  using Time = std::chrono::steady_clock::time_point;

  void spawn(const std::string& python);
  void wait_until_ready();
  bool write_all(const std::string& bytes, Time end);
  // False: it ended, or time is up.
  bool read_all(char* bytes, size_t size, Time end);
  bool read_frame(std::string& frame, Time end);
  void stop();

  const RenderLimits limits_;
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
};

}  // namespace ete::front
