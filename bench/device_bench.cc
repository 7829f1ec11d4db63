// What a device's ops reach of its own memory's bandwidth: device_bench [DEVICE] [KERNELS] [MATH]
// [PREFIX of the formats, or of "attention" or "delta_net"]. Every figure stands beside the ceiling measured
// in the same run, a copy from device memory to device memory. Matrices are rotated so that no cache holds
// them.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/ops.h"

namespace ete {
namespace {

// Of matrices, rows and columns: an MLP's two ways.
constexpr int64_t kWide = 12288;
constexpr int64_t kNarrow = 4096;
constexpr size_t kRotatedBytes = size_t{1} << 30;
constexpr int64_t kMostRows = 2048;  // of x

struct Bench {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;

  // Seconds a call, of enough calls to hide the launches.
  double seconds(const std::function<void(int call)>& run) const {
    int calls = 0;
    return seconds_of_stretches([&] {
      for (int i = 0; i < kStretch; ++i) run(calls++);
    });
  }
  // Where the device records launches, as it repeats them: what a pass over resident layers does.
  double seconds_recorded(const std::function<void(int call)>& run) const {
    const auto stretch = [&] {
      for (int i = 0; i < kStretch; ++i) run(i);
    };
    run(0);  // allocates what it has to
    const std::unique_ptr<RecordedLaunches> recorded = ops->record(*stream, stretch);
    if (recorded == nullptr) return seconds(run);
    return seconds_of_stretches([&] {
      if (!ops->repeat(*stream, *recorded, stretch)) throw Error(ErrorCode::internal, "a repeat was refused");
    });
  }

 private:
  static constexpr int kStretch = 64;  // calls

  double seconds_of_stretches(const std::function<void()>& stretch) const {
    using Clock = std::chrono::steady_clock;
    stretch();
    stream->synchronize();
    const auto start = Clock::now();
    int calls = 0;
    std::chrono::duration<double> elapsed{};
    do {
      stretch();
      calls += kStretch;
      stream->synchronize();
      elapsed = Clock::now() - start;
    } while (elapsed.count() < 0.15);
    return elapsed.count() / calls;
  }
};

Buffer on_device(const Bench& bench, const Buffer& host) {
  Buffer there = bench.device->allocate(host.size(), MemorySpace::device);
  bench.device->copy_async(*bench.stream, there.data(), host.data(), host.size());
  bench.stream->synchronize();
  return there;
}

// Bytes of any format: random bits, small enough in their f16 fields to give numbers.
Buffer random_bytes(const Bench& bench, size_t bytes) {
  Buffer host = bench.device->allocate(bytes, MemorySpace::host);
  std::mt19937 random(1);
  const size_t drawn = std::min(bytes, size_t{1} << 24);
  for (size_t i = 0; i < drawn / 4; ++i) host.as<uint32_t>()[i] = random() & 0x3bff3bffu;
  for (size_t done = drawn; done < bytes; done += drawn) {
    std::memcpy(host.data() + done, host.data(), std::min(drawn, bytes - done));
  }
  return on_device(bench, host);
}

// Numbers of the size that activations have. Random bits make many that are too small for the fast way of a
// device's divisions.
Buffer random_floats(const Bench& bench, size_t count) {
  Buffer host = bench.device->allocate(count * sizeof(float), MemorySpace::host);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> draw(-1, 1);
  for (size_t i = 0; i < count; ++i) host.as<float>()[i] = draw(random);
  return on_device(bench, host);
}

double copy_bandwidth(const Bench& bench) {
  const Buffer from = random_bytes(bench, kRotatedBytes);
  const Buffer to = bench.device->allocate(kRotatedBytes, MemorySpace::device);
  const double seconds = bench.seconds(
      [&](int) { bench.device->copy_async(*bench.stream, to.data(), from.data(), kRotatedBytes); });
  return 2 * static_cast<double>(kRotatedBytes) / seconds;
}

void products(const Bench& bench, WeightFormat format, int64_t rows, int64_t cols, double ceiling) {
  const size_t bytes = packed_bytes(format, rows, cols);
  const auto matrices = static_cast<int>(kRotatedBytes / bytes);
  const Buffer weights = random_bytes(bench, static_cast<size_t>(matrices) * bytes);
  const Buffer x = random_bytes(bench, static_cast<size_t>(kMostRows * cols) * sizeof(float));
  const Buffer y =
      bench.device->allocate(static_cast<size_t>(kMostRows * rows) * sizeof(float), MemorySpace::device);
  const auto time = [&](RowKind kind, int64_t m) {
    const auto run = [&](int call) {
      const std::byte* data = weights.data() + static_cast<size_t>(call % matrices) * bytes;
      bench.ops->matmul(
          *bench.stream, kind, x.as<float>(), cols, m,
          {{.w = {format, rows, cols, data}, .row_end = rows, .y = y.as<float>(), .y_stride = rows}});
    };
    return kind == RowKind::decode ? bench.seconds_recorded(run) : bench.seconds(run);
  };
  const double one = time(RowKind::decode, 1);
  std::printf("%-8s %5ld x %5ld decode %6.0f GB/s %.2f of copy |", std::string(name_of(format)).c_str(),
              static_cast<long>(rows), static_cast<long>(cols), static_cast<double>(bytes) / one * 1e-9,
              static_cast<double>(bytes) / one / ceiling);
  for (const int64_t m : {2, 4, 16, 64})
    std::printf(" %ld rows %.2fx", static_cast<long>(m), time(RowKind::decode, m) / one);
  std::printf(" | prefill");
  for (const int64_t m : {64, 512, 2048}) {
    const double flops = 2.0 * static_cast<double>(rows * cols * m);
    std::printf(" %ld: %.1f TFLOP/s", static_cast<long>(m), flops / time(RowKind::prefill, m) * 1e-12);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// A layer's attention in the shape of Llama 8B.
struct AttentionBench {
  static constexpr int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128;
  static constexpr int64_t kPages =
      static_cast<int64_t>(kRotatedBytes) / (2 * kKvTile * kKvHeads * kHeadDim * 2);
  static constexpr int64_t kWidth = kHeads * kHeadDim;

  const Bench& bench;
  KvLayout kv{.type = DType::f16, .kv_heads = kKvHeads, .head_dim = kHeadDim};
  Buffer pages = random_bytes(bench, kPages* kv.page_bytes());
  Buffer q = random_bytes(bench, static_cast<size_t>(kMostRows* kWidth) * sizeof(float));
  Buffer out =
      bench.device->allocate(static_cast<size_t>(kMostRows * kWidth) * sizeof(float), MemorySpace::device);

  // Of the last `rows` positions of a context, in each of `sessions`.
  double seconds(RowKind kind, int64_t rows, int64_t context, int64_t sessions = 1) const {
    const int64_t pages_of_session = (context + kKvTile - 1) / kKvTile;
    return bench.seconds([&](int call) {
      AttentionArgs args{.q = q.as<float>(),
                         .q_stride = kWidth,
                         .out = out.as<float>(),
                         .out_stride = kWidth,
                         .heads = kHeads,
                         .kv = kv,
                         .scale = 0.088f,
                         .segments = {}};
      int64_t page = call * sessions * pages_of_session;
      for (int64_t i = 0; i < sessions; ++i) {
        KvSegment segment{
            .row_begin = i * rows, .row_count = rows, .first_position = context - rows, .pages = {}};
        for (int64_t j = 0; j < pages_of_session; ++j) {
          segment.pages.push_back(pages.data() + static_cast<size_t>(page++ % kPages) * kv.page_bytes());
        }
        args.segments.push_back(std::move(segment));
      }
      bench.ops->attention(*bench.stream, kind, args);
    });
  }
  void run(double ceiling) const {
    std::printf("attention of %ld heads of %ld, %ld of keys, f16 | prefill", static_cast<long>(kHeads),
                static_cast<long>(kHeadDim), static_cast<long>(kKvHeads));
    for (const auto& [rows, context] : {std::pair{512L, 512L}, {2048L, 2048L}, {512L, 8192L}}) {
      const double keys = static_cast<double>(context) - static_cast<double>(rows - 1) / 2;
      const double flops = 4.0 * static_cast<double>(rows * kWidth) * keys;
      std::printf(" %ld of %ld: %.1f TFLOP/s", rows, context,
                  flops / seconds(RowKind::prefill, rows, context) * 1e-12);
    }
    std::printf(" | decode");
    for (const auto& [sessions, context] :
         {std::pair{1L, 512L}, {1L, 2048L}, {1L, 8192L}, {1L, 32768L}, {16L, 2048L}}) {
      const double bytes = static_cast<double>(sessions * context * 2 * kKvHeads * kHeadDim * 2);
      const double rate = bytes / seconds(RowKind::decode, 1, context, sessions);
      std::printf(" %ld of %ld: %.0f GB/s %.2f of copy", sessions, context, rate * 1e-9, rate / ceiling);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
};

// A layer of Gated DeltaNet in the shape of Qwen3.5 9B.
struct DeltaNetBench {
  static constexpr DeltaNetShape kShape = {
      .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
  static constexpr size_t kStateBytes = kShape.state_floats() * sizeof(float);
  static constexpr auto kStates = static_cast<int>(kRotatedBytes / kStateBytes);

  const Bench& bench;
  size_t workspace_bytes =
      bench.ops->workspace_bytes({.rows = kMostRows, .cols = kNarrow, .delta_net = kShape});
  Buffer workspace = bench.device->allocate(workspace_bytes, MemorySpace::device);
  Buffer x = random_floats(bench, static_cast<size_t>(kMostRows* kShape.input_width()));
  Buffer out = zeros(static_cast<size_t>(kMostRows * kShape.value_width()));
  Buffer conv = random_floats(bench, static_cast<size_t>(kShape.conv_kernel* kShape.conv_width()));
  Buffer gates = zeros(kShape.value_heads);  // nothing decays
  Buffer states = zeros(kStates * kStateBytes / sizeof(float));

  Buffer zeros(size_t floats) const {
    Buffer buffer = bench.device->allocate(floats * sizeof(float), MemorySpace::device);
    bench.device->fill_async(*bench.stream, buffer.data(), std::byte{0}, buffer.size());
    return buffer;
  }
  // Sessions of `rows` rows each.
  double seconds(RowKind kind, int sessions, int64_t rows) const {
    return bench.seconds([&](int call) {
      DeltaNetArgs args{.shape = kShape,
                        .x = x.as<float>(),
                        .x_stride = kShape.input_width(),
                        .out = out.as<float>(),
                        .out_stride = kShape.value_width(),
                        .conv = conv.as<float>(),
                        .decay_rate = gates.as<float>(),
                        .dt_bias = gates.as<float>(),
                        .segments = {}};
      for (int i = 0; i < sessions; ++i) {
        const auto place = static_cast<size_t>((call * sessions + i) % kStates);
        args.segments.push_back({.row_begin = i * rows,
                                 .row_count = rows,
                                 .state = reinterpret_cast<float*>(states.data() + place * kStateBytes)});
      }
      bench.ops->delta_net(*bench.stream, kind, args);
    });
  }
  void run(double ceiling) const {
    bench.ops->set_workspace(workspace.data(), workspace_bytes);
    std::printf("delta_net of %ld heads of %ld, %ld of keys | prefill", static_cast<long>(kShape.value_heads),
                static_cast<long>(kShape.value_dim), static_cast<long>(kShape.key_heads));
    for (const int64_t rows : {64, 512, 2048}) {
      std::printf(" %ld rows: %.3f ms", static_cast<long>(rows), seconds(RowKind::prefill, 1, rows) * 1e3);
    }
    std::printf(" | decode");
    for (const int sessions : {1, 16, 64}) {
      const double elapsed = seconds(RowKind::decode, sessions, 1);
      const double rate = 2.0 * sessions * static_cast<double>(kStateBytes) / elapsed;
      std::printf(" %d sessions: %.1f us, %.0f GB/s %.2f of copy", sessions, elapsed * 1e6, rate * 1e-9,
                  rate / ceiling);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
};

void run(int argc, char** argv) {
  Bench bench;
  bench.device = make_device({.device = argc > 1 ? argv[1] : "auto"});
  bench.ops =
      make_ops(*bench.device, {.math = argc > 3 && std::string(argv[3]) == "fast" ? Math::fast : Math::exact,
                               .family = kernel_family_from(argc > 2 ? argv[2] : "auto")});
  bench.stream = bench.device->create_stream("bench");
  const double ceiling = copy_bandwidth(bench);
  std::printf("%s; %s; device copy %.0f GB/s, read and written\n", bench.device->info().name.c_str(),
              bench.ops->describe().c_str(), ceiling * 1e-9);
  for (const WeightFormat format : {WeightFormat::w8_row, WeightFormat::w8_g32, WeightFormat::w4_g32,
                                    WeightFormat::w4_g32m, WeightFormat::w4_g128, WeightFormat::bf16,
                                    WeightFormat::f32, WeightFormat::q4_k, WeightFormat::q6_k}) {
    if (argc > 4 && !name_of(format).starts_with(argv[4])) continue;
    bench.ops->measure_launches({&format, 1});
    std::printf("launches: %s\n", bench.ops->describe_launches().c_str());
    products(bench, format, kWide, kNarrow, ceiling);
    products(bench, format, kNarrow, kWide, ceiling);
  }
  if (argc <= 4 || std::string_view("attention").starts_with(argv[4])) AttentionBench{bench}.run(ceiling);
  if (argc <= 4 || std::string_view("delta_net").starts_with(argv[4])) DeltaNetBench{bench}.run(ceiling);
}

}  // namespace
}  // namespace ete

int main(int argc, char** argv) {
  try {
    ete::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
