#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "engine/ops/ops.h"

// Launchers of the CUDA kernels: pointers, sizes and a stream; each checks its launch. Arrays that a launch
// takes beside tensors (positions, ids, rows) are readable by the device. f32 throughout, the exact path:
// `plain` family.

namespace ete::cuda {

// Products of one format that share x; at most kMaxProducts a launch.
constexpr int kMaxProducts = 4;
struct Product {
  const std::byte* panels = nullptr;  // of row_begin
  const float* bias = nullptr;        // of row_begin, or null
  float* y = nullptr;                 // column of row_begin
  int64_t y_stride = 0;
  int64_t rows = 0;       // output rows from row_begin on
  int64_t panel_end = 0;  // panels of this and all products before it
  bool add_to_y = false;
};
struct Products {
  Product product[kMaxProducts];
  int count = 0;
  // The launch before was launch_matmul_decode() of the same x: it need not be done before this one begins,
  // only before this one is.
  bool beside = false;
};

struct MatmulShape {
  const float* x = nullptr;  // [m, x_stride]
  int64_t x_stride = 0;
  int64_t m = 0;
  int64_t cols = 0;
};

void launch_matmul_decode(cudaStream_t stream, WeightFormat format, const MatmulShape& shape,
                          const Products& products);
void launch_matmul_prefill(cudaStream_t stream, WeightFormat format, const MatmulShape& shape,
                           const Products& products);

// Activations of Math::fast: int8 per group of 32 columns, in tiles of 8 rows. Rows are padded to what a
// kernel of their kind takes at once, groups to what one takes at once, with zeros. Inside a group the
// bytes lie as products of 32 columns take them: columns [4t, 4t + 4) and [16 + 4t, 20 + 4t) side by side for
// t = 0 to 3.
struct QuantizedRows {
  static constexpr int kTile = 8;
  static constexpr int64_t kMostStageCols = 256;  // that a kernel takes at once

  int8_t* q = nullptr;     // [tiles, groups, kTile, 32]
  float* scale = nullptr;  // [tiles, groups, kTile]
  float* sum = nullptr;    // [tiles, groups, kTile]: scale times the sum of a group's q
  int64_t tiles = 0;
  int64_t groups = 0;

  static size_t bytes_for(int64_t m, int64_t cols);  // of either kind
  static QuantizedRows at(std::byte* memory, RowKind kind, int64_t m, int64_t cols);
};
void launch_quantize(cudaStream_t stream, const MatmulShape& shape, const QuantizedRows& out);

bool has_integer_products(WeightFormat format);
// On tensor cores, from sm_80 on. Of decode rows, one way among others (decode_shape.h).
void launch_matmul_mma_decode(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                              const MatmulShape& shape, const Products& products);
void launch_matmul_mma_prefill(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                               const MatmulShape& shape, const Products& products);

// By __dp4a, on every GPU.
void launch_matmul_dp4a_decode(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                               const MatmulShape& shape, const Products& products);
void launch_matmul_dp4a_prefill(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                                const MatmulShape& shape, const Products& products);

void launch_embed(cudaStream_t stream, const PackedMatrix& table, const int32_t* ids, int64_t count,
                  float scale, float* y, int64_t y_stride);
// The gate of Ops::gated_norm, [m, stride]; null: none.
struct NormGate {
  Activation act = Activation::silu;
  const float* gate = nullptr;
  int64_t stride = 0;
};
void launch_rms_norm(cudaStream_t stream, const RmsNormArgs& args, const NormGate& gate = {});
// RopeArgs without its vector, so that it may be a kernel's argument.
struct RopeView {
  float* x = nullptr;
  int64_t x_stride = 0;
  int64_t m = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  const float* inv_freq = nullptr;
  float amplitude = 1.0f;
};
void launch_rope(cudaStream_t stream, const RopeView& args, const int64_t* positions);
void launch_gated_activation(cudaStream_t stream, Activation act, const float* gate, const float* up,
                             float* y, int64_t m, int64_t n, int64_t stride);
void launch_copy_rows(cudaStream_t stream, int64_t m, std::span<const RowsCopy> copies);
void launch_gather_rows(cudaStream_t stream, const float* x, int64_t x_stride, const int64_t* rows,
                        int64_t count, int64_t n, float* y, int64_t y_stride);

// One row of q, k, v and where the pages of its session are among the launch's.
struct KvRow {
  int64_t row = 0;  // in q, k, v, out
  int64_t position = 0;
  int64_t first_page = 0;   // pages [first_page, end_page) of the session, 512 positions each,
  int64_t end_page = 0;     // are KvRows::pages from
  int64_t pages_begin = 0;  // here on
};
struct KvRows {
  std::byte* const* pages = nullptr;
  const KvRow* rows = nullptr;  // [count]
  int64_t count = 0;
};
// Consecutive rows of one session, as many as a block takes, and where its pages are among the launch's.
struct QueryTile {
  int64_t row = 0;       // the first, in q and out
  int64_t position = 0;  // of the first
  int64_t count = 0;
  int64_t first_page = 0;  // pages as KvRow has them
  int64_t end_page = 0;
  int64_t pages_begin = 0;
};
struct QueryTiles {
  std::byte* const* pages = nullptr;
  const QueryTile* tiles = nullptr;  // [count]
  int64_t count = 0;
};
struct KvAppendView {
  const float* k = nullptr;  // [m, k_stride]
  const float* v = nullptr;  // [m, v_stride]
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  KvLayout kv;
};
struct AttentionView {
  const float* q = nullptr;  // [m, q_stride]
  int64_t q_stride = 0;
  float* out = nullptr;  // [m, out_stride]
  int64_t out_stride = 0;
  int64_t heads = 0;
  KvLayout kv;
  float scale = 0;
  int64_t window = 0;
  float* state = nullptr;  // AttentionArgs::state
};
void launch_kv_append(cudaStream_t stream, const KvAppendView& args, const KvRows& rows);

// Decode rows, a launch of at most kMostDecodeTiles pages: what a kernel's arguments hold.
constexpr int kMostDecodeTiles = 192;
struct DecodeTile {
  const std::byte* page = nullptr;
  int32_t row = 0;    // in q and out
  int16_t begin = 0;  // keys [begin, end) of the page are seen
  int16_t end = 0;
};
struct DecodeTiles {
  DecodeTile tile[kMostDecodeTiles];
  const DecodeTile* elsewhere = nullptr;  // in memory that the device reads; null: in `tile`
  bool whole_rows = true;                 // every row sees one page, so nothing is folded
};
// Consecutive pages of one row.
struct DecodeRow {
  int32_t row = 0;        // in out
  int32_t state_row = 0;  // in AttentionView::state
  int16_t first_tile = 0;
  int16_t tiles = 0;
  bool starts = false;  // with the row's first page
  bool ends = false;    // with its last
};
struct DecodeRows {
  DecodeRow row[kMostDecodeTiles];
  const DecodeRow* elsewhere = nullptr;  // as DecodeTiles has it
};
struct DecodeBatch {
  DecodeTiles tiles;
  DecodeRows rows;
  int tile_count = 0;
  int row_count = 0;
};
// Floats of `scratch` for a batch of so many pages, which does not outlast the launch.
inline int64_t decode_scratch_floats(int64_t heads, int64_t head_dim, int64_t tiles) {
  return tiles * heads * AttentionArgs::state_floats(head_dim);
}
void launch_attention_decode(cudaStream_t stream, const AttentionView& args, const DecodeBatch& batch,
                             float* scratch);

// Prefill rows, a tile as long as the kernel takes. Exact in f32; or on tensor cores, from sm_80 on,
// with q and the weights of the values rounded to the type of the cache.
constexpr int64_t kMmaQueryRows = 64;
constexpr int64_t plain_query_rows(int64_t head_dim) { return head_dim <= 128 ? 32 : 16; }
bool has_mma_attention(const KvLayout& kv);  // on the current device
void launch_attention_prefill(cudaStream_t stream, const AttentionView& args, const QueryTiles& tiles);
void launch_attention_mma(cudaStream_t stream, const AttentionView& args, const QueryTiles& tiles);

}  // namespace ete::cuda
