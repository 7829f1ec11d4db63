#include "engine/models/quantization_config.h"

#include <algorithm>
#include <regex>

#include "engine/base/error.h"
#include "engine/models/json_fields.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

using nlohmann::json;

constexpr std::string_view kPattern = "re:";
constexpr size_t kMaxPattern = 256;
constexpr size_t kMaxNames = 4096;  // of one list

[[noreturn]] void unsupported(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::unsupported, file + ": " + what);
}

// "quant_method = gptq, bits = 4": the scalars inside, so that a refusal says what the model needs.
void list_scalars(const json& value, const std::string& name, std::string& text) {
  if (value.is_object()) {
    for (const auto& [key, child] : value.items())
      list_scalars(child, name.empty() ? key : name + "." + key, text);
  } else if (!value.is_array()) {
    text += (text.empty() ? "" : ", ") + name + " = " + value.dump();
  }
}

[[noreturn]] void refuse_method(const json& config, const std::string& key, const std::string& file) {
  std::string scalars;
  list_scalars(config, "", scalars);
  const std::string method = config.is_object() && config.contains("quant_method")
                                 ? "quant_method " + short_text(config["quant_method"])
                                 : "an unnamed quant_method";
  unsupported(file, key + ": quantised weights of " + method + " are not supported; compressed-tensors is (" +
                        printable(scalars, 1000) + ")");
}

// Polynomial in the name's length, and without counts, which multiply a pattern: a checkpoint's pattern must
// not hang the load nor exhaust the stack.
std::regex compile(std::string_view pattern, const std::string& place) {
  try {
    if (pattern.size() > kMaxPattern || pattern.find('{') != std::string_view::npos)
      throw std::regex_error(std::regex_constants::error_complexity);
    return std::regex(pattern.begin(), pattern.end(),
                      std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error&) {
    unsupported(place, "the pattern re:" + printable(pattern) + " cannot be matched");
  }
}

std::vector<std::string> read_names(const JsonFields& fields, const char* field) {
  const json* list = fields.find(field);
  if (list == nullptr) return {};
  if (!list->is_array() || list->size() > kMaxNames) fields.fail(field, "must be a list of names");
  std::vector<std::string> names;
  for (const json& name : *list) {
    if (!name.is_string()) fields.fail(field, "holds " + short_text(name) + "; names are due");
    names.push_back(name.get<std::string>());
    if (names.back().starts_with(kPattern)) {
      compile(std::string_view(names.back()).substr(kPattern.size()), fields.file() + ": " + field);
    }
  }
  return names;
}

// What transformers' class of a module is, as far as targets name it.
std::string_view class_of(std::string_view module) {
  return module.ends_with("embed_tokens") ? "Embedding" : "Linear";
}

bool matches(const std::vector<std::string>& targets, const std::string& module) {
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
    if (!target.starts_with(kPattern)) return target == module || target == class_of(module);
    const std::regex pattern = compile(std::string_view(target).substr(kPattern.size()), "ignore");
    return std::regex_search(module, pattern, std::regex_constants::match_continuous);
  });
}

// The format that rules a group: its own or, where it has none, the whole configuration's.
bool read_is_packed(const JsonFields& group, const JsonFields& whole) {
  const std::string format = group.string("format").value_or(whole.string("format").value_or(""));
  if (format == "pack-quantized") return true;
  if (format == "int-quantized") return false;
  unsupported(whole.file(),
              "format " + printable(format) + " is not supported; int-quantized and pack-quantized are");
}

IntegerScheme read_scheme(const JsonFields& weights, bool is_packed) {
  IntegerScheme scheme{.bits = static_cast<int>(weights.required_integer("num_bits", {4, 8})),
                       .is_packed = is_packed};
  const std::string strategy = weights.string("strategy").value_or("");
  const auto group_size = weights.integer("group_size", {-1, 1 << 20});
  if (strategy == "group") {
    if (!group_size || *group_size < 1) weights.fail("group_size", "must be given for strategy group");
    scheme.group_cols = *group_size;
  } else if (group_size && *group_size > 0) {
    weights.fail("group_size", "contradicts strategy " + printable(strategy));
  }
  return scheme;
}

// Passes the values through the gate; `rule` is the name of the key in its table.
void judge_all(const json& value, const std::string& rule, const std::string& key, CapabilityGate& gate) {
  for (const auto& [name, child] : value.items()) {
    const std::string inner_key = key + "." + name;
    std::string inner_rule = rule;
    inner_rule += rule.empty() ? "" : ".";
    inner_rule += rule == "config_groups" ? "*" : name;
    const bool is_open = inner_rule == "config_groups" || inner_rule == "config_groups.*" ||
                         inner_rule == "config_groups.*.weights";
    if (is_open && child.is_object()) {
      judge_all(child, inner_rule, inner_key, gate);
    } else {
      gate.judge_quantization(inner_rule, inner_key, short_text(child));
    }
  }
}

}  // namespace

QuantizationConfig::QuantizationConfig(const json& config, const std::string& file, CapabilityGate& gate) {
  const JsonFields fields(config, file, "quantization_config.");
  judge_all(config, "", "quantization_config", gate);
  const json* groups = fields.find("config_groups");
  if (groups == nullptr || !groups->is_object()) fields.fail("config_groups", "must be an object");
  for (const auto& [name, value] : groups->items()) {
    const std::string prefix = "quantization_config.config_groups." + printable(name) + ".";
    if (!value.is_object()) fields.fail("config_groups", "holds " + printable(name) + ", which is no object");
    const JsonFields group(value, file, prefix);
    const json* weights = group.find("weights");
    if (weights == nullptr || !weights->is_object()) group.fail("weights", "must be an object");
    groups_.push_back(
        {read_names(group, "targets"),
         read_scheme(JsonFields(*weights, file, prefix + "weights."), read_is_packed(group, fields))});
  }
  ignore_ = read_names(fields, "ignore");
}

std::optional<IntegerScheme> QuantizationConfig::scheme_of(const std::string& module) const {
  if (matches(ignore_, module)) return std::nullopt;
  for (const Group& group : groups_) {
    if (matches(group.targets, module)) return group.scheme;
  }
  return std::nullopt;
}

std::shared_ptr<const QuantizationConfig> read_quantization(const json& config, const std::string& file,
                                                            CapabilityGate& gate) {
  std::shared_ptr<const QuantizationConfig> read;
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) continue;
    const bool is_known =
        found->is_object() && found->value("quant_method", json()) == json("compressed-tensors");
    if (!is_known) refuse_method(*found, key, file);
    if (read) unsupported(file, "quantization_config and compression_config are both there; one is enough");
    read = std::make_shared<const QuantizationConfig>(*found, file, gate);
  }
  return read;
}

}  // namespace ete
