#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "clients/cli/command.h"
#include "clients/cli/default_model.h"
#include "clients/cli/memory_bars.h"
#include "clients/cli/output.h"
#include "clients/options/engine_flags.h"
#include "engine/runtime/engine.h"

namespace ete::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kColumns = 80;  // where stdout is no terminal
constexpr int kMostColumns = 120;

struct InspectOptions {
  EngineOptions engine;
  bool json = false;
};

struct TypeTotal {
  int64_t count = 0;
  uint64_t bytes = 0;
};

// Type -> its tensors in all.
std::map<std::string, TypeTotal> totals_by_type(const TensorSource& tensors) {
  std::map<std::string, TypeTotal> totals;
  for (const SourceTensor* tensor : tensors.all()) {
    TypeTotal& total = totals[std::string(name_of(tensor->type))];
    ++total.count;
    total.bytes += tensor->data_bytes;
  }
  return totals;
}

// What a hybrid has beside: its layers of linear attention.
void add_linear_attention(const ModelConfig& config, Json* json) {
  (*json)["linear_attention_layers"] = config.linear_layers();
  (*json)["full_attention_layers"] = config.kv_layers();
  (*json)["linear_num_key_heads"] = config.delta_net.key_heads;
  (*json)["linear_num_value_heads"] = config.delta_net.value_heads;
  (*json)["linear_key_head_dim"] = config.delta_net.key_dim;
  (*json)["linear_value_head_dim"] = config.delta_net.value_dim;
  (*json)["linear_conv_kernel_dim"] = config.delta_net.conv_kernel;
  (*json)["rotary_dim"] = config.rope.rotary_dim;
}

Json config_json(const ModelConfig& config) {
  Json json = {{"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_hidden_layers", config.num_hidden_layers},
               {"num_attention_heads", config.num_attention_heads},
               {"num_key_value_heads", config.num_key_value_heads},
               {"head_dim", config.head_dim},
               {"vocab_size", config.vocab_size},
               {"max_position_embeddings", config.max_position_embeddings},
               {"rms_norm_eps", config.rms_norm_eps},
               {"tie_word_embeddings", config.tie_word_embeddings},
               {"rope_type", config.rope.type},
               {"rope_theta", config.rope.theta},
               {"eos_token_ids", config.eos_token_ids}};
  if (config.linear_layers() > 0) add_linear_attention(config, &json);
  return json;
}

Json document(const ModelFiles& model, const Plan& plan) {
  Json tensors = Json::array();
  for (const auto& [type, total] : totals_by_type(*model.tensors)) {
    tensors.push_back({{"type", type}, {"count", total.count}, {"bytes", total.bytes}});
  }
  Json capabilities = Json::array();
  for (const CapabilityEntry& entry : model.capabilities) {
    capabilities.push_back({{"key", entry.key}, {"value", entry.value}, {"verdict", entry.verdict}});
  }
  return {{"model", model.path},
          {"name", model.config.name},
          {"architecture", model.config.architecture},
          {"family", name_of(model.config.family)},
          {"config", config_json(model.config)},
          {"tensors", tensors},
          {"capabilities", capabilities},
          {"plan", Json::parse(plan.to_json())}};
}

int columns_of_stdout() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::min<int>(size.ws_col - 1, kMostColumns) : kColumns;
}

std::string report(const ModelFiles& model, const Plan& plan) {
  std::string text = "model         " + model.path + "\nname          " + model.config.name +
                     "\narchitecture  " + model.config.architecture + " (family " +
                     std::string(name_of(model.config.family)) + ")\n\nconfiguration\n";
  const Json config = config_json(model.config);
  for (const auto& [key, value] : config.items()) {
    text += "  " + key + " = " + (value.is_string() ? value.get<std::string>() : value.dump()) + "\n";
  }
  text += "\ntensors\n";
  for (const auto& [type, total] : totals_by_type(*model.tensors)) {
    text += "  " + type + ": " + std::to_string(total.count) + " tensors, " + std::to_string(total.bytes) +
            " bytes\n";
  }
  text += "\nwhat became of each field\n";
  for (const CapabilityEntry& entry : model.capabilities) {
    text += "  " + entry.verdict + ": " + entry.key + " = " + entry.value + "\n";
  }
  const std::string bars = memory_bars(plan, columns_of_stdout());
  return text + "\nplan\n" + plan.to_text() + (bars.empty() ? "" : "\nmemory\n" + bars);
}

int inspect(const CLI::App& command, InspectOptions options) {
  options.engine.model = model_or_default(command, options.engine.model);
  ModelFiles model;
  const Plan plan = Engine::plan_only(options.engine, &model);
  if (options.json) {
    print(to_text(document(model, plan)) + "\n");
  } else {
    const std::string text = report(model, plan);
    print(text.ends_with('\n') ? text : text + "\n");
  }
  return 0;
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect", "What a model file holds, what became of each of its fields, and the memory plan");
  auto options = std::make_shared<InspectOptions>();
  add_optional_model_flag(*command, options->engine.model);
  command->add_flag("--json", options->json, "one JSON document on stdout");
  add_engine_flags(*command, options->engine);
  command->callback(
      [&action, options, command] { action = [options, command] { return inspect(*command, *options); }; });
}

}  // namespace ete::cli
