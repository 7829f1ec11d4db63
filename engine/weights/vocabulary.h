#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/device/device.h"
#include "engine/device/device_arena.h"
#include "engine/weights/weight_store.h"

namespace ete {

// Where embedding and lm_head are read, and by whom.
enum class VocabularyPlace : uint8_t {
  shared,  // at home, by a device that shares host memory
  device,  // in the arena, by the device
  host,    // at home, by host threads beside a device with memory of its own
};

// What stands before the first layer and after the last.
struct Vocabulary {
  PackedMatrix embedding;             // [vocab, hidden]
  PackedMatrix lm_head;               // [vocab, hidden]; the embedding's bytes when tied
  const float* final_norm = nullptr;  // [hidden], always the device's to read
};

// What is not read at home is copied into the arena on `stream`, which is waited for. Store and arena must
// outlive what is returned.
Vocabulary place_vocabulary(Device& device, const WeightStore& store, VocabularyPlace place,
                            DeviceArena& arena, Stream& stream);

// Bytes that it takes from the arena.
size_t vocabulary_arena_bytes(const StoreLayout& layout, VocabularyPlace place);

}  // namespace ete
