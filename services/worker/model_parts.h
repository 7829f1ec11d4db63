#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/model_config.h"
#include "ete/v1/engine.pb.h"

namespace ete::worker {

// The messages that GetModel streams: `info`, then each of `data`; every one serialises to at most 1 MiB,
// however large the tokenizer. Copies share the data.
struct ModelParts {
  v1::GetModelReply info;
  std::shared_ptr<const std::vector<v1::GetModelReply>> data;
};

// Fills in everything that follows from the model's files: tokenizer data and its digest, name, architecture,
// vocabulary, eos ids. Context, plan and worker are the server's to add. Throws Error(corrupt) when one token
// or merge of a GGUF vocabulary is larger than a part.
ModelParts make_model_parts(const ModelFiles& files);

}  // namespace ete::worker
