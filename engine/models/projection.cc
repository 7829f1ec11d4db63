#include "engine/models/projection.h"

#include <utility>
#include <vector>

#include "engine/base/check.h"

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
    const bool by_host = kind == RowKind::decode && pass.host_rows != nullptr;
    std::vector<MatmulOutput> outputs;
    std::vector<MatmulOutput> at_home;
    outputs.reserve(2 * products.size());
    for (const Projection& product : products) {
      const auto& [device, host, rest] = product.w;
      CHECK(by_host || rest.rows == host.rows, "the host's rows are not where the device reads them");
      add_part(&outputs, product, device, 0, begin);
      add_part(by_host ? &at_home : &outputs, product, by_host ? host : rest, device.rows, begin);
    }
    const float* x = input.x + begin * input.stride;
    const bool goes_home = !at_home.empty();
    if (goes_home) pass.host_rows->start(stream, x, input.stride, end - begin, std::move(at_home));
    if (!outputs.empty()) ops.matmul(stream, kind, x, input.stride, end - begin, std::move(outputs));
    if (goes_home) pass.host_rows->join(stream);
  };
  launch(RowKind::decode, 0, pass.decode_rows);
  launch(RowKind::prefill, pass.decode_rows, pass.rows);
}

}  // namespace ete
