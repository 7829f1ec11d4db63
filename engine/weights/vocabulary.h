#pragma once

#include <cstddef>

#include "engine/device/device.h"
#include "engine/device/device_arena.h"
#include "engine/weights/weight_store.h"

namespace ete {

// What stands before the first layer and after the last, where kernels of the device read it.
struct Vocabulary {
  PackedMatrix embedding;             // [vocab, hidden]
  PackedMatrix lm_head;               // [vocab, hidden]; the embedding's bytes when tied
  const float* final_norm = nullptr;  // [hidden]
};

// Read at home where the device shares host memory; else copied into the arena on `stream`, which is waited
// for. Store and arena must outlive what is returned.
Vocabulary place_vocabulary(Device& device, const WeightStore& store, DeviceArena& arena, Stream& stream);

// Bytes that it takes from the arena.
size_t vocabulary_arena_bytes(const StoreLayout& layout, bool shares_host_memory);

}  // namespace ete
