#pragma once

#include <string>

#include "engine/models/capability.h"
#include "engine/models/model_config.h"
#include "engine/weights/gguf_metadata.h"

namespace ete {

// The configuration of a GGUF model of architecture llama, qwen2, qwen3 or qwen35, as llama.cpp reads it.
// What the metadata leaves out comes from the tensors: the vocabulary's size, tied embeddings, biases, rope
// factors. Every key passes the gate. Errors name `file` and the key.
ModelConfig read_gguf_config(const GgufMetadata& metadata, const TensorSource& tensors,
                             const std::string& file, CapabilityGate& gate);

// tokenizer.* of the metadata, copied. Empty model when there is none. Error(corrupt) when lists differ in
// length or a special id is no token.
GgufVocabulary read_gguf_vocabulary(const GgufMetadata& metadata);

}  // namespace ete
