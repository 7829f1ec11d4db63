#include "clients/cli/bench/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "engine/device/cpu/thread_pool.h"
#include "engine/device/device.h"
#include "engine/ops/ops.h"
#include "engine/runtime/options.h"

namespace ete::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCopyBytes = size_t{128} << 20;  // past any cache
constexpr size_t kPieceBytes = size_t{16} << 20;  // as layers are copied
constexpr size_t kMostReadBytes = size_t{256} << 20;
constexpr size_t kReadTask = size_t{1} << 20;
constexpr int kRounds = 5;
constexpr double kRoundSeconds = 0.06;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The best of a few rounds: a ceiling is what the machine can do, not what else it was doing.
double best_rate(double units_a_call, const std::function<void()>& call) {
  call();
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    int calls = 0;
    do {
      call();
      ++calls;
    } while (seconds_since(begin) < kRoundSeconds);
    best = std::max(best, units_a_call * calls / seconds_since(begin));
  }
  return best;
}

class Link {
 public:
  Link(Device& device, uint64_t limit)
      : device_(device),
        stream_(device.create_stream("bench")),
        host_(device.allocate(kCopyBytes, MemorySpace::host)),
        there_(device.allocate(kCopyBytes, MemorySpace::device)) {
    if (limit > 0) pacer_ = device.create_pacer(limit);
    // Pages that nobody wrote would all be the same one.
    std::fill_n(host_.as<uint64_t>(), kCopyBytes / sizeof(uint64_t), 0x3c003c003c003c00u);
    copy(there_, host_);
  }

  void copy_in() { copy(there_, host_, pacer_.get()); }
  void copy_out() { copy(host_, there_); }
  void copy_inside(const Buffer& other) { copy(other, there_); }

 private:
  void copy(const Buffer& to, const Buffer& from, LinkPacer* pacer = nullptr) {
    for (size_t done = 0; done < kCopyBytes; done += kPieceBytes) {
      if (pacer != nullptr) pacer->begin(*stream_);
      device_.copy_async(*stream_, to.data() + done, from.data() + done, kPieceBytes);
      if (pacer != nullptr) pacer->end(*stream_, kPieceBytes);
    }
    stream_->synchronize();
  }

  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<LinkPacer> pacer_;
  Buffer host_;
  Buffer there_;
};

// Of so many bytes again and again. Sums so that the reads cannot be left out.
class HostReader {
 public:
  HostReader(int threads, uint64_t bytes)
      : pool_(threads),
        tasks_(static_cast<int64_t>(std::clamp<uint64_t>(bytes, kReadTask, kMostReadBytes) / kReadTask)),
        words_(static_cast<size_t>(tasks_) * (kReadTask / sizeof(uint64_t)), 1),
        sums_(static_cast<size_t>(pool_.size())) {}

  double rate() {
    return best_rate(static_cast<double>(words_.size() * sizeof(uint64_t)), [this] {
      pool_.parallel_for(tasks_, [this](int64_t task, int worker) {
        constexpr size_t kWords = kReadTask / sizeof(uint64_t);
        const uint64_t* begin = words_.data() + static_cast<size_t>(task) * kWords;
        uint64_t sum = 0;
        for (size_t i = 0; i < kWords; ++i) sum += begin[i];
        sums_[static_cast<size_t>(worker)].value += sum;
      });
    });
  }

 private:
  struct alignas(64) Sum {
    uint64_t value = 0;
  };
  ThreadPool pool_;
  int64_t tasks_;
  std::vector<uint64_t> words_;
  std::vector<Sum> sums_;  // [pool size]
};

// Calls again and again on a thread of its own.
class Beside {
 public:
  explicit Beside(std::function<void()> call)
      : rate_(std::async(std::launch::async, [this, call = std::move(call)] { return run(call); })) {}
  ~Beside() { stopped_ = true; }  // the future waits
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  // Calls a second, or what one of them threw.
  double stop() {
    stopped_ = true;
    return rate_.get();
  }

 private:
  double run(const std::function<void()>& call) const {
    const auto begin = Clock::now();
    double calls = 0;
    do {
      call();
      ++calls;
    } while (!stopped_);
    return calls / seconds_since(begin);
  }

  std::atomic<bool> stopped_{false};
  std::future<double> rate_;
};

void measure_both_ways(Link& link, Link& back, Ceilings* ceilings) {
  const auto bytes = static_cast<double>(kCopyBytes);
  Beside out([&] { back.copy_out(); });
  ceilings->link_in_beside_out = best_rate(bytes, [&] { link.copy_in(); });
  ceilings->link_out_beside_in = bytes * out.stop();
}

double read_beside_copies(HostReader& reader, Link& link) {
  Beside copies([&] { link.copy_in(); });
  const double rate = reader.rate();
  copies.stop();
  return rate;
}

WeightFormat main_format(const Plan& plan) {
  const std::pair<std::string, uint64_t>* most = nullptr;
  for (const auto& entry : plan.bytes_by_format) {
    if (entry.first != "f32 vectors" && (most == nullptr || entry.second > most->second)) most = &entry;
  }
  for (auto i = static_cast<int>(WeightFormat::f32);
       most != nullptr && i <= static_cast<int>(WeightFormat::q6_k); ++i) {
    if (name_of(static_cast<WeightFormat>(i)) == most->first) return static_cast<WeightFormat>(i);
  }
  return WeightFormat::f32;
}

double product_rate(Device& device, const EngineOptions& options, const Plan& plan,
                    const ModelConfig& config) {
  const ParsedOptions parsed = parse_options(options);
  const auto ops = make_ops(device, {.math = parsed.math.value_or(default_math(device, parsed.kernels)),
                                     .family = parsed.kernels,
                                     .host_threads = plan.threads});
  const auto stream = device.create_stream("bench");
  const WeightFormat format = main_format(plan);
  const int64_t rows = config.intermediate_size;
  const int64_t cols = config.hidden_size;
  const auto filled = [&](size_t bytes) {
    Buffer buffer = device.allocate(bytes, MemorySpace::device);
    device.fill_async(*stream, buffer.data(), std::byte{0x3c}, bytes);  // a small number in every format
    return buffer;
  };
  const Buffer weights = filled(packed_bytes(format, rows, cols));
  const Buffer x = filled(static_cast<size_t>(plan.chunk * cols) * sizeof(float));
  const Buffer y = filled(static_cast<size_t>(plan.chunk * rows) * sizeof(float));
  return best_rate(static_cast<double>(plan.chunk) * static_cast<double>(rows * cols), [&] {
    ops->matmul(
        *stream, RowKind::prefill, x.as<float>(), cols, plan.chunk,
        {{.w = {format, rows, cols, weights.data()}, .row_end = rows, .y = y.as<float>(), .y_stride = rows}});
    stream->synchronize();
  });
}

}  // namespace

uint64_t host_weights_of_pass(const Plan& plan, bool shares_host_memory) {
  if (shares_host_memory) {
    return plan.resident_bytes + plan.streamed_bytes_per_pass + plan.lm_head_bytes + plan.host_bytes_per_pass;
  }
  return plan.host_bytes_per_pass + (plan.vocab_placement == "device" ? 0 : plan.lm_head_bytes);
}

Ceilings measure_ceilings(const EngineOptions& options, const Plan& plan, const ModelConfig& config) {
  const auto device = make_device({.device = options.device, .threads = plan.threads});
  Ceilings ceilings;
  ceilings.shares_host_memory = device->info().shares_host_memory;
  ceilings.product = product_rate(*device, options, plan, config);
  Link link(*device, options.link_limit);
  const auto bytes = static_cast<double>(kCopyBytes);
  ceilings.link_in = best_rate(bytes, [&] { link.copy_in(); });
  ceilings.link_out = best_rate(bytes, [&] { link.copy_out(); });
  {
    Link back(*device, 0);
    measure_both_ways(link, back, &ceilings);
  }
  {
    const Buffer other = device->allocate(kCopyBytes, MemorySpace::device);
    ceilings.device_copy = best_rate(2 * bytes, [&] { link.copy_inside(other); });
  }
  HostReader reader(plan.threads, host_weights_of_pass(plan, ceilings.shares_host_memory));
  ceilings.host_read = reader.rate();
  ceilings.host_read_beside_copies = read_beside_copies(reader, link);
  return ceilings;
}

}  // namespace ete::cli
