#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "clients/cli/bench/ceilings.h"
#include "clients/cli/bench/workload.h"

namespace ete::cli {

// The least time that a pass could take, and what sets it: "link", "device memory", "host memory",
// "products".
struct Floor {
  double seconds = 0;
  std::string by;
};

// One token of each of `sessions` sessions that hold `positions` positions: every weight is read once and
// multiplied with each row.
Floor decode_floor(const Plan& plan, const Ceilings& ceilings, int sessions, int64_t positions);
// `length` prompt ids: each chunk takes the streamed layers over the link, each row its products.
Floor prefill_floor(const Plan& plan, const Ceilings& ceilings, int64_t length);

// One line of the report.
struct Figure {
  std::string name;  // "decode", "prefill 512", "first token 512"
  int sessions = 1;
  std::string unit;  // "tokens/s", "ms"
  Samples samples;
  double ceiling = 0;  // in the same unit: the best that could be
  std::string ceiling_by;
  double ratio = 0;  // of the ceiling that was reached, at most about 1
  double error = 0;  // of that configuration, against the plain path
  double tolerance = 0;
  double p50_ms = 0;  // of a step; 0: no steps
  double p99_ms = 0;
  double link_idle = -1;  // share of a step in which the link moved no weights; -1: nothing streams
  bool withheld() const { return !(error <= tolerance); }
};

struct Report {
  std::string model;
  Plan plan;
  Ceilings ceilings;
  std::vector<Figure> figures;
};

nlohmann::ordered_json to_json(const Report& report);
// The ceilings, then a line a figure.
std::string header_text(const Report& report);
std::string line_text(const Figure& figure);

}  // namespace ete::cli
