#include "engine/runtime/host_share.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/formatted.h"
#include "engine/models/host_rows.h"

namespace ete {

namespace {

constexpr int kSteps = 20;  // of the share
constexpr double kLeastSaving = 0.05;
// Of a pass of many rows: on an H200's host 16 rows took twice as long in passes as beside copies alone.
constexpr double kMargin = 0.52;
constexpr double kLeastGain = 0.01;    // of a step over the one before it
constexpr int64_t kTripsPerLayer = 4;  // groups of products that wait for each other, in every family

constexpr size_t kMatrixBytes = size_t{256} << 20;  // past any cache
constexpr size_t kSourceBytes = size_t{64} << 20;
constexpr size_t kPieceBytes = size_t{16} << 20;  // as layers are copied
constexpr int64_t kMostRows = 64;
constexpr double kWindowSeconds = 0.1;
constexpr int64_t kMostCalls = 10000;  // in a window
constexpr double kLeastOfCall = 0.1;   // that products are taken for, whatever else was measured

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The matrices that weigh most in the layers.
struct MainMatrices {
  WeightFormat format = WeightFormat::f32;
  int64_t cols = 0;
  uint64_t bytes = 0;       // of all layers
  uint64_t trip_bytes = 0;  // that a trip multiplies with half of the rows at home
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
  main.trip_bytes = main.bytes / static_cast<uint64_t>(2 * kTripsPerLayer * std::ssize(weights.layers));
  return main;
}

// Copies to the device, and products of host threads, of made-up values, beside each other. Where the device
// has memory of its own the products are HostRows' trips of a size that a pass has, since waking the threads
// for each takes its time, too.
class Probe {
 public:
  Probe(Device& device, Ops& ops, const MainMatrices& what, int64_t most_rows)
      : device_(device),
        ops_(ops),
        what_(what),
        panel_bytes_(panel_bytes(what.format, what.cols)),
        panels_(at_least_one(std::min<uint64_t>(kMatrixBytes, what.bytes) / panel_bytes_)),
        trips_to_device_(!device.info().shares_host_memory),
        part_panels_(trips_to_device_ ? std::min(panels_, at_least_one(what.trip_bytes / panel_bytes_))
                                      : panels_),
        piece_bytes_(std::min<size_t>(kPieceBytes, static_cast<size_t>(what.bytes))),
        pieces_(std::min<size_t>(kSourceBytes, static_cast<size_t>(what.bytes)) / piece_bytes_),
        copy_(device.create_stream("probe copy")),
        host_(device.create_stream("probe host")),
        compute_(device.create_stream("probe compute")),
        source_(device.allocate(pieces_ * piece_bytes_, MemorySpace::host)),
        there_(device.allocate(piece_bytes_, MemorySpace::device)),
        weights_(device.allocate(static_cast<size_t>(panels_) * panel_bytes_, MemorySpace::host)),
        x_(device.allocate(floats(most_rows * what.cols), MemorySpace::device)),
        y_(device.allocate(floats(most_rows * part_panels_ * kPanelRows), MemorySpace::device)) {
    // Pages that nobody wrote would all be the same one. In every weight format this is a small number.
    for (const Buffer* buffer : {&source_, &weights_}) std::memset(buffer->data(), 0x3c, buffer->size());
    device.fill_async(*compute_, x_.data(), std::byte{0x3c}, x_.size());
    compute_->synchronize();
    if (!trips_to_device_) return;
    host_rows_ = std::make_unique<HostRows>(
        device, ops, *host_,
        HostRowsSizes{.rows = most_rows, .cols = what.cols, .host_rows = part_panels_ * kPanelRows});
  }

  ~Probe() {
    // Where a call was refused, others are under way in memory that dies now.
    for (Stream* stream : {copy_.get(), host_.get(), compute_.get()}) {
      try {
        stream->synchronize();
      } catch (const std::exception&) {
      }
    }
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  struct Beside {
    double link = 0;    // bytes a second
    double call_s = 0;  // of multiplied_bytes()
  };
  // Copies, and products with m rows.
  Beside rates(int64_t m) { return beside(m, part_panels_); }
  size_t multiplied_bytes() const { return static_cast<size_t>(part_panels_) * panel_bytes_; }
  // Of a trip with next to nothing to multiply; 0 where there are none.
  double trip_seconds() { return trips_to_device_ ? beside(1, 1).call_s : 0; }

 private:
  static int64_t at_least_one(uint64_t count) { return std::max<int64_t>(1, static_cast<int64_t>(count)); }
  static size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

  Beside beside(int64_t m, int64_t panels) {
    const int64_t copies = calls_for(
        kWindowSeconds, [&] { copy(); }, *copy_);
    // So many that they outlast the copies.
    Stream& last = trips_to_device_ ? *compute_ : *host_;
    const int64_t calls = 1 + calls_for(
                                  2 * kWindowSeconds, [&] { multiply(m, panels, {}); }, last);
    const auto ends = std::make_shared<std::vector<double>>(static_cast<size_t>(calls));
    const auto begin = Clock::now();
    for (int64_t i = 0; i < copies; ++i) copy();
    for (size_t i = 0; i < ends->size(); ++i)
      multiply(m, panels, [ends, i, begin] { (*ends)[i] = seconds_since(begin); });
    copy_->synchronize();
    const double copied_s = seconds_since(begin);
    host_->synchronize();
    last.synchronize();
    const auto beside = std::upper_bound(ends->begin(), ends->end(), copied_s) - ends->begin();
    const auto done = std::max<ptrdiff_t>(1, beside);
    return {.link = static_cast<double>(copies) * static_cast<double>(source_.size()) / copied_s,
            .call_s = (*ends)[static_cast<size_t>(done - 1)] / static_cast<double>(done)};
  }

  void copy() {
    for (size_t piece = 0; piece < pieces_; ++piece) {
      device_.copy_async(*copy_, there_.data(), source_.data() + piece * piece_bytes_, piece_bytes_);
    }
  }

  // The next panels of the matrix, so that no call finds its own in a cache; then `done`, if it is something.
  void multiply(int64_t m, int64_t panels, std::function<void()> done) {
    if (next_panel_ + panels > panels_) next_panel_ = 0;
    const int64_t rows = panels * kPanelRows;
    const PackedMatrix part{what_.format, rows, what_.cols,
                            weights_.data() + static_cast<size_t>(next_panel_) * panel_bytes_};
    next_panel_ += panels;
    std::vector<MatmulOutput> outputs{{.w = part, .row_end = rows, .y = y_.as<float>(), .y_stride = rows}};
    const auto* x = x_.as<const float>();
    if (trips_to_device_) {
      host_rows_->start(*compute_, x, what_.cols, m, std::move(outputs));
    } else {
      ops_.host_products().matmul(*host_, RowKind::decode, x, what_.cols, m, std::move(outputs));
    }
    if (done) device_.host_async(*host_, std::move(done));
    if (trips_to_device_) host_rows_->join(*compute_);
  }

  // How many calls fill the time, alone: by the second of two, which meets warm caches and threads.
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
  MainMatrices what_;
  size_t panel_bytes_;
  int64_t panels_;  // of the matrix
  bool trips_to_device_;
  int64_t part_panels_;  // that a call multiplies
  size_t piece_bytes_;
  size_t pieces_;
  std::unique_ptr<Stream> copy_;
  std::unique_ptr<Stream> host_;
  std::unique_ptr<Stream> compute_;
  Buffer source_;                        // pinned
  Buffer there_;                         // one piece, on the device
  Buffer weights_;                       // pinned
  Buffer x_;                             // [most_rows, cols], where the device reads it
  Buffer y_;                             // [most_rows, rows of a part], the same
  std::unique_ptr<HostRows> host_rows_;  // null where the device reads host memory
  int64_t next_panel_ = 0;
};

HostShareRates measure(Device& device, Ops& ops, const MainMatrices& what, int64_t sessions) {
  const int64_t many = std::min(sessions, kMostRows);
  HostShareRates rates;
  {
    Probe probe(device, ops, what, many);
    rates.trip_s = probe.trip_seconds();
    // What a call takes beyond an empty trip.
    const auto products = [&](double call_s) {
      const auto bytes = static_cast<double>(probe.multiplied_bytes());
      return bytes / std::max(call_s - rates.trip_s, kLeastOfCall * call_s);
    };
    const Probe::Beside one = probe.rates(1);
    rates.link = one.link;
    rates.products = products(one.call_s);
    rates.products_of_many = many > 1 ? products(probe.rates(many).call_s) : rates.products;
  }
  device.trim();
  return rates;
}

}  // namespace

PassTimes pass_times(const Plan& plan, const HostShareRates& rates, double products,
                     bool shares_host_memory) {
  PassTimes times{.link_s = static_cast<double>(plan.streamed_bytes_per_pass) / rates.link};
  const auto at_home = static_cast<double>(plan.host_bytes_per_pass);
  if (shares_host_memory) {  // the host computes all of it
    const auto others = static_cast<double>(plan.resident_bytes + plan.streamed_bytes_per_pass);
    times.host_s = (at_home + others) / products;
  } else if (at_home > 0) {
    times.host_s = static_cast<double>(plan.layers * kTripsPerLayer) * rates.trip_s + at_home / products;
  }
  return times;
}

ChosenShare choose_host_share(const HostShareRates& rates, bool shares_host_memory,
                              const std::function<std::optional<Plan>(double share)>& plan_for) {
  const auto one_row_s = [&](const Plan& plan) {
    return pass_times(plan, rates, rates.products, shares_host_memory).longer();
  };
  const std::optional<Plan> without = plan_for(0);
  if (!without) return {0, "0"};  // whoever plans with it says what does not fit
  const double without_s = one_row_s(*without);
  const auto slows_many_rows = [&](const Plan& plan) {
    const double host_s = pass_times(plan, rates, rates.products_of_many, shares_host_memory).host_s;
    return !shares_host_memory && host_s > (1 - kMargin) * without_s;
  };
  double best_s = without_s;
  double share = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const double tried = static_cast<double>(step) / kSteps;
    const std::optional<Plan> plan = plan_for(tried);
    if (!plan || slows_many_rows(*plan) || one_row_s(*plan) > best_s * (1 - kLeastGain)) continue;
    best_s = one_row_s(*plan);
    share = tried;
  }
  if (best_s > without_s * (1 - kLeastSaving)) share = 0;
  std::string reason = formatted(
      "%.4g; the link brings %.1f GB/s while host threads multiply %.1f GB/s of weights by one row, %.1f by "
      "a "
      "row of each session",
      share, rates.link * 1e-9, rates.products * 1e-9, rates.products_of_many * 1e-9);
  if (!shares_host_memory) reason += formatted("; %.0f us a round trip", rates.trip_s * 1e6);
  if (share > 0) {
    reason +=
        formatted("; a pass of one row takes %.3g ms so, %.3g ms without", best_s * 1e3, without_s * 1e3);
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
