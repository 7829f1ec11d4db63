#include "clients/cli/input.h"

#include <string.h>

#include <cerrno>
#include <cstdio>

#include "engine/base/error.h"

namespace ete::cli {
namespace {

constexpr size_t kMostBytes = 64 << 20;

// Reads up to `end` (or EOF: to the end); false when nothing was left.
bool read_until(int end, const char* what, std::string& text) {
  text.clear();
  int c = 0;
  while ((c = getc_unlocked(stdin)) != EOF) {
    if (c == end) return true;
    if (text.size() == kMostBytes) {
      throw Error(ErrorCode::resource_exhausted, std::string(what) + " is longer than 64 MiB");
    }
    text += static_cast<char>(c);
  }
  if (std::ferror(stdin) != 0) {
    throw Error(ErrorCode::unavailable, std::string("cannot read stdin: ") + strerror(errno));
  }
  return !text.empty();
}

}  // namespace

bool read_line(std::string& line) { return read_until('\n', "a line of stdin", line); }

std::string read_rest() {
  std::string text;
  read_until(EOF, "stdin", text);
  return text;
}

}  // namespace ete::cli
