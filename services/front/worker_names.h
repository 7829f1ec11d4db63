#pragma once

#include <string>
#include <vector>

#include "services/common/address.h"

namespace ete::front {

// One of --workers: an address, or "dns:host:port", which stands for a worker at each of the host's
// addresses.
struct WorkerName {
  service::Address address;
  bool dns = false;
};

// "A,B,...". Throws std::invalid_argument saying what would be accepted.
std::vector<WorkerName> parse_workers(const std::string& text);

// The addresses that a name stands for now; waits for the answer of DNS. Throws std::runtime_error when there
// is none.
std::vector<service::Address> resolve(const WorkerName& name);

}  // namespace ete::front
