#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/models/capability.h"
#include "engine/weights/compressed_tensors.h"

namespace ete {

// quantization_config of config.json: which modules are quantised, and how (vllm-project/compressed-tensors,
// QuantizationConfig). Const after reading.
class QuantizationConfig {
 public:
  // Every key passes the gate. Error(unsupported) naming quant_method and what the model needs for other
  // methods than compressed-tensors, and naming the field for what is not computed (asymmetric schemes,
  // quantised activations); Error(corrupt) for fields of a wrong kind.
  QuantizationConfig(const nlohmann::json& config, const std::string& file, CapabilityGate& gate);

  // The scheme of a module: none where `ignore` names it or no group's `targets` do. A target is a module's
  // name, its class or, after "re:", a pattern of names, matched from their start.
  std::optional<IntegerScheme> scheme_of(const std::string& module) const;

 private:
  struct Group {
    std::vector<std::string> targets;
    IntegerScheme scheme;
  };
  std::vector<Group> groups_;
  std::vector<std::string> ignore_;
};

// Of a model's config.json; null where it names no quantisation.
std::shared_ptr<const QuantizationConfig> read_quantization(const nlohmann::json& config,
                                                            const std::string& file, CapabilityGate& gate);

}  // namespace ete
