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

// What a worker is called where clients hear of it, and what they are not to know: a socket's path tells of
// the files of this machine.
struct WorkerLabel {
  service::Address address;
  std::string name;  // "host:port", or "socket N" for the Nth of --workers

  // The text with the name in the place of the socket.
  std::string without_path(std::string text) const;
};
WorkerLabel label_of(const service::Address& address, size_t place);

// "A,B,...". Throws std::invalid_argument saying what would be accepted.
std::vector<WorkerName> parse_workers(const std::string& text);

// The addresses that a name stands for now; waits for the answer of DNS. Throws std::runtime_error when there
// is none.
std::vector<service::Address> resolve(const WorkerName& name);

}  // namespace ete::front
