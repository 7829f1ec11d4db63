#pragma once

#include "services/common/address.h"

namespace ete::cli {

// Throws Error(unavailable) when nothing can listen there now: the address is taken or not this machine's.
// Otherwise a server that is there already could be mistaken for the one about to start.
void check_can_listen(const service::Address& address);

}  // namespace ete::cli
