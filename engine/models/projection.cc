#include "engine/models/projection.h"

#include <utility>
#include <vector>

namespace ete {

namespace {

void add_part(std::vector<MatmulOutput>* outputs, const Projection& product, const PackedMatrix& part,
              int64_t first_row, int64_t batch_row) {
  if (part.rows == 0) return;
  outputs->push_back({.w = part,
                      .row_begin = 0,
                      .row_end = part.rows,
                      .bias = product.bias == nullptr ? nullptr : product.bias + first_row,
                      .y = product.y + batch_row * product.y_stride + first_row,
                      .y_stride = product.y_stride,
                      .add_to_y = product.add_to_y});
}

}  // namespace

void project(Ops& ops, Stream& stream, const PassRows& pass, ProjectionInput input,
             std::initializer_list<Projection> products) {
  const auto launch = [&](RowKind kind, int64_t begin, int64_t end) {
    if (begin == end) return;
    std::vector<MatmulOutput> outputs;
    outputs.reserve(2 * products.size());
    for (const Projection& product : products) {
      add_part(&outputs, product, product.w.device, 0, begin);
      add_part(&outputs, product, product.w.host, product.w.device.rows, begin);
    }
    ops.matmul(stream, kind, input.x + begin * input.stride, input.stride, end - begin, std::move(outputs));
  };
  launch(RowKind::decode, 0, pass.decode_rows);
  launch(RowKind::prefill, pass.decode_rows, pass.rows);
}

}  // namespace ete
