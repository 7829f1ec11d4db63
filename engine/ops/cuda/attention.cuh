#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "engine/ops/cuda/kernels.h"

// What the attention kernels share: which pages and keys a row sees, and how the pages' results are folded.

namespace ete::cuda {

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename Call>
void with_kv_type(DType type, const Call& call) {
  if (type == DType::f16) return call(__half{});
  if (type == DType::bf16) return call(__nv_bfloat16{});
  call(0.0f);
}

// What a row has to do in this launch.
struct Span {
  int64_t first;  // tiles [first, last]
  int64_t last;
  bool starts;  // with the row's first tile
  bool ends;    // with its last
  __device__ bool empty() const { return first > last; }
};

__device__ inline int64_t first_seen(int64_t position, int64_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

__device__ inline Span span_of(int64_t position, int64_t first_page, int64_t end_page, int64_t window) {
  const int64_t first = first_seen(position, window) / kKvTile, last = position / kKvTile;
  return {.first = max(first, first_page),
          .last = min(last, end_page - 1),
          .starts = first >= first_page,
          .ends = last < end_page};
}

// The keys of one page that a block of consecutive rows has to pass, in steps of kKeys from a multiple of
// kKeys on: what lies outside is seen by none of the rows.
template <int kKeys>
struct KeyRange {
  int begin;
  int end;
  __device__ KeyRange(const QueryTile& tile, int64_t page, int64_t window) {
    const int64_t base = page * kKvTile;
    const int64_t first = max(first_seen(tile.position, window) - base, int64_t{0});
    begin = static_cast<int>(first / kKeys * kKeys);
    end = static_cast<int>(min(tile.position + tile.count - base, kKvTile));
  }
};

// Whether some row of the block does not see some of the keys [key, key + kKeys).
template <int kKeys>
__device__ inline bool needs_mask(const QueryTile& tile, int64_t key, int64_t window) {
  return key + kKeys > tile.position + 1 || key < first_seen(tile.position + tile.count - 1, window);
}

// The addresses of a block's pages, in memory of the host: each is asked for a page ahead of its use.
class PageWalk {
 public:
  // pages: of page 0 of the session on.
  __device__ PageWalk(std::byte* const* pages, const Span& span)
      : pages_(pages), last_(span.last), next_(pages[span.first]) {}
  __device__ const std::byte* at(int64_t page) {
    const std::byte* current = next_;
    if (page < last_) next_ = pages_[page + 1];
    return current;
  }

 private:
  std::byte* const* pages_;
  int64_t last_;
  const std::byte* next_;
};

// The pages that a block passes.
__device__ inline Span span_of(const QueryTile& tile, int64_t window) {
  Span span = span_of(tile.position, tile.first_page, tile.end_page, window);
  span.last = min((tile.position + tile.count - 1) / kKvTile, tile.end_page - 1);
  return span;
}

}  // namespace ete::cuda
