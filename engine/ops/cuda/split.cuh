#pragma once

#include "engine/ops/cuda/kernels.h"

// What the decode kernels share: a block computes one panel, and the columns of a panel are split in a fixed
// way among its threads, however many they are. So launch shapes never change bits.

namespace ete::cuda {

constexpr int kSplits = 16;

// Few panels need many threads each to keep the memory busy; many panels need small blocks, all resident at
// once.
constexpr unsigned kMostDecodeThreads = kSplits * 32;
inline unsigned threads_of_decode(int64_t panels) {
  if (panels >= 512) return 128;
  return panels >= 192 ? 256 : kMostDecodeThreads;
}

}  // namespace ete::cuda
