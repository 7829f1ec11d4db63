#pragma once

#include <cstdint>

#include "engine/runtime/engine.h"

// What a machine could do at most, measured in the process that is then measured. Rates are bytes a second.

namespace ete::cli {

struct Ceilings {
  double link_in = 0;             // pinned host memory to the device, paced where --link-limit is given
  double link_out = 0;            // and back
  double link_in_beside_out = 0;  // both at once
  double link_out_beside_in = 0;
  double device_copy = 0;              // inside device memory, read and written bytes together
  double host_read = 0;                // host threads read as much as a pass does, from caches where it fits
  double host_read_beside_copies = 0;  // while the link brings bytes to the device
  double product = 0;                  // multiply-adds a second of the model's widest matrix, a chunk of rows
  bool shares_host_memory = false;     // the device computes from the host's RAM
};

// Bytes of weights that host threads read in a pass, of a device that computes from the host's RAM or not.
uint64_t host_weights_of_pass(const Plan& plan, bool shares_host_memory);

// On the device and with the threads that `options` name; `plan` gives the chunk, `config` the shape of the
// product. Takes about three seconds and, for that time, under 1 GiB of RAM and of device memory. Throws
// Error.
Ceilings measure_ceilings(const EngineOptions& options, const Plan& plan, const ModelConfig& config);

}  // namespace ete::cli
