#include "clients/cli/output.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iostream>
#include <iterator>

#include "clients/options/command_line.h"
#include "engine/base/error.h"

namespace ete::cli {

void print(std::string_view text, int interrupt_fd) {
  while (!text.empty()) {
    pollfd entries[] = {{STDOUT_FILENO, POLLOUT, 0}, {interrupt_fd, POLLIN, 0}};
    poll(entries, std::size(entries), -1);
    if (entries[0].revents == 0) {
      if (entries[1].revents != 0) throw Error(ErrorCode::cancelled, "interrupted while writing to stdout");
      continue;
    }
    // A pipe that can be written takes this much without blocking.
    const ssize_t written = write(STDOUT_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written < 0) {
      throw Error(ErrorCode::unavailable, std::string("cannot write to stdout: ") + strerror(errno));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void warn(const std::string& command, const std::string& what) {
  std::cerr << error_line(command, "note: " + what) + "\n";
}

std::string to_text(const nlohmann::ordered_json& document) {
  return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ete::cli
