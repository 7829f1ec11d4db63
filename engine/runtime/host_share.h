#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "engine/device/device.h"
#include "engine/ops/ops.h"
#include "engine/runtime/planner.h"

// What `--host-share auto` comes to: the share at which the link and the host's threads take equally long for
// a pass. Measured once, before the weights are packed, and fixed from then on, since it is a part of the
// numeric path.

namespace ete {

// Bytes and seconds of this machine, measured beside each other as a pass has them.
struct HostShareRates {
  double link = 0;              // bytes a second to the device
  double products = 0;          // bytes of weights a second that host threads multiply by one row
  double products_of_many = 0;  // by a row of each session
  double trip_s = 0;            // HostRows' way to the host and back; 0 where the device reads host memory
};

// A pass of decode rows as the plan has it. The two run side by side: the longer one is the pass.
struct PassTimes {
  double link_s = 0;
  double host_s = 0;
  double longer() const { return link_s > host_s ? link_s : host_s; }
};
// products: of the rates, for one row or for many.
PassTimes pass_times(const Plan& plan, const HostShareRates& rates, double products, bool shares_host_memory);

// The least share, in steps of 0.05, of the shortest pass of one row; 0 unless that saves 5 %. Beside a
// device with memory of its own a pass with a row of each session may not get longer than it is without a
// share, with 40 % to spare. plan_for gives the plan with a share; none: it does not fit.
ChosenShare choose_host_share(const HostShareRates& rates, bool shares_host_memory,
                              const std::function<std::optional<Plan>(double share)>& plan_for);

// Measures, unless no layer is streamed from memory, and chooses. Takes some tenths of a second and memory
// that is given back. Engine thread, before anything else runs on the device.
ChosenShare automatic_host_share(Device& device, Ops& ops, const PlanInput& input);

}  // namespace ete
