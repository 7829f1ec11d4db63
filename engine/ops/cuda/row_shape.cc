#include "engine/ops/cuda/row_shape.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/multiprocessors.cuh"

namespace ete::cuda {

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::w8_row, WeightFormat::w8_g32, WeightFormat::w4_g32,
                                     WeightFormat::w4_g32m, WeightFormat::w4_g128};
// What is measured: panels for each multiprocessor, and columns.
struct Size {
  int64_t panels = 0;
  int64_t cols = 0;
};
constexpr Size kSizes[] = {{2, 12288}, {2, 4096}, {6, 4096}};
constexpr int kLaunches = 8;
constexpr int kRounds = 3;
constexpr double kClearly = 0.98;  // of the time of `registers`: less is noise

// Zeros to multiply, enough of them that no cache holds them, and a stream to do it in.
class Bench {
 public:
  Bench() {
    int device = 0, cache = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
    int64_t panels = 0, cols = 0;
    for (const Size& size : kSizes) {
      panels = std::max(panels, size.panels * multiprocessors_);
      cols = std::max(cols, size.cols);
      for (const WeightFormat format : kFormats) bytes_ = std::max(bytes_, 2 * bytes_of(format, size));
    }
    bytes_ = std::max(bytes_, 4 * static_cast<size_t>(cache));
    x_bytes_ = static_cast<size_t>(cols) * sizeof(float);
    const size_t all = bytes_ + x_bytes_ + static_cast<size_t>(panels * 16) * sizeof(float);
    void* memory = nullptr;
    if (cudaMalloc(&memory, all) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // told by has_memory()
      return;
    }
    memory_ = static_cast<std::byte*>(memory);
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
    CUDA_CHECK(cudaMemsetAsync(memory_, 0, all, stream_));
  }
  ~Bench() {
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    cudaFree(memory_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  bool has_memory() const { return memory_ != nullptr; }
  int64_t multiprocessors() const { return multiprocessors_; }

  RowShape fastest(WeightFormat format, const Size& size) const {
    std::array<double, kRowShapes.size()> least;
    least.fill(std::numeric_limits<double>::infinity());
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < kRowShapes.size(); ++i) {
        if (can_launch(kRowShapes[i], format)) {
          least[i] = std::min(least[i], milliseconds(kRowShapes[i], format, size));
        }
      }
    }
    const auto best = static_cast<size_t>(std::min_element(least.begin(), least.end()) - least.begin());
    return least[best] < kClearly * least[0] ? kRowShapes[best] : kRowShapes[0];
  }

 private:
  size_t bytes_of(WeightFormat format, const Size& size) const {
    return packed_bytes(format, size.panels * multiprocessors_ * 16, size.cols);
  }
  double milliseconds(RowShape row_shape, WeightFormat format, const Size& size) const {
    const size_t bytes = bytes_of(format, size);
    const MatmulShape shape{.x = reinterpret_cast<const float*>(memory_ + bytes_),
                            .x_stride = size.cols,
                            .m = 1,
                            .cols = size.cols};
    const int64_t panels = size.panels * multiprocessors_;
    CUDA_CHECK(cudaEventRecord(begin_, stream_));
    for (size_t i = 0; i < kLaunches; ++i) {
      Products products{.product = {}, .count = 1};
      products.product[0] = {.panels = memory_ + i % (bytes_ / bytes) * bytes,
                             .y = reinterpret_cast<float*>(memory_ + bytes_ + x_bytes_),
                             .y_stride = panels * 16,
                             .rows = panels * 16,
                             .panel_end = panels};
      launch_matmul_mma_row(stream_, row_shape, format, shape, products);
    }
    CUDA_CHECK(cudaEventRecord(end_, stream_));
    CUDA_CHECK(cudaEventSynchronize(end_));
    float elapsed = 0;
    CUDA_CHECK(cudaEventElapsedTime(&elapsed, begin_, end_));
    return elapsed;
  }

  int64_t multiprocessors_ = multiprocessor_count();
  size_t bytes_ = 0;  // of weights; x is after them, then y
  size_t x_bytes_ = 0;
  std::byte* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

double log_ratio(int64_t a, int64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

}  // namespace

const char* name_of(RowShape shape) {
  switch (shape) {
    case RowShape::registers:
      return "registers";
    case RowShape::ring_2_2_2:
      return "ring_2_2_2";
    case RowShape::ring_2_3_2:
      return "ring_2_3_2";
  }
  return "";
}

RowShapes RowShapes::measured() {
  const Bench bench;
  RowShapes shapes;
  if (!bench.has_memory()) return shapes;
  for (const WeightFormat format : kFormats) {
    for (const Size& size : kSizes) {
      shapes.choices_.push_back({.format = format,
                                 .panels = size.panels * bench.multiprocessors(),
                                 .cols = size.cols,
                                 .shape = bench.fastest(format, size)});
    }
  }
  return shapes;
}

RowShape RowShapes::of(WeightFormat format, const MatmulShape& shape, const Products& products) const {
  if (choices_.empty()) return can_launch(for_all_, format) ? for_all_ : RowShape::registers;
  RowShape nearest = RowShape::registers;
  double least = std::numeric_limits<double>::infinity();
  for (const Choice& choice : choices_) {
    if (choice.format != format) continue;
    const double distance = log_ratio(choice.panels, products.product[products.count - 1].panel_end) +
                            log_ratio(choice.cols, shape.cols);
    if (distance >= least) continue;
    least = distance;
    nearest = choice.shape;
  }
  return nearest;
}

std::string RowShapes::describe() const {
  std::string text;
  for (const Choice& choice : choices_) {
    if (choice.shape == RowShape::registers) continue;
    text += (text.empty() ? "" : ", ") + std::string(ete::name_of(choice.format)) + " " +
            std::to_string(choice.panels * 16) + "x" + std::to_string(choice.cols) + " " +
            name_of(choice.shape);
  }
  return text;
}

}  // namespace ete::cuda
