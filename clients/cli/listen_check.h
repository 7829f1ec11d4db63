#pragma once

#include <string>

#include "services/common/address.h"

namespace ete::cli {

// Throws Error(unavailable) when nothing can listen there now: the address is taken or not this machine's.
// Otherwise a server that is there already could be mistaken for the one about to start. The message begins
// with `flag`.
void check_can_listen(const std::string& flag, const service::Address& address);

}  // namespace ete::cli
