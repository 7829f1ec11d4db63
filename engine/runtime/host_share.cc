#include "engine/runtime/host_share.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/models/host_rows.h"

namespace ete {

namespace {

constexpr int kSteps = 20;  // of the share
constexpr double kLeastSaving = 0.05;
constexpr double kLeastGain = 0.01;    // of a step over the one before it
constexpr int64_t kTripsPerLayer = 4;  // groups of products that wait for each other, in every family

constexpr size_t kMatrixBytes = size_t{256} << 20;  // past any cache
constexpr size_t kSourceBytes = size_t{64} << 20;
constexpr size_t kPieceBytes = size_t{16} << 20;  // as layers are copied
constexpr int64_t kMostRows = 64;
constexpr double kWindowSeconds = 0.1;
constexpr int64_t kMostCalls = 10000;  // in a window
constexpr int kTrips = 64;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The matrices that weigh most in the layers.
struct MainMatrices {
  WeightFormat format = WeightFormat::f32;
  int64_t cols = 0;
  uint64_t bytes = 0;  // of all layers
};

MainMatrices main_matrices(const ModelWeights& weights) {
  std::map<std::pair<WeightFormat, int64_t>, uint64_t> bytes;
  MainMatrices main;
  for (const BlobSpec& layer : weights.layers) {
    for (const WeightSpec& weight : layer) {
      if (weight.shape != WeightShape::matrix || weight.rows == 0) continue;
      const size_t here = packed_bytes(weight.format, weight.rows, weight.cols);
      bytes[{weight.format, weight.cols}] += here;
      main.bytes += here;
    }
  }
  uint64_t most = 0;
  for (const auto& [kind, here] : bytes) {
    if (here <= most) continue;
    most = here;
    main.format = kind.first;
    main.cols = kind.second;
  }
  return main;
}

// Copies to the device, and products of host threads, of made-up values, each on a stream.
class Probe {
 public:
  Probe(Device& device, Ops& ops, const MainMatrices& what, int64_t most_rows)
      : device_(device),
        ops_(ops),
        cols_(what.cols),
        panel_bytes_(panel_bytes(what.format, what.cols)),
        rows_(kPanelRows *
              std::max<int64_t>(
                  1, static_cast<int64_t>(std::min<uint64_t>(kMatrixBytes, what.bytes) / panel_bytes_))),
        piece_bytes_(std::min<size_t>(kPieceBytes, static_cast<size_t>(what.bytes))),
        pieces_(std::min<size_t>(kSourceBytes, static_cast<size_t>(what.bytes)) / piece_bytes_),
        copy_(device.create_stream("probe copy")),
        host_(device.create_stream("probe host")),
        compute_(device.create_stream("probe compute")),
        source_(device.allocate(pieces_ * piece_bytes_, MemorySpace::host)),
        there_(device.allocate(piece_bytes_, MemorySpace::device)),
        weights_(device.allocate(packed_bytes(what.format, rows_, cols_), MemorySpace::host)),
        x_(device.allocate(static_cast<size_t>(most_rows * cols_) * sizeof(float), MemorySpace::host)),
        y_(device.allocate(static_cast<size_t>(most_rows * rows_) * sizeof(float), MemorySpace::host)),
        matrix_{what.format, rows_, cols_, weights_.data()} {
    // Pages that nobody wrote would all be the same one. As a float and in every weight format this is a
    // small number.
    for (const Buffer* buffer : {&source_, &weights_, &x_}) std::memset(buffer->data(), 0x3c, buffer->size());
  }

  // Bytes a second of copies and of weights multiplied by m rows, beside each other.
  std::pair<double, double> rates(int64_t m) {
    const int64_t copies = calls_for(
        kWindowSeconds, [&] { copy(); }, *copy_);
    // So many that they outlast the copies.
    const int64_t products = 1 + calls_for(
                                     2 * kWindowSeconds, [&] { multiply(m); }, *host_);
    std::vector<double> ends(static_cast<size_t>(products));
    const auto begin = Clock::now();
    for (int64_t i = 0; i < copies; ++i) copy();
    for (double& end : ends) {
      multiply(m);
      device_.host_async(*host_, [&end, begin] { end = seconds_since(begin); });
    }
    copy_->synchronize();
    const double copied_s = seconds_since(begin);
    host_->synchronize();
    const auto beside =
        std::max<int64_t>(1, std::upper_bound(ends.begin(), ends.end(), copied_s) - ends.begin());
    const double multiplied_s = ends[static_cast<size_t>(beside - 1)];
    return {static_cast<double>(copies) * static_cast<double>(source_.size()) / copied_s,
            static_cast<double>(beside) * static_cast<double>(weights_.size()) / multiplied_s};
  }

  // Of one trip with next to nothing to multiply, beside copies.
  double trip_seconds() {
    const HostRowsSizes sizes{.rows = 1, .cols = cols_, .host_rows = kPanelRows};
    HostRows host_rows(device_, ops_, *host_, sizes);
    const Buffer x = device_.allocate(static_cast<size_t>(cols_) * sizeof(float), MemorySpace::device);
    const Buffer y = device_.allocate(kPanelRows * sizeof(float), MemorySpace::device);
    const PackedMatrix panel{matrix_.format, kPanelRows, cols_, weights_.data()};
    const auto trips = [&] {
      for (int i = 0; i < kTrips; ++i) {
        host_rows.start(*compute_, x.as<const float>(), cols_, 1,
                        {{.w = panel, .row_end = kPanelRows, .y = y.as<float>(), .y_stride = kPanelRows}});
        host_rows.join(*compute_);
      }
    };
    device_.fill_async(*compute_, x.data(), std::byte{0}, x.size());
    trips();
    compute_->synchronize();
    const int64_t copies = calls_for(
        kWindowSeconds / 2, [&] { copy(); }, *copy_);
    for (int64_t i = 0; i < copies; ++i) copy();
    const auto begin = Clock::now();
    trips();
    compute_->synchronize();
    const double seconds = seconds_since(begin);
    copy_->synchronize();
    return seconds / kTrips;
  }

 private:
  void copy() {
    for (size_t piece = 0; piece < pieces_; ++piece) {
      device_.copy_async(*copy_, there_.data(), source_.data() + piece * piece_bytes_, piece_bytes_);
    }
  }
  void multiply(int64_t m) {
    ops_.host_products().matmul(*host_, RowKind::decode, x_.as<const float>(), cols_, m,
                                {{.w = matrix_, .row_end = rows_, .y = y_.as<float>(), .y_stride = rows_}});
  }
  // How many calls fill the time, alone: the second of two, which meets warm caches and threads.
  static int64_t calls_for(double seconds, const std::function<void()>& call, Stream& stream) {
    call();
    stream.synchronize();
    const auto begin = Clock::now();
    call();
    stream.synchronize();
    return std::clamp<int64_t>(std::llround(seconds / std::max(seconds_since(begin), 1e-9)), 1, kMostCalls);
  }

  Device& device_;
  Ops& ops_;
  int64_t cols_;
  size_t panel_bytes_;
  int64_t rows_;
  size_t piece_bytes_;
  size_t pieces_;
  std::unique_ptr<Stream> copy_;
  std::unique_ptr<Stream> host_;
  std::unique_ptr<Stream> compute_;
  Buffer source_;   // pinned
  Buffer there_;    // one piece, on the device
  Buffer weights_;  // pinned
  Buffer x_;        // pinned, [most_rows, cols]
  Buffer y_;        // pinned, [most_rows, rows]
  PackedMatrix matrix_;
};

HostShareRates measure(Device& device, Ops& ops, const MainMatrices& what, int64_t sessions) {
  const int64_t many = std::min(sessions, kMostRows);
  HostShareRates rates;
  {
    Probe probe(device, ops, what, many);
    std::tie(rates.link, rates.products) = probe.rates(1);
    rates.products_of_many = many > 1 ? probe.rates(many).second : rates.products;
    if (!device.info().shares_host_memory) rates.trip_s = probe.trip_seconds();
  }
  device.trim();
  return rates;
}

template <typename... Values>
std::string formatted(const char* form, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, form, values...);
  return text;
}

}  // namespace

double pass_seconds(const Plan& plan, const HostShareRates& rates, double multiplied,
                    bool shares_host_memory) {
  const double link_s = static_cast<double>(plan.streamed_bytes_per_pass) / rates.link;
  const auto at_home = static_cast<double>(plan.host_bytes_per_pass);
  double host_s = 0;
  if (shares_host_memory) {  // the host computes all of it
    const auto others = static_cast<double>(plan.resident_bytes + plan.streamed_bytes_per_pass);
    host_s = (at_home + others) / multiplied;
  } else if (at_home > 0) {
    host_s = static_cast<double>(plan.layers * kTripsPerLayer) * rates.trip_s + at_home / multiplied;
  }
  return std::max(link_s, host_s);
}

ChosenShare choose_host_share(const HostShareRates& rates, bool shares_host_memory,
                              const std::function<std::optional<Plan>(double share)>& plan_for) {
  const auto one = [&](const Plan& plan) {
    return pass_seconds(plan, rates, rates.products, shares_host_memory);
  };
  const auto many = [&](const Plan& plan) {
    return pass_seconds(plan, rates, rates.products_of_many, shares_host_memory);
  };
  const std::optional<Plan> without = plan_for(0);
  if (!without) return {0, "0"};  // whoever plans with it says what does not fit
  double best_s = one(*without);
  double share = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const double tried = static_cast<double>(step) / kSteps;
    const std::optional<Plan> plan = plan_for(tried);
    if (!plan || many(*plan) > many(*without) || one(*plan) > best_s * (1 - kLeastGain)) continue;
    best_s = one(*plan);
    share = tried;
  }
  if (best_s > one(*without) * (1 - kLeastSaving)) share = 0;
  std::string reason = formatted(
      "%.4g; the link brings %.1f GB/s while host threads multiply %.1f GB/s of weights by one row, %.1f by "
      "a "
      "row of each session",
      share, rates.link * 1e-9, rates.products * 1e-9, rates.products_of_many * 1e-9);
  if (!shares_host_memory) reason += formatted("; %.0f us a round trip", rates.trip_s * 1e6);
  if (share > 0) {
    reason +=
        formatted("; a pass of one row takes %.3g ms so, %.3g ms without", best_s * 1e3, one(*without) * 1e3);
  }
  return {share, std::move(reason)};
}

ChosenShare automatic_host_share(Device& device, Ops& ops, const PlanInput& input) {
  if (input.options.home == WeightHome::file) return {0, "0, since layers stay in the file"};
  if (make_plan(input).placement.slots == 0) return {0, "0, since every layer is resident"};
  HostShareRates rates = measure(device, ops, main_matrices(input.weights), input.options.raw.max_sessions);
  const auto limit = static_cast<double>(input.options.raw.link_limit);
  if (limit > 0) rates.link = std::min(rates.link, limit);
  PlanInput tried = input;
  return choose_host_share(rates, input.device.shares_host_memory, [&](double share) -> std::optional<Plan> {
    tried.chosen_share.share = share;
    try {
      return make_plan(tried).plan;
    } catch (const Error&) {
      return std::nullopt;
    }
  });
}

}  // namespace ete
