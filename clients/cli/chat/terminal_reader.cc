#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <deque>
#include <iterator>
#include <string_view>
#include <utility>

#include "clients/cli/chat/line_reader.h"
#include "clients/cli/process.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

constexpr int kHistoryLines = 1000;
constexpr int kEscapeMs = 30;  // within which the bytes of one key arrive
constexpr char kEscape = '\033';
constexpr wchar_t kReturnSign = L'\u21b5';
constexpr wchar_t kReplacement = L'\ufffd';
constexpr std::string_view kPasteBegins = "[200~";
constexpr std::string_view kPasteEnds = "\033[201~";
constexpr const char* kPasteOn = "\033[?2004h";
constexpr const char* kPasteOff = "\033[?2004l";

// Valid UTF-8 under LC_CTYPE C.UTF-8.
std::string utf8_of(std::wstring_view text) {
  std::string bytes;
  std::mbstate_t state{};
  for (const wchar_t c : text) {
    char buffer[MB_LEN_MAX];
    const size_t count = std::wcrtomb(buffer, c == kReturnSign ? L'\n' : c, &state);
    if (count != static_cast<size_t>(-1)) bytes.append(buffer, count);
  }
  return bytes;
}

// Keys of a terminal as characters, with what was pasted in between.
class Keys {
 public:
  explicit Keys(int signal_fd) : signal_fd_(signal_fd) {}

  // 1: a character; 0: the end; -1: a signal or an error, errno says which. As libedit wants it.
  int next(wchar_t* c) {
    while (characters_.empty()) {
      const int got = read_bytes(-1);
      if (got <= 0) return got;
      decode();
    }
    *c = characters_.front();
    characters_.pop_front();
    return 1;
  }
  // That ended next(), or 0.
  int take_signal() { return std::exchange(signal_, 0); }

 private:
  // Waits so long, at most, for more bytes: 1 got some; 0 the end, or nothing came; -1 as next().
  int read_bytes(int limit_ms) {
    while (true) {
      pollfd entries[] = {{STDIN_FILENO, POLLIN, 0}, {signal_fd_, POLLIN, 0}};
      const int ready = poll(entries, std::size(entries), limit_ms);
      if (ready < 0) continue;
      if (ready == 0) return 0;
      if (entries[1].revents != 0) signal_ = next_signal(signal_fd_, std::chrono::milliseconds(0));
      if (signal_ != 0) {
        errno = EINTR;
        return -1;
      }
      if (entries[0].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = read(STDIN_FILENO, buffer, sizeof buffer);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return static_cast<int>(count);
      bytes_.append(buffer, static_cast<size_t>(count));
      return 1;
    }
  }

  // Whole keys become characters; what is left in bytes_ is the beginning of one.
  void decode() {
    while (!bytes_.empty()) {
      if (pasting_) {
        const size_t end = bytes_.find(kPasteEnds);
        // The mark may be on its way.
        const size_t sure = end != std::string::npos ? end : bytes_.size() - tail_of_mark();
        paste(bytes_.substr(0, sure));
        bytes_.erase(0, end != std::string::npos ? end + kPasteEnds.size() : sure);
        pasting_ = end == std::string::npos;
        if (pasting_) return;
      } else if (bytes_[0] == kEscape) {
        decode_escape();
      } else if (!decode_character()) {
        return;
      }
    }
  }

  size_t tail_of_mark() const {
    for (size_t length = std::min(kPasteEnds.size() - 1, bytes_.size()); length > 0; --length) {
      if (bytes_.ends_with(kPasteEnds.substr(0, length))) return length;
    }
    return 0;
  }

  void decode_escape() {
    while (bytes_.size() <= kPasteBegins.size() &&
           kPasteBegins.starts_with(std::string_view(bytes_).substr(1))) {
      if (read_bytes(kEscapeMs) <= 0) break;
    }
    const std::string_view rest = std::string_view(bytes_).substr(1);
    if (rest.starts_with(kPasteBegins)) {
      bytes_.erase(0, 1 + kPasteBegins.size());
      pasting_ = true;
    } else if (rest.starts_with('\r') || rest.starts_with('\n')) {
      bytes_.erase(0, 2);
      characters_.push_back(kReturnSign);
    } else {
      bytes_.erase(0, 1);
      characters_.push_back(kEscape);
    }
  }

  // False: its last bytes are missing.
  bool decode_character() {
    wchar_t c = 0;
    std::mbstate_t state{};
    const size_t length = std::mbrtowc(&c, bytes_.data(), bytes_.size(), &state);
    if (length == static_cast<size_t>(-2)) return false;
    const bool bad = length == static_cast<size_t>(-1);
    characters_.push_back(bad ? kReplacement : c);
    bytes_.erase(0, bad || length == 0 ? 1 : length);
    return true;
  }

  // Pasted control characters must not become commands of the editor. A newline comes as one of the two.
  void paste(const std::string& text) {
    std::mbstate_t state{};
    for (size_t at = 0; at < text.size();) {
      wchar_t c = 0;
      size_t length = std::mbrtowc(&c, text.data() + at, text.size() - at, &state);
      if (length == static_cast<size_t>(-1) || length == static_cast<size_t>(-2)) {
        state = {};
        c = kReplacement;
        length = 1;
      }
      at += std::max<size_t>(1, length);
      if (c == L'\n' || c == L'\r') c = kReturnSign;
      if (c == L'\t') c = L' ';
      if (c >= L' ' && c != 0x7f) characters_.push_back(c);
    }
  }

  const int signal_fd_;
  int signal_ = 0;
  std::string bytes_;
  std::deque<wchar_t> characters_;
  bool pasting_ = false;
};

class TerminalReader final : public LineReader {
 public:
  // What is shown goes to stderr where stdout is kept in a file.
  explicit TerminalReader(int signal_fd)
      : keys_(signal_fd), screen_(isatty(STDOUT_FILENO) == 1 ? stdout : stderr) {
    // What the service speaks, whatever the environment says.
    std::setlocale(LC_CTYPE, "C.UTF-8");
    edit_ = el_init("ete", stdin, screen_, stderr);
    history_ = history_winit();
    if (edit_ == nullptr || history_ == nullptr) {
      close();
      throw Error(ErrorCode::unavailable, "the terminal cannot be used for editing");
    }
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, kHistoryLines);
    history_w(history_, &event, H_SETUNIQUE, 1);
    el_wset(edit_, EL_CLIENTDATA, this);
    el_wset(edit_, EL_PROMPT, &TerminalReader::prompt_of);
    el_wset(edit_, EL_GETCFN, &TerminalReader::next_key);
    el_wset(edit_, EL_EDITOR, L"emacs");
    el_wset(edit_, EL_HIST, history_w, history_);
    el_wset(edit_, EL_SIGNAL, 1);
    el_wset(edit_, EL_BIND, L"^R", L"em-inc-search-prev", nullptr);
    el_wset(edit_, EL_BIND, L"^W", L"ed-delete-prev-word", nullptr);
  }
  ~TerminalReader() override { close(); }

  InputLine read(const std::string& prompt) override {
    prompt_.assign(prompt.begin(), prompt.end());
    // libedit does this after the prompt: what is typed at once would be the kernel's to edit.
    el_wset(edit_, EL_PREP_TERM, 1);
    show(kPasteOn);
    int count = 0;
    const wchar_t* line = el_wgets(edit_, &count);
    show(kPasteOff);
    if (line == nullptr || count <= 0) return without_line();
    std::wstring text(line, static_cast<size_t>(count));
    while (text.ends_with(L'\n') || text.ends_with(L'\r')) text.pop_back();
    if (!text.empty()) {
      HistEventW event;
      history_w(history_, &event, H_ENTER, text.c_str());
    }
    return {InputLine::Kind::line, utf8_of(text), 0};
  }

 private:
  InputLine without_line() {
    show("\n");
    const int signal = keys_.take_signal();
    return {signal != 0 ? InputLine::Kind::signal : InputLine::Kind::end, "", signal};
  }

  void show(const char* text) {
    std::fputs(text, screen_);
    std::fflush(screen_);
  }

  void close() {
    if (edit_ != nullptr) el_end(edit_);
    if (history_ != nullptr) history_wend(history_);
  }

  static TerminalReader& of(EditLine* edit) {
    void* self = nullptr;
    el_wget(edit, EL_CLIENTDATA, &self);
    return *static_cast<TerminalReader*>(self);
  }
  static wchar_t* prompt_of(EditLine* edit) { return of(edit).prompt_.data(); }
  static int next_key(EditLine* edit, wchar_t* c) { return of(edit).keys_.next(c); }

  Keys keys_;
  std::FILE* const screen_;
  std::wstring prompt_;
  EditLine* edit_ = nullptr;
  HistoryW* history_ = nullptr;
};

}  // namespace

std::unique_ptr<LineReader> make_terminal_reader(int signal_fd) {
  return std::make_unique<TerminalReader>(signal_fd);
}

}  // namespace ete::cli
