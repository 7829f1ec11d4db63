#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/device/device.h"
#include "engine/ops/ops.h"
#include "engine/weights/weight_layout.h"

namespace ete {

// What round trips of decode rows are made for.
struct HostRowsSizes {
  int64_t rows = 0;       // decode rows of a pass, at most
  int64_t cols = 0;       // of the widest matrix that has rows at home
  int64_t host_rows = 0;  // rows at home of the products of one trip, together, at most

  // Of passes over these layers.
  static HostRowsSizes of(const StoreLayout& layout, int64_t decode_rows);
  size_t host_bytes() const { return static_cast<size_t>(rows * (cols + host_rows)) * sizeof(float); }
};

// Beside a device with memory of its own: products of decode rows with the rows of matrices that stay at
// home. Host threads compute them by Ops::host_products() while the device computes the other rows and its
// link brings the next layers. Products that share their input share one trip: x goes to pinned host memory,
// the sums come back into y. Events order both ways; nobody waits but the streams.
//
// Numeric path (I3): which rows of a matrix are computed here is fixed by the host share, for resident and
// streamed layers alike, and by the row's kind alone: every decode row, never a prefill row, whatever shares
// the pass. Prefill rows are many, so the device computes them whole, with the bits of share 0. y is x times
// the row as RowKind::decode of host_products() has it, then + bias, then + y, each rounded to f32.
// Engine thread.
class HostRows {
 public:
  // `host` is a stream of its own: nothing else orders it. All outlive this, and it outlives their work.
  HostRows(Device& device, Ops& ops, Stream& host, const HostRowsSizes& sizes);

  // Begins a trip when `compute` comes to it: x [m, x_stride] and, of the outputs, bias and y in device
  // memory, the matrices at home. What `compute` is given until join() runs beside it; it may not touch y's
  // columns of these outputs.
  void start(Stream& compute, const float* x, int64_t x_stride, int64_t m, std::vector<MatmulOutput> outputs);
  // Ends it: y is complete for what comes next on `compute`.
  void join(Stream& compute);

 private:
  Ops& ops_;
  Stream& host_;
  HostRowsSizes sizes_;
  Buffer x_;  // pinned, [rows, cols]
  Buffer y_;  // pinned, [rows, host_rows]
  std::unique_ptr<Event> x_home_;
  std::unique_ptr<Event> y_home_;
  int64_t m_ = 0;                 // of the trip under way
  std::vector<RowsCopy> blocks_;  // its results' way to the device
};

}  // namespace ete
