#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ete {

// What a session computed, out of the engine's memory: kept while no worker runs, and brought back.
struct SessionImage {
  std::vector<int32_t> ids;  // of every position, and of those after them that were not computed
  int64_t positions = 0;     // 0 to ids.size(): those whose keys, values and states are here
  // Page by page of 512 positions, the last with those that it holds: [kv_layers][K, V][kv_heads][positions
  // of the page][head_dim] of the KV cache's type.
  std::string keys_values = {};
  // After all positions, of all layers of linear attention: RecurrentStore::session_bytes(), f32. Empty
  // without such layers, or without positions.
  std::string state = {};
  // [vocab_size], below infinity, one of them finite: those after the last position, from which the next id
  // is drawn. Empty where they are not known, or without positions.
  std::vector<float> logits = {};
};

// What an image of a model must measure.
struct SessionImageSizes {
  int64_t context = 0;     // ids at most
  int64_t vocab_size = 0;  // ids are below
  uint64_t position_bytes = 0;
  uint64_t state_bytes = 0;
};

// Error(invalid_argument) naming what is wrong.
void check_session_image(const SessionImage& image, const SessionImageSizes& sizes);

}  // namespace ete
