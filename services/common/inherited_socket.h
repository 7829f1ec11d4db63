#pragma once

#include <string_view>

#include "services/common/address.h"

namespace ete::service {

// Where a server listens: what parse_address takes, or "fd:N", a listening socket that whoever started this
// process left open as descriptor N (systemd's first is 3). Its address is that of the socket. Throws
// std::invalid_argument saying what would be accepted.
Address parse_listen_address(std::string_view text);

}  // namespace ete::service
