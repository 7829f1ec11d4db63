#include "engine/models/host_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/check.h"

namespace ete {

// Products of one trip are some of a layer's, so all of its rows at home are room enough.
HostRowsSizes HostRowsSizes::of(const StoreLayout& layout, int64_t decode_rows) {
  HostRowsSizes sizes{.rows = decode_rows};
  for (const BlobLayout& layer : layout.layers) {
    int64_t of_layer = 0;
    for (const WeightPlace& place : layer.places) {
      const int64_t rows = place.rows - place.device_rows;
      if (rows == 0) continue;
      of_layer += rows;
      sizes.cols = std::max(sizes.cols, place.cols);
    }
    sizes.host_rows = std::max(sizes.host_rows, of_layer);
  }
  return sizes;
}

HostRows::HostRows(Device& device, Ops& ops, Stream& host, const HostRowsSizes& sizes)
    : ops_(ops),
      host_(host),
      sizes_(sizes),
      x_(device.allocate(static_cast<size_t>(sizes.rows * sizes.cols) * sizeof(float), MemorySpace::host)),
      y_(device.allocate(static_cast<size_t>(sizes.rows * sizes.host_rows) * sizeof(float),
                         MemorySpace::host)),
      x_home_(device.create_event()),
      y_home_(device.create_event()) {}

// The trip before this one is over when `compute` comes here, so its memory may be written again.
void HostRows::start(Stream& compute, const float* x, int64_t x_stride, int64_t m,
                     std::vector<MatmulOutput> outputs) {
  const int64_t cols = outputs.front().w.cols;
  int64_t rows = 0;
  for (const MatmulOutput& output : outputs) rows += output.w.rows;
  CHECK(m <= sizes_.rows && cols <= sizes_.cols && rows <= sizes_.host_rows,
        std::to_string(m) + " rows of " + std::to_string(cols) + " columns, " + std::to_string(rows) +
            " rows at home");
  m_ = m;
  blocks_.clear();
  ops_.copy_rows(compute, m,
                 {{.x = x, .x_stride = x_stride, .y = x_.as<float>(), .y_stride = cols, .n = cols}});
  x_home_->record(compute);
  float* y = y_.as<float>();  // [m, rows]: the outputs' columns side by side
  for (MatmulOutput& output : outputs) {
    blocks_.push_back({.x = y,
                       .x_stride = rows,
                       .y = output.y,
                       .y_stride = output.y_stride,
                       .n = output.w.rows,
                       .bias = output.bias,
                       .add_to_y = output.add_to_y});
    output = {.w = output.w, .row_end = output.w.rows, .y = y, .y_stride = rows};
    y += output.w.rows;
  }
  x_home_->wait(host_);
  ops_.host_products().matmul(host_, RowKind::decode, x_.as<const float>(), cols, m, std::move(outputs));
  y_home_->record(host_);
}

void HostRows::join(Stream& compute) {
  y_home_->wait(compute);
  ops_.copy_rows(compute, m_, std::move(blocks_));
}

}  // namespace ete
