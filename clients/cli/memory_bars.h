#pragma once

#include <string>

#include "engine/runtime/engine.h"

namespace ete::cli {

// The memory plan as bars, a line a part, in at most `columns` columns: of device memory and of host memory
// what the plan names, the rest of each peak as one part. A part's bar begins where the one above ends, so
// that together they fill the peak.
std::string memory_bars(const Plan& plan, int columns);

}  // namespace ete::cli
