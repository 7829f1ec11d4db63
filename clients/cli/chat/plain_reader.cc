#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "clients/cli/chat/line_reader.h"
#include "clients/cli/process.h"
#include "engine/base/error.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::cli {
namespace {

constexpr size_t kMostBytes = size_t{64} << 20;
constexpr size_t kReadBytes = 64 << 10;

class PlainReader final : public LineReader {
 public:
  explicit PlainReader(int signal_fd) : signal_fd_(signal_fd) {}

  InputLine read(const std::string& /*prompt*/) override {
    while (true) {
      const size_t end = waiting_.find('\n', searched_);
      if (end != std::string::npos) return take(end, end + 1);
      searched_ = waiting_.size();
      if (at_end_ && waiting_.empty()) return {};
      if (at_end_) return take(waiting_.size(), waiting_.size());
      pollfd entries[] = {{STDIN_FILENO, POLLIN, 0}, {signal_fd_, POLLIN, 0}};
      if (poll(entries, std::size(entries), -1) < 0) continue;
      if (entries[1].revents != 0) {
        const int signal = next_signal(signal_fd_, std::chrono::milliseconds(0));
        if (signal != 0) return {InputLine::Kind::signal, "", signal};
      }
      if (entries[0].revents != 0) fill();
    }
  }

 private:
  void fill() {
    std::string bytes(kReadBytes, '\0');
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count < 0) {
      throw Error(ErrorCode::unavailable, std::string("cannot read stdin: ") + strerror(errno));
    }
    at_end_ = count == 0;
    waiting_.append(bytes, 0, static_cast<size_t>(count));
    if (waiting_.size() > kMostBytes && waiting_.find('\n', searched_) == std::string::npos) {
      throw Error(ErrorCode::resource_exhausted, "a line of stdin is longer than 64 MiB");
    }
  }

  InputLine take(size_t length, size_t consumed) {
    InputLine line{InputLine::Kind::line, waiting_.substr(0, length), 0};
    waiting_.erase(0, consumed);
    searched_ = 0;
    ++number_;
    if (const size_t bad = front::find_invalid_utf8(line.text); bad != std::string::npos) {
      throw Error(ErrorCode::invalid_argument,
                  "line " + std::to_string(number_) + " of stdin is not UTF-8: byte " + std::to_string(bad));
    }
    return line;
  }

  const int signal_fd_;
  std::string waiting_;
  size_t searched_ = 0;  // bytes of it that hold no newline
  size_t number_ = 0;
  bool at_end_ = false;
};

}  // namespace

std::unique_ptr<LineReader> make_plain_reader(int signal_fd) {
  return std::make_unique<PlainReader>(signal_fd);
}

}  // namespace ete::cli
