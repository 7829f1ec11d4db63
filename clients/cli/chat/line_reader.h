#pragma once

#include <memory>
#include <string>

namespace ete::cli {

// What a reader of lines found.
struct InputLine {
  enum class Kind { line, signal, end };
  Kind kind = Kind::end;
  std::string text;  // of a line: valid UTF-8, without its newline; edited ones may hold newlines
  int signal = 0;    // that came while it waited
};

// Lines of stdin, with signals read from a signalfd while it waits. Not thread-safe.
class LineReader {
 public:
  virtual ~LineReader() = default;
  // prompt: shown before the line where somebody types it. Throws Error(unavailable) when stdin cannot be
  // read, Error(invalid_argument) for a line that is not UTF-8, Error(resource_exhausted) beyond 64 MiB.
  virtual InputLine read(const std::string& prompt) = 0;
};

// On a terminal: a line with editing and the lines before at hand. Pasted text stays one line; in it, and
// behind Alt-Enter, newlines are shown as the sign for Enter (U+21B5), which is a newline in what read()
// gives. Sets the process's LC_CTYPE. One at a time.
std::unique_ptr<LineReader> make_terminal_reader(int signal_fd);

// From a pipe or a file, as they are.
std::unique_ptr<LineReader> make_plain_reader(int signal_fd);

}  // namespace ete::cli
