#pragma once

#include <string>
#include <vector>

#include "clients/cli/bench/figures.h"
#include "engine/device/timeline.h"

namespace ete::cli {

// One SVG picture: tokens a second against sessions beside their ceiling, and what link and compute did
// during a few decode steps. Without spans, or without decode figures, that part says so.
std::string plot_svg(const Report& report, const std::vector<Timeline::Span>& spans);

}  // namespace ete::cli
