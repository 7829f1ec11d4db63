#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/split.cuh"

// Products of Math::fast on tensor cores: int8 weights or nibbles times int8 activations, a group of 32
// columns at a time; each group's sum is exact, then scaled and added in f32. Weights go from memory to the
// tensor cores' registers as they lie. The order in which groups are added depends on the number of columns
// only.

namespace ete::cuda {

namespace {

constexpr int kTile = QuantizedRows::kTile;  // rows of x in one product

// Adds bias and residual and stores one output.
__device__ inline void store_output(const Product& product, int64_t row, int64_t output, int64_t m,
                                    float total) {
  if (row >= m || output >= product.rows) return;
  if (product.bias != nullptr) total += product.bias[output];
  float* y = product.y + row * product.y_stride + output;
  *y = product.add_to_y ? *y + total : total;
}

// kGroups groups, kSplits apart: everything is asked for before the first is used.
template <typename Load, int kTiles, int kGroups>
__device__ inline void decode_groups(const QuantizedRows& x, const std::byte* panel, int64_t first_tile,
                                     int64_t group, int g, int t, float (&acc)[kTiles][4]) {
  Fragment w[kGroups];
  TileOfX<Load> at[kGroups][kTiles];
#pragma unroll
  for (int u = 0; u < kGroups; ++u) Load::load(panel, group + u * kSplits, g, t, &w[u]);
#pragma unroll
  for (int u = 0; u < kGroups; ++u) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) at[u][i].load(x, first_tile + i, group + u * kSplits, g, t);
  }
#pragma unroll
  for (int u = 0; u < kGroups; ++u) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) accumulate_group<Load>(w[u], at[u][i], acc[i]);
  }
}

// A block computes a panel for kTiles tiles of x. Group k belongs to split k % kSplits; the block's warps,
// however many, share the splits, whose sums are added in ascending order.
template <WeightFormat F, int kTiles>
__global__ void __launch_bounds__(kMostDecodeThreads, 1)
    decode_kernel(QuantizedRows x, int64_t m, Products products, int64_t panel_bytes, int64_t groups) {
  using Load = FragmentLoad<F>;
  constexpr int kGroups = kTiles == 1 ? 4 : 2;
  __shared__ float partial[kSplits][kTiles * 4][32];
  const int64_t panel = blockIdx.y;
  const Product& product = products.product[product_of(products, panel)];
  const int64_t local_panel = panel - (product.panel_end - (product.rows + 15) / 16);
  const std::byte* data = product.panels + local_panel * panel_bytes;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t first_tile = static_cast<int64_t>(blockIdx.x) * kTiles;

  for (int split = threadIdx.x / 32; split < kSplits; split += blockDim.x / 32) {
    float acc[kTiles][4] = {};
    int64_t group = split;
    for (; group + (kGroups - 1) * kSplits < groups; group += kGroups * kSplits) {
      decode_groups<Load, kTiles, kGroups>(x, data, first_tile, group, g, t, acc);
    }
    for (; group < groups; group += kSplits) {
      decode_groups<Load, kTiles, 1>(x, data, first_tile, group, g, t, acc);
    }
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) partial[split][i][lane] = acc[i / 4][i % 4];
  }
  __syncthreads();

  for (int item = threadIdx.x; item < kTiles * 4 * 32; item += blockDim.x) {
    const int i = item / 32, from = item % 32;
    float total = 0;
#pragma unroll
    for (int split = 0; split < kSplits; ++split) total += partial[split][i][from];
    const int row_of_panel = from / 4 + i % 4 / 2 * 8;
    if constexpr (Load::kRowScale) total *= Load::row_scale(data, row_of_panel);
    store_output(product, (first_tile + i / 4) * kTile + from % 4 * 2 + i % 2,
                 local_panel * 16 + row_of_panel, m, total);
  }
}

constexpr int kPrefillWarps = 4;
constexpr int kPanels = 2;        // of a warp
constexpr int kPrefillTiles = 8;  // of x
constexpr int kBlockOutputs = kPrefillWarps * kPanels * 16;

struct OutputTile {
  const Product* product;
  int64_t first_panel;  // within the product
};

__device__ inline OutputTile tile_of(const Products& products, int64_t tile) {
  for (int i = 0;; ++i) {
    const Product& product = products.product[i];
    const int64_t tiles = (product.rows + kBlockOutputs - 1) / kBlockOutputs;
    if (tile < tiles) return {&product, tile * (kBlockOutputs / 16)};
    tile -= tiles;
  }
}

// A warp computes kPanels panels for kPrefillTiles tiles of x over all groups, one group ahead of itself in
// reading.
template <WeightFormat F>
__global__ void __launch_bounds__(kPrefillWarps * 32, 3)
    prefill_kernel(QuantizedRows x, int64_t m, Products products, int64_t panel_bytes, int64_t groups) {
  using Load = FragmentLoad<F>;
  const OutputTile tile = tile_of(products, blockIdx.y);
  const Product& product = *tile.product;
  const int64_t panels = (product.rows + 15) / 16;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t first_panel = tile.first_panel + static_cast<int64_t>(threadIdx.x / 32) * kPanels;
  if (first_panel >= panels) return;
  const int64_t first_tile = static_cast<int64_t>(blockIdx.x) * kPrefillTiles;
  const std::byte* data[kPanels];
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    data[p] = product.panels + (first_panel + p < panels ? first_panel + p : first_panel) * panel_bytes;
  }

  float acc[kPanels][kPrefillTiles][4] = {};
  Fragment w[kPanels];
#pragma unroll
  for (int p = 0; p < kPanels; ++p) Load::load(data[p], 0, g, t, &w[p]);
  for (int64_t group = 0; group < groups; ++group) {
    Fragment next[kPanels];
    const int64_t ahead = group + 1 < groups ? group + 1 : group;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) Load::load(data[p], ahead, g, t, &next[p]);
    TileOfX<Load> at[kPrefillTiles];
#pragma unroll
    for (int i = 0; i < kPrefillTiles; ++i) at[i].load(x, first_tile + i, group, g, t);
#pragma unroll
    for (int i = 0; i < kPrefillTiles; ++i) {
#pragma unroll
      for (int p = 0; p < kPanels; ++p) accumulate_group<Load>(w[p], at[i], acc[p][i]);
    }
#pragma unroll
    for (int p = 0; p < kPanels; ++p) w[p] = next[p];
  }
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    if (first_panel + p >= panels) break;
#pragma unroll
    for (int j = 0; j < kPrefillTiles * 4; ++j) {
      const int row_of_panel = g + j % 4 / 2 * 8;
      float total = acc[p][j / 4][j % 4];
      if constexpr (Load::kRowScale) total *= Load::row_scale(data[p], row_of_panel);
      store_output(product, (first_tile + j / 4) * kTile + 2 * t + j % 2,
                   (first_panel + p) * 16 + row_of_panel, m, total);
    }
  }
}

template <WeightFormat F, int kTiles>
void launch_decode(cudaStream_t stream, const QuantizedRows& x, const MatmulShape& shape,
                   const Products& products) {
  const int64_t panels = products.product[products.count - 1].panel_end;
  const int64_t rows = kTiles * kTile;
  const dim3 grid(static_cast<unsigned>((shape.m + rows - 1) / rows), static_cast<unsigned>(panels));
  decode_kernel<F, kTiles><<<grid, threads_of_decode(panels), 0, stream>>>(
      x, shape.m, products, static_cast<int64_t>(panel_bytes(F, shape.cols)),
      (shape.cols + block_cols(F) - 1) / block_cols(F) * (block_cols(F) / 32));
  CUDA_CHECK(cudaGetLastError());
}

template <WeightFormat F>
void launch_prefill(cudaStream_t stream, const QuantizedRows& x, const MatmulShape& shape,
                    const Products& products) {
  int64_t tiles = 0;
  for (int i = 0; i < products.count; ++i) {
    tiles += (products.product[i].rows + kBlockOutputs - 1) / kBlockOutputs;
  }
  const int64_t rows = kPrefillTiles * kTile;
  const dim3 grid(static_cast<unsigned>((shape.m + rows - 1) / rows), static_cast<unsigned>(tiles));
  prefill_kernel<F><<<grid, kPrefillWarps * 32, 0, stream>>>(
      x, shape.m, products, static_cast<int64_t>(panel_bytes(F, shape.cols)),
      (shape.cols + block_cols(F) - 1) / block_cols(F) * (block_cols(F) / 32));
  CUDA_CHECK(cudaGetLastError());
}

// Calls f.operator()<F>() for formats that have a FragmentLoad; false: this one has none.
template <typename Call>
bool with_fragments(WeightFormat format, const Call& call) {
  bool known = false;
  with_format(format, [&]<WeightFormat F>() {
    if constexpr (FragmentLoad<F>::kSupported) {
      call.template operator()<F>();
      known = true;
    }
  });
  return known;
}

}  // namespace

bool has_mma(WeightFormat format) {
  return with_fragments(format, []<WeightFormat F>() {});
}

void launch_matmul_mma_decode(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                              const MatmulShape& shape, const Products& products) {
  with_fragments(format, [&]<WeightFormat F>() {
    if (shape.m <= kTile) return launch_decode<F, 1>(stream, x, shape, products);
    if (shape.m <= 2 * kTile) return launch_decode<F, 2>(stream, x, shape, products);
    launch_decode<F, 4>(stream, x, shape, products);
  });
}

void launch_matmul_mma_prefill(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                               const MatmulShape& shape, const Products& products) {
  with_fragments(format, [&]<WeightFormat F>() { launch_prefill<F>(stream, x, shape, products); });
}

}  // namespace ete::cuda
