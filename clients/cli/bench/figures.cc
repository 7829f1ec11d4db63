#include "clients/cli/bench/figures.h"

#include <algorithm>

#include "engine/base/formatted.h"

namespace ete::cli {
namespace {

using Json = nlohmann::ordered_json;

double seconds_for(double amount, double rate) { return amount > 0 && rate > 0 ? amount / rate : 0; }

void raise(Floor& floor, double seconds, const char* by) {
  if (seconds > floor.seconds) floor = {seconds, by};
}

// Of `in` bytes to the device and `out` back, which a link may carry at once, each more slowly.
double crossing_seconds(const Ceilings& ceilings, double in, double out) {
  const double both = seconds_for(out, ceilings.link_out_beside_in);
  const double rest = in - std::min(in, both * ceilings.link_in_beside_out);
  return both + seconds_for(rest, ceilings.link_in);
}

Json rates_json(const Ceilings& c) {
  return {{"link_in", c.link_in},
          {"link_out", c.link_out},
          {"link_in_beside_out", c.link_in_beside_out},
          {"link_out_beside_in", c.link_out_beside_in},
          {"device_copy", c.device_copy},
          {"host_read", c.host_read},
          {"host_read_beside_copies", c.host_read_beside_copies},
          {"multiply_adds_per_second", c.product}};
}

Json figure_json(const Figure& f) {
  Json json = {{"name", f.name}, {"sessions", f.sessions}, {"unit", f.unit}};
  const auto unless_withheld = [&](Json value) { return f.withheld() ? Json(nullptr) : std::move(value); };
  json["value"] = unless_withheld(f.samples.median());
  json["lowest"] = unless_withheld(f.samples.lowest());
  json["highest"] = unless_withheld(f.samples.highest());
  json["ceiling"] = f.ceiling;
  json["ceiling_by"] = f.ceiling_by;
  json["ratio"] = unless_withheld(f.ratio);
  if (f.p50_ms > 0) {
    json["step_p50_ms"] = unless_withheld(f.p50_ms);
    json["step_p99_ms"] = unless_withheld(f.p99_ms);
  }
  if (f.link_idle >= 0) json["link_idle"] = unless_withheld(f.link_idle);
  json["error"] = f.error;
  json["tolerance"] = f.tolerance;
  json["withheld"] = f.withheld();
  return json;
}

}  // namespace

Floor decode_floor(const Plan& plan, const Ceilings& ceilings, int sessions, int64_t positions) {
  const auto kv = static_cast<double>(plan.kv_bytes_per_token) * static_cast<double>(sessions * positions);
  const auto state = static_cast<double>(plan.state_bytes_per_session) * sessions;
  const auto streamed = static_cast<double>(plan.streamed_bytes_per_pass);
  // A state is read and written back.
  const double layers = static_cast<double>(plan.resident_bytes) + streamed + kv + 2 * state;
  const auto head = static_cast<double>(plan.lm_head_bytes);
  const auto host_weights = static_cast<double>(host_weights_of_pass(plan, ceilings.shares_host_memory));
  Floor floor{1e-9, "nothing"};
  raise(floor, seconds_for(sessions * static_cast<double>(plan.weights_per_row), ceilings.product),
        "products");
  if (ceilings.shares_host_memory) {
    raise(floor, seconds_for(streamed, ceilings.link_in), "link");
    raise(floor, seconds_for(host_weights + kv + 2 * state, ceilings.host_read), "host memory");
    return floor;
  }
  const double crossing =
      streamed + (plan.kv_placement == "host" ? kv : 0) + (plan.state_placement == "host" ? state : 0);
  const bool head_on_device = plan.vocab_placement == "device";
  raise(floor, crossing_seconds(ceilings, crossing, plan.state_placement == "host" ? state : 0), "link");
  raise(floor, seconds_for(layers + (head_on_device ? head : 0), ceilings.device_copy), "device memory");
  raise(floor, seconds_for(host_weights, ceilings.host_read), "host memory");
  return floor;
}

Floor prefill_floor(const Plan& plan, const Ceilings& ceilings, int64_t length) {
  const auto passes = static_cast<uint64_t>((length + plan.chunk - 1) / plan.chunk);
  Floor floor{1e-9, "nothing"};
  raise(floor,
        seconds_for(static_cast<double>(passes * plan.prompt_streamed_bytes_per_pass), ceilings.link_in),
        "link");
  raise(
      floor,
      seconds_for(static_cast<double>(plan.weights_per_row) * static_cast<double>(length), ceilings.product),
      "products");
  return floor;
}

Json to_json(const Report& report) {
  Json figures = Json::array();
  for (const Figure& figure : report.figures) figures.push_back(figure_json(figure));
  return {{"model", report.model},
          {"plan", Json::parse(report.plan.to_json())},
          {"ceilings", rates_json(report.ceilings)},
          {"figures", figures}};
}

std::string header_text(const Report& report) {
  const Ceilings& c = report.ceilings;
  std::string text = report.model + "\n" + report.plan.to_text() + "\nceilings, GB/s\n";
  text += formatted("  link to the device     %8.1f\n", c.link_in * 1e-9);
  text += formatted("  link back              %8.1f\n", c.link_out * 1e-9);
  text += formatted("  link to, beside back   %8.1f\n", c.link_in_beside_out * 1e-9);
  text += formatted("  link back, beside to   %8.1f\n", c.link_out_beside_in * 1e-9);
  text += formatted("  copy inside the device %8.1f  read and written\n", c.device_copy * 1e-9);
  text += formatted("  host threads read      %8.1f\n", c.host_read * 1e-9);
  text += formatted("    beside copies        %8.1f\n", c.host_read_beside_copies * 1e-9);
  text += formatted("ceiling of products, G multiply-adds/s %.1f\n\n", c.product * 1e-9);
  return text + formatted("%-18s %8s  %12s %-9s %-22s %-26s %6s %s\n", "figure", "sessions", "median", "unit",
                          "[lowest, highest]", "ceiling", "ratio", "error");
}

std::string line_text(const Figure& f) {
  std::string text = formatted("%-18s %8d  ", f.name.c_str(), f.sessions);
  if (f.withheld()) {
    return text + formatted(
                      "withheld: its rows are %.2g of the largest logit away from the plain path, "
                      "tolerance %.2g\n",
                      f.error, f.tolerance);
  }
  const std::string spread = formatted("[%.4g, %.4g]", f.samples.lowest(), f.samples.highest());
  const std::string ceiling = formatted("%.4g by %s", f.ceiling, f.ceiling_by.c_str());
  text += formatted("%12.4g %-9s %-22s %-26s %6.2f %.1e", f.samples.median(), f.unit.c_str(), spread.c_str(),
                    ceiling.c_str(), f.ratio, f.error);
  if (f.p50_ms > 0) text += formatted("  step p50 %.3g ms, p99 %.3g ms", f.p50_ms, f.p99_ms);
  if (f.link_idle >= 0) text += formatted(", link idle %.0f %%", 100 * f.link_idle);
  return text + "\n";
}

}  // namespace ete::cli
