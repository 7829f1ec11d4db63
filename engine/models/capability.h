#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/models/model_config.h"

// The gate of invariant I7: every key of a model's configuration is wired, known to be harmless, or the model
// is refused naming key and value. The tables of keys are in capability.cc.

namespace ete {

struct KeyRule;  // of capability.cc

class CapabilityGate {
 public:
  // `accept_unknown`: keys (or names of unused tensors) that the user accepts all the same.
  explicit CapabilityGate(std::vector<std::string> accept_unknown = {});

  // A key of config.json, "sliding_window" or "rope_scaling.factor"; `rope_type` is the value that rules the
  // keys of the rope object. "text_config.X" is judged as "X" is in a text model's file; a key beside
  // text_config is one of judge_hf_outer. Error(unsupported) naming key and value.
  void judge_hf(Family family, const std::string& key, const std::string& value,
                std::string_view rope_type = "");
  void judge_hf_outer(Family family, const std::string& key, const std::string& value);
  // A key below quantization_config, whose place in the table is `rule`: "config_groups.*.targets".
  void judge_quantization(const std::string& rule, const std::string& key, const std::string& value);
  // A key of GGUF metadata; `arch` is general.architecture.
  void judge_gguf(Family family, std::string_view arch, const std::string& key, const std::string& value);
  // A tensor of a part that a text model does not compute.
  void note_skipped_tensor(const std::string& name) { record(name, "tensor", "harmless"); }
  // A tensor that the model does not use: rotary tables are harmless, others are refused.
  void judge_unused_tensor(const std::string& name, const std::string& file);

  // Everything that was judged. Error(invalid_argument) when an accept_unknown name met no key of this model.
  std::vector<CapabilityEntry> finish();

 private:
  // `owner` is what does not know the key when there is no rule.
  void apply(const KeyRule* rule, const std::string& key, const std::string& value, const std::string& owner);
  void record(const std::string& key, const std::string& value, const char* verdict);
  void accept_or_refuse(const std::string& key, const std::string& value, const std::string& why);

  std::vector<std::string> accept_unknown_;
  std::vector<std::string> accepted_;
  std::vector<CapabilityEntry> entries_;
};

}  // namespace ete
