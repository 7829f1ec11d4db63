#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/ops/packed_matrix.h"
#include "tests/ops/random_floats.h"

namespace ete {

inline const WeightFormat kAllFormats[] = {WeightFormat::f32,     WeightFormat::bf16,    WeightFormat::f16,
                                           WeightFormat::w8_row,  WeightFormat::w8_g32,  WeightFormat::w4_g32,
                                           WeightFormat::w4_g32m, WeightFormat::w4_g128, WeightFormat::q5_1,
                                           WeightFormat::q4_k,    WeightFormat::q5_k,    WeightFormat::q6_k};

inline bool is_ggml_block(WeightFormat format) {
  return format == WeightFormat::q5_1 || format == WeightFormat::q4_k || format == WeightFormat::q5_k ||
         format == WeightFormat::q6_k;
}

// Random bits, with the f16 fields (scale, and min where there is one) of an ordinary size.
inline void randomise_ggml_block(WeightFormat format, std::mt19937& generator, std::byte* block,
                                 size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) block[i] = static_cast<std::byte>(generator());
  std::uniform_real_distribution<float> scale(-0.02f, 0.02f);
  const auto put = [&](size_t offset) {
    const uint16_t half = f32_to_f16(scale(generator));
    std::memcpy(block + offset, &half, sizeof(half));
  };
  put(format == WeightFormat::q6_k ? 208 : 0);
  if (format != WeightFormat::q6_k) put(2);
}

// A packed matrix that owns exactly its bytes, so that a sanitizer sees any read beyond them.
struct RandomMatrix {
  RandomMatrix(WeightFormat format, int64_t rows, int64_t cols, uint32_t seed)
      : bytes(packed_bytes(format, rows, cols)), data(new std::byte[bytes]()) {
    view = {format, rows, cols, data.get()};
    const size_t panel = panel_bytes(format, cols);
    if (is_ggml_block(format)) {
      std::mt19937 generator(seed);
      const size_t block = panel_bytes(format, 1) / kPanelRows;
      for (size_t at = 0; at < bytes; at += block) {
        randomise_ggml_block(format, generator, data.get() + at, block);
      }
      return;
    }
    const std::vector<float> values = random_floats(static_cast<size_t>(rows * cols), seed);
    for (int64_t row = 0; row < rows; ++row) {
      pack_row(format, values.data() + row * cols, row, cols,
               data.get() + static_cast<size_t>(row / kPanelRows) * panel);
    }
  }

  size_t bytes;
  std::unique_ptr<std::byte[]> data;
  PackedMatrix view;
};

}  // namespace ete
