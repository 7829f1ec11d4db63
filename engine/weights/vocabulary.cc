#include "engine/weights/vocabulary.h"

namespace ete {

Vocabulary place_vocabulary(Device& device, const WeightStore& store, DeviceArena& arena, Stream& stream) {
  Vocabulary vocabulary{store.embedding(), store.lm_head(), store.final_norm()};
  if (device.info().shares_host_memory) return vocabulary;
  const auto copy = [&](const void* home, size_t bytes) {
    std::byte* placed = arena.take(bytes);
    device.copy_async(stream, placed, home, bytes);
    return placed;
  };
  const auto copy_matrix = [&](const PackedMatrix& matrix) {
    return copy(matrix.data, packed_bytes(matrix.format, matrix.rows, matrix.cols));
  };
  const bool tied = vocabulary.lm_head.data == vocabulary.embedding.data;
  vocabulary.embedding.data = copy_matrix(vocabulary.embedding);
  vocabulary.lm_head.data = tied ? vocabulary.embedding.data : copy_matrix(vocabulary.lm_head);
  const auto norm_bytes = static_cast<size_t>(vocabulary.embedding.cols) * sizeof(float);
  vocabulary.final_norm = reinterpret_cast<const float*>(copy(vocabulary.final_norm, norm_bytes));
  stream.synchronize();
  return vocabulary;
}

size_t vocabulary_arena_bytes(const StoreLayout& layout, bool shares_host_memory) {
  if (shares_host_memory) return 0;
  return DeviceArena::padded(layout.embedding.bytes) + DeviceArena::padded(layout.lm_head.bytes) +
         DeviceArena::padded(layout.final_norm.bytes);
}

}  // namespace ete
