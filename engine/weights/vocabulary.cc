#include "engine/weights/vocabulary.h"

namespace ete {

Vocabulary place_vocabulary(Device& device, const WeightStore& store, VocabularyPlace place,
                            DeviceArena& arena, Stream& stream) {
  Vocabulary vocabulary{store.embedding(), store.lm_head(), store.final_norm()};
  if (place == VocabularyPlace::shared) return vocabulary;
  const auto copy = [&](const void* home, size_t bytes) {
    std::byte* placed = arena.take(bytes);
    device.copy_async(stream, placed, home, bytes);
    return placed;
  };
  const auto copy_matrix = [&](const PackedMatrix& matrix) {
    return copy(matrix.data, packed_bytes(matrix.format, matrix.rows, matrix.cols));
  };
  if (place == VocabularyPlace::device) {
    const bool tied = vocabulary.lm_head.data == vocabulary.embedding.data;
    vocabulary.embedding.data = copy_matrix(vocabulary.embedding);
    vocabulary.lm_head.data = tied ? vocabulary.embedding.data : copy_matrix(vocabulary.lm_head);
  }
  const auto norm_bytes = static_cast<size_t>(vocabulary.embedding.cols) * sizeof(float);
  vocabulary.final_norm = reinterpret_cast<const float*>(copy(vocabulary.final_norm, norm_bytes));
  stream.synchronize();
  return vocabulary;
}

size_t vocabulary_arena_bytes(const StoreLayout& layout, VocabularyPlace place) {
  if (place == VocabularyPlace::shared) return 0;
  const size_t norm = DeviceArena::padded(layout.final_norm.bytes);
  if (place == VocabularyPlace::host) return norm;
  return norm + DeviceArena::padded(layout.embedding.bytes) + DeviceArena::padded(layout.lm_head.bytes);
}

}  // namespace ete
