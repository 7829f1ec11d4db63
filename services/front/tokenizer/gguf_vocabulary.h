#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ete::front {

// The tokenizer.* keys of a GGUF file as the worker sends them; the front parses no model file.
struct GgufVocabulary {
  std::string model;                // tokenizer.ggml.model: "gpt2", "llama", "t5"; "bytes" for random: models
  std::string pre;                  // tokenizer.ggml.pre
  std::vector<std::string> tokens;  // raw bytes as stored
  std::vector<float> scores;        // [tokens] or empty
  std::vector<int32_t>
      token_types;  // [tokens] or empty: 1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte
  std::vector<std::string> merges;  // "left right"
  std::map<std::string, int64_t>
      special_ids;                    // "bos", "eos", "eot", "eom", "unk" or "unknown", ... (*_token_id)
  std::map<std::string, bool> flags;  // "add_bos_token", "add_eos_token", "add_space_prefix",
                                      // "remove_extra_whitespaces"; absent keys are absent
  std::string precompiled_charsmap;   // raw bytes
  std::string chat_template;
};

}  // namespace ete::front
