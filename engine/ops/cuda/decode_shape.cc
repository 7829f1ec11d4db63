#include "engine/ops/cuda/decode_shape.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/multiprocessors.cuh"

namespace ete::cuda {

namespace {

// What is measured: matrices that models have, as whole rounds of blocks over all multiprocessors hide what
// the last round costs.
struct Size {
  int64_t panels = 0;
  int64_t cols = 0;
};
constexpr int64_t kRows[] = {1, 8, 16};  // the most that a choice is for, ascending
constexpr int64_t kMost = std::end(kRows)[-1];
constexpr Size kSizes[] = {{256, 12288}, {256, 4096}, {768, 4096}};
constexpr int kLaunches = 32;  // enough that blocks lie on the multiprocessors as they will in a pass
constexpr int kRounds = 3;
constexpr double kClearly = 0.98;  // of the time of `plain`: less is noise

// Numbers to multiply, enough of them that no cache holds them, and a stream to do it in.
class Bench {
 public:
  explicit Bench(std::span<const WeightFormat> formats) {
    for (const Size& size : kSizes) {
      most_panels_ = std::max(most_panels_, size.panels);
      most_cols_ = std::max(most_cols_, size.cols);
      for (const WeightFormat format : formats) {
        weight_bytes_ = std::max(weight_bytes_, 2 * bytes_of(format, size));
      }
    }
    const auto cache = static_cast<size_t>(attribute_of_device(cudaDevAttrL2CacheSize));
    weight_bytes_ = (std::max(weight_bytes_, 4 * cache) + 255) / 256 * 256;
    const size_t x_bytes = sizeof(float) * static_cast<size_t>(kMost * most_cols_);
    const size_t rounded_bytes = QuantizedRows::bytes_for(kMost, most_cols_);
    const size_t all = weight_bytes_ + x_bytes + rounded_bytes +
                       sizeof(float) * static_cast<size_t>(kMost * most_panels_ * kPanelRows);
    void* memory = nullptr;
    if (cudaMalloc(&memory, all) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // told by has_memory()
      return;
    }
    memory_ = static_cast<std::byte*>(memory);
    x_ = reinterpret_cast<float*>(memory_ + weight_bytes_);
    rounded_ = memory_ + weight_bytes_ + x_bytes;
    y_ = reinterpret_cast<float*>(rounded_ + rounded_bytes);
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
    fill(all);
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

  DecodeShape fastest(WeightFormat format, int64_t m, const Size& size) const {
    const std::span<const DecodeShape> shapes = decode_shapes_of(m);
    std::vector<cudaGraphExec_t> launches(shapes.size(), nullptr);
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (can_launch(shapes[i], format, m)) launches[i] = captured(shapes[i], format, m, size);
    }
    std::vector<double> least(shapes.size(), std::numeric_limits<double>::infinity());
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < shapes.size(); ++i) {
        if (launches[i] != nullptr) least[i] = std::min(least[i], milliseconds(launches[i]));
      }
    }
    for (const cudaGraphExec_t exec : launches) {
      if (exec != nullptr) CUDA_CHECK(cudaGraphExecDestroy(exec));
    }
    const auto best = static_cast<size_t>(std::min_element(least.begin(), least.end()) - least.begin());
    return least[best] < kClearly * least[0] ? shapes[best] : shapes[0];
  }

 private:
  size_t bytes_of(WeightFormat format, const Size& size) const {
    return packed_bytes(format, size.panels * kPanelRows, size.cols);
  }
  // kLaunches, as a graph: launched one by one, short kernels take as long as a launch does.
  cudaGraphExec_t captured(DecodeShape decode_shape, WeightFormat format, int64_t m, const Size& size) const {
    const size_t bytes = bytes_of(format, size);
    const MatmulShape shape{.x = x_, .x_stride = size.cols, .m = m, .cols = size.cols};
    const QuantizedRows rounded = QuantizedRows::at(rounded_, RowKind::decode, m, size.cols);
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    for (size_t i = 0; i < kLaunches; ++i) {
      Products products{.product = {}, .count = 1};
      products.product[0] = {.panels = memory_ + i % (weight_bytes_ / bytes) * bytes,
                             .y = y_,
                             .y_stride = size.panels * kPanelRows,
                             .rows = size.panels * kPanelRows,
                             .panel_end = size.panels};
      if (m > 1) launch_quantize(stream_, shape, rounded);
      launch_matmul_mma(stream_, decode_shape, format, rounded, shape, products);
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return exec;
  }
  double milliseconds(cudaGraphExec_t launches) const {
    CUDA_CHECK(cudaEventRecord(begin_, stream_));
    CUDA_CHECK(cudaGraphLaunch(launches, stream_));
    CUDA_CHECK(cudaEventRecord(end_, stream_));
    CUDA_CHECK(cudaEventSynchronize(end_));
    float elapsed = 0;
    CUDA_CHECK(cudaEventElapsedTime(&elapsed, begin_, end_));
    return elapsed;
  }

  // Random bits, as memory and its cache may be faster at what repeats.
  void fill(size_t bytes) const {
    std::vector<uint32_t> words(size_t{1} << 18);
    std::minstd_rand random(1);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
    const size_t drawn = std::min(words.size() * sizeof(uint32_t), bytes);
    CUDA_CHECK(cudaMemcpyAsync(memory_, words.data(), drawn, cudaMemcpyHostToDevice, stream_));
    for (size_t done = drawn; done < bytes; done *= 2) {
      CUDA_CHECK(cudaMemcpyAsync(memory_ + done, memory_, std::min(done, bytes - done),
                                 cudaMemcpyDeviceToDevice, stream_));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  int64_t most_panels_ = 0;
  int64_t most_cols_ = 0;
  size_t weight_bytes_ = 0;
  std::byte* memory_ = nullptr;  // weights, then:
  float* x_ = nullptr;
  std::byte* rounded_ = nullptr;  // rows of it
  float* y_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

double log_ratio(int64_t a, int64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

}  // namespace

const char* name_of(DecodeShape shape) {
  switch (shape) {
    case DecodeShape::plain:
      return "plain";
    case DecodeShape::row_2_2_2:
      return "row_2_2_2";
    case DecodeShape::row_2_3_2:
      return "row_2_3_2";
    case DecodeShape::rows_1_3:
      return "rows_1_3";
    case DecodeShape::rows_1_4:
      return "rows_1_4";
    case DecodeShape::rows_1_6:
      return "rows_1_6";
    case DecodeShape::rows_2_2:
      return "rows_2_2";
    case DecodeShape::rows_2_6:
      return "rows_2_6";
  }
  return "";
}

std::span<const DecodeShape> decode_shapes_of(int64_t m) {
  using enum DecodeShape;
  static constexpr DecodeShape kOfOne[] = {plain, row_2_2_2, row_2_3_2};
  static constexpr DecodeShape kOfEight[] = {plain, rows_1_4, rows_1_6};
  static constexpr DecodeShape kOfSixteen[] = {plain, rows_1_3, rows_1_4, rows_2_2, rows_2_6};
  static_assert(std::size(kOfSixteen) == kMostDecodeShapes);
  if (m == 1) return kOfOne;
  if (m <= 8) return kOfEight;
  if (m <= 16) return kOfSixteen;
  return std::span(kOfOne).first(1);
}

bool can_launch(DecodeShape decode_shape, WeightFormat format, int64_t m) {
  if (decode_shape == DecodeShape::plain) return true;
  return m == 1 ? can_launch_row(decode_shape, format) : can_launch_few(decode_shape, format, m);
}

void launch_matmul_mma(cudaStream_t stream, DecodeShape decode_shape, WeightFormat format,
                       const QuantizedRows& x, const MatmulShape& shape, const Products& products) {
  if (shape.m == 1) return launch_matmul_mma_row(stream, decode_shape, format, shape, products);
  if (decode_shape == DecodeShape::plain) return launch_matmul_mma_decode(stream, format, x, shape, products);
  launch_matmul_mma_few(stream, decode_shape, format, x, shape, products);
}

DecodeShapes DecodeShapes::measured(std::span<const WeightFormat> formats) {
  DecodeShapes shapes;
  std::vector<WeightFormat> chosen;  // of those that tensor cores multiply
  std::copy_if(formats.begin(), formats.end(), std::back_inserter(chosen), has_integer_products);
  if (chosen.empty()) return shapes;
  const Bench bench(chosen);
  if (!bench.has_memory()) return shapes;
  for (const int64_t m : kRows) {
    for (const WeightFormat format : chosen) {
      for (const Size& size : kSizes) {
        shapes.choices_.push_back({.format = format,
                                   .m = m,
                                   .panels = size.panels,
                                   .cols = size.cols,
                                   .shape = bench.fastest(format, m, size)});
      }
    }
  }
  return shapes;
}

DecodeShape DecodeShapes::of(WeightFormat format, const MatmulShape& shape, const Products& products) const {
  if (choices_.empty()) {
    const std::span<const DecodeShape> shapes = decode_shapes_of(shape.m);
    const DecodeShape forced = shapes[static_cast<size_t>(index_) % shapes.size()];
    return can_launch(forced, format, shape.m) ? forced : DecodeShape::plain;
  }
  const auto of_rows = std::find_if(choices_.begin(), choices_.end(),
                                    [&](const Choice& choice) { return shape.m <= choice.m; });
  if (of_rows == choices_.end()) return DecodeShape::plain;
  DecodeShape nearest = DecodeShape::plain;
  double least = std::numeric_limits<double>::infinity();
  for (auto choice = of_rows; choice != choices_.end() && choice->m == of_rows->m; ++choice) {
    if (choice->format != format) continue;
    const double distance = log_ratio(choice->panels, products.product[products.count - 1].panel_end) +
                            log_ratio(choice->cols, shape.cols);
    if (distance >= least) continue;
    least = distance;
    nearest = choice->shape;
  }
  return nearest;
}

std::string DecodeShapes::describe() const {
  std::string text;
  for (const Choice& choice : choices_) {
    if (choice.shape == DecodeShape::plain) continue;
    text += (text.empty() ? "" : ", ") + std::string(ete::name_of(choice.format)) + " " +
            std::to_string(choice.panels * kPanelRows) + "x" + std::to_string(choice.cols) + " " +
            (choice.m > 1 ? "to " + std::to_string(choice.m) + " rows " : "") + name_of(choice.shape);
  }
  return text;
}

}  // namespace ete::cuda
