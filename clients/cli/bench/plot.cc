#include "clients/cli/bench/plot.h"

#include <algorithm>

#include "engine/base/formatted.h"

namespace ete::cli {
namespace {

constexpr double kLeft = 90;
constexpr double kRight = 870;
constexpr double kChartTop = 90;
constexpr double kChartBottom = 310;
constexpr double kLanesTop = 390;
constexpr double kLaneHeight = 34;
constexpr int kGridLines = 4;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f) {
      out += c;
    } else {
      out += '?';
    }
  }
  return out;
}

std::string text_at(double x, double y, const char* anchor, const char* style, const std::string& text) {
  return formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, style) +
         escaped(text) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return formatted("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2,
                   style);
}

std::string points_line(const std::vector<std::pair<double, double>>& points, const char* style) {
  std::string text = "<polyline points=\"";
  for (const auto& [x, y] : points) text += formatted("%.1f,%.1f ", x, y);
  return text + formatted("\" class=\"%s\"/>\n", style);
}

// A scale's end that is easy to read: 1, 2 or 5 times a power of ten, at least `most`.
double round_end(double most) {
  double end = 1e-6;
  for (int i = 0; end < most; ++i) end *= i % 3 == 1 ? 2.5 : 2;
  return end;
}

std::string sessions_chart(const std::vector<const Figure*>& decode) {
  std::string svg =
      text_at(kLeft, kChartTop - 18, "start", "head", "Decode: tokens a second of all sessions");
  if (decode.empty()) return svg + text_at(kLeft, kChartTop + 20, "start", "label", "no decode figure");
  double most = 0;
  for (const Figure* figure : decode) most = std::max({most, figure->samples.highest(), figure->ceiling});
  const double end = round_end(most);
  const auto y_of = [&](double value) { return kChartBottom - (kChartBottom - kChartTop) * value / end; };
  const auto x_of = [&](size_t i) {
    return kLeft + (kRight - kLeft) * (static_cast<double>(i) + 0.5) / static_cast<double>(decode.size());
  };
  for (int i = 0; i <= kGridLines; ++i) {
    const double value = end * i / kGridLines;
    svg += line(kLeft, y_of(value), kRight, y_of(value), "grid");
    svg += text_at(kLeft - 10, y_of(value) + 4, "end", "label", formatted("%.4g", value));
  }
  std::vector<std::pair<double, double>> reached;
  std::vector<std::pair<double, double>> ceiling;
  for (size_t i = 0; i < decode.size(); ++i) {
    const Figure& figure = *decode[i];
    svg += text_at(x_of(i), kChartBottom + 20, "middle", "label",
                   std::to_string(figure.sessions) + (figure.sessions == 1 ? " session" : " sessions"));
    ceiling.emplace_back(x_of(i), y_of(figure.ceiling));
    if (figure.withheld()) continue;
    const double y = y_of(figure.samples.median());
    reached.emplace_back(x_of(i), y);
    svg += line(x_of(i), y_of(figure.samples.lowest()), x_of(i), y_of(figure.samples.highest()), "spread");
    svg += formatted("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"dot\"/>\n", x_of(i), y);
    svg += text_at(x_of(i), y - 12, "middle", "value",
                   formatted("%.4g, %.2f of the ceiling", figure.samples.median(), figure.ratio));
  }
  return svg + points_line(ceiling, "ceiling") + points_line(reached, "reached") +
         text_at(kRight, kChartTop - 18, "end", "label", "dashed: ceiling of this machine");
}

std::string lanes_chart(const std::vector<Timeline::Span>& spans) {
  std::string svg =
      text_at(kLeft, kLanesTop - 18, "start", "head", "What ran during decode steps, a box a layer");
  double first = 0;
  double last = 0;
  for (const Timeline::Span& span : spans) {
    if (span.end_s < 0) continue;
    first = last == 0 ? span.begin_s : std::min(first, span.begin_s);
    last = std::max(last, span.end_s);
  }
  if (last <= first) return svg + text_at(kLeft, kLanesTop + 20, "start", "label", "nothing was recorded");
  const auto x_of = [&](double at) { return kLeft + (kRight - kLeft) * (at - first) / (last - first); };
  for (const Timeline::Lane lane : {Timeline::Lane::copy, Timeline::Lane::compute}) {
    const bool copies = lane == Timeline::Lane::copy;
    const double y = kLanesTop + (copies ? 0 : kLaneHeight + 8);
    svg += text_at(kLeft - 10, y + kLaneHeight / 2 + 4, "end", "label", copies ? "link" : "compute");
    for (const Timeline::Span& span : spans) {
      if (span.lane != lane || span.end_s < 0) continue;
      svg += formatted(
          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" class=\"%s\"><title>layer %lld, "
          "%.3f ms</title></rect>\n",
          x_of(span.begin_s), y, std::max(0.5, x_of(span.end_s) - x_of(span.begin_s)), kLaneHeight,
          span.layer % 2 == 0 ? "even" : "odd", static_cast<long long>(span.layer),
          1e3 * (span.end_s - span.begin_s));
    }
  }
  const double axis = kLanesTop + 2 * kLaneHeight + 28;
  svg += text_at(kLeft, axis, "start", "label", "0 ms");
  svg += text_at(kRight, axis, "end", "label", formatted("%.3g ms", 1e3 * (last - first)));
  const double idle = idle_share(spans, Timeline::Lane::copy);
  const bool streams = std::any_of(spans.begin(), spans.end(), [](const Timeline::Span& span) {
    return span.lane == Timeline::Lane::copy;
  });
  return svg + text_at((kLeft + kRight) / 2, axis, "middle", "label",
                       streams ? formatted("link idle %.1f %%", 100 * idle) : "every layer is resident");
}

constexpr const char* kHead = R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 520" role="img">
<style>
  svg { background: #ffffff; font-family: system-ui, sans-serif; font-size: 12px; }
  text { fill: #222222; } .head { font-size: 14px; font-weight: 600; } .label { fill: #666666; }
  .grid { stroke: #e3e3e3; } .spread { stroke: #1f6fb2; stroke-width: 3; stroke-opacity: 0.35; }
  .dot { fill: #1f6fb2; } .reached { fill: none; stroke: #1f6fb2; stroke-width: 2; }
  .ceiling { fill: none; stroke: #888888; stroke-width: 1.5; stroke-dasharray: 6 4; }
  .even { fill: #1f6fb2; } .odd { fill: #7fb2d9; }
  @media (prefers-color-scheme: dark) {
    svg { background: #16181c; } text { fill: #e6e6e6; } .label { fill: #a0a0a0; } .grid { stroke: #33363b; }
    .dot, .even { fill: #5aa7e0; } .odd { fill: #2f5f86; } .spread, .reached { stroke: #5aa7e0; }
  }
</style>
)";

}  // namespace

std::string plot_svg(const Report& report, const std::vector<Timeline::Span>& spans) {
  std::vector<const Figure*> decode;
  for (const Figure& figure : report.figures) {
    if (figure.name == "decode") decode.push_back(&figure);
  }
  return kHead + text_at(kLeft, 30, "start", "head", report.model + " on " + report.plan.device_name) +
         text_at(kLeft, 48, "start", "label", report.plan.kernels) + sessions_chart(decode) +
         lanes_chart(spans) + "</svg>\n";
}

}  // namespace ete::cli
