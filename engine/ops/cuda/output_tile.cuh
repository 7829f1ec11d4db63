#pragma once

#include "engine/ops/cuda/kernels.h"

// Where the outputs of a launch of several products lie.

namespace ete::cuda {

// Of a panel, counted through all products.
__device__ inline int product_of(const Products& products, int64_t panel) {
  int index = 0;
  while (panel >= products.product[index].panel_end) ++index;
  return index;
}

// Tiles of kOutputs outputs, whole panels, never of two products.
struct OutputTile {
  const Product* product;
  int64_t first_panel;  // within the product
};

template <int kOutputs>
__device__ inline OutputTile tile_of(const Products& products, int64_t tile) {
  for (int i = 0;; ++i) {
    const Product& product = products.product[i];
    const int64_t tiles = (product.rows + kOutputs - 1) / kOutputs;
    if (tile < tiles) return {&product, tile * (kOutputs / 16)};
    tile -= tiles;
  }
}

// The kPanels panels of one product that a block computes.
struct PanelsOfBlock {
  const Product& product;
  int64_t first;          // within the product
  const std::byte* data;  // of the first; the next is panel_bytes further
  bool whole;             // else the product ends before the last of them, and the first stands in
};

template <int kPanels>
__device__ inline PanelsOfBlock panels_of(const Products& products, int64_t tile, int panel_bytes) {
  const OutputTile at = tile_of<kPanels * 16>(products, tile);
  return {*at.product, at.first_panel, at.product->panels + at.first_panel * panel_bytes,
          at.first_panel + kPanels <= (at.product->rows + 15) / 16};
}

template <int kOutputs>
int64_t tiles_of(const Products& products) {
  int64_t tiles = 0;
  for (int i = 0; i < products.count; ++i) {
    tiles += (products.product[i].rows + kOutputs - 1) / kOutputs;
  }
  return tiles;
}

// Adds bias and residual and stores one output.
__device__ inline void store_output(const Product& product, int64_t row, int64_t output, float total) {
  if (product.bias != nullptr) total += product.bias[output];
  float* y = product.y + row * product.y_stride + output;
  *y = product.add_to_y ? *y + total : total;
}

}  // namespace ete::cuda
