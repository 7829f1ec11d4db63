// Writes past a part of the device arena and the red zone behind it, on purpose: memcheck must say so, which
// it can only when every part is an allocation of its own.

#include <cstdio>
#include <exception>

#include "engine/device/device_arena.h"
#include "engine/ops/ops.h"

namespace ete {
namespace {

void overrun() {
  constexpr int64_t kRows = 4;
  constexpr int64_t kCols = 64;
  const auto device = make_device({.device = "cuda:0"});
  const auto ops = make_ops(*device, {});
  const auto stream = device->create_stream("test");
  constexpr size_t kBytes = kRows * kCols * sizeof(float);
  DeviceArena arena(*device, 2 * DeviceArena::padded(kBytes), ArenaMode::separate);
  auto* x = reinterpret_cast<float*>(arena.take(kBytes));
  auto* y = reinterpret_cast<float*>(arena.take(kBytes));
  // A row in the red zone, one behind it.
  ops->gather_rows(*stream, x, kCols, {0, 1, 2, 3, 0, 0}, kCols, y, kCols);
  stream->synchronize();
}

}  // namespace
}  // namespace ete

int main() {
  try {
    ete::overrun();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planted_overrun: %s\n", error.what());
    return 1;
  }
  return 0;
}
