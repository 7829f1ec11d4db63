#include "clients/cli/output.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>

#include "engine/base/error.h"

namespace ete::cli {

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      poll(&ready, 1, -1);
      continue;
    }
    if (written < 0) {
      throw Error(ErrorCode::unavailable, std::string("cannot write to stdout: ") + strerror(errno));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

std::string to_text(const nlohmann::ordered_json& document) {
  return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace ete::cli
