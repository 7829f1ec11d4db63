#include "clients/options/engine_flags.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "clients/options/command_line.h"

namespace ete {
namespace {

constexpr int kMaxDeviceOrdinal = 1023;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Registers one flag whose text `parse` turns into a value; `parse` fails the parse itself.
void add_flag(CLI::App& app, const std::string& flag, const std::string& type, const std::string& description,
              std::function<void(const std::string&)> parse) {
  app.add_option_function<std::string>(flag, std::move(parse), description)
      ->type_name(type)
      ->group(kEngineFlagGroup);
}

void add_choice(CLI::App& app, const std::string& flag, std::vector<std::string> names,
                const std::string& description, std::string& value) {
  std::string type;
  for (const std::string& name : names) type += (type.empty() ? "" : "|") + name;
  add_flag(app, flag, type, description, [flag, names = std::move(names), &value](const std::string& text) {
    if (std::find(names.begin(), names.end(), text) == names.end()) reject_flag(flag, text, joined(names));
    value = text;
  });
}

template <typename Integer>
void add_integer(CLI::App& app, const std::string& flag, int64_t lowest, const std::string& description,
                 Integer& value) {
  add_flag(app, flag, "N", description, [flag, lowest, &value](const std::string& text) {
    constexpr Integer kHighest = std::numeric_limits<Integer>::max();
    const auto number = parse_integer(text, lowest, kHighest);
    if (!number) {
      reject_flag(flag, text,
                  "a whole number from " + std::to_string(lowest) + " to " + std::to_string(kHighest));
    }
    value = static_cast<Integer>(*number);
  });
}

void add_size(CLI::App& app, const std::string& flag, const std::string& description, uint64_t& value) {
  add_flag(app, flag, "SIZE", description, [flag, &value](const std::string& text) {
    const auto size = parse_size(text);
    if (!size || *size == 0) reject_flag(flag, text, "a size above 0 in bytes, or with K, M or G, as 0.5G");
    value = *size;
  });
}

void add_device(CLI::App& app, std::string& device) {
  add_flag(app, "--device", "auto|cpu|cuda[:N]",
           "where the layers run; auto takes a GPU if one works and says which [auto]",
           [&device](const std::string& text) {
             const bool numbered =
                 text.rfind("cuda:", 0) == 0 && parse_integer(text.substr(5), 0, kMaxDeviceOrdinal);
             if (text != "auto" && text != "cpu" && text != "cuda" && !numbered) {
               reject_flag("--device", text, "auto, cpu, cuda or cuda:N");
             }
             device = text;
           });
}

void add_placement_flags(CLI::App& app, EngineOptions& options) {
  add_flag(app, "--resident-layers", "N|auto",
           "layers kept on the device for good; -1 all, 0 none [auto: what the budget holds]",
           [&options](const std::string& text) {
             if (text != "auto" && !parse_integer(text, -1, std::numeric_limits<int32_t>::max())) {
               reject_flag("--resident-layers", text, "auto, or a whole number of at least -1");
             }
             options.resident_layers = text;
           });
  add_flag(app, "--slots", "N|auto", "streaming slots, at least 2 [auto: 4, 3 or 2, what the budget holds]",
           [&options](const std::string& text) {
             const auto slots = parse_integer(text, 2, std::numeric_limits<int>::max());
             if (text != "auto" && !slots)
               reject_flag("--slots", text, "auto, or a whole number of at least 2");
             options.slots = slots ? static_cast<int>(*slots) : -1;
           });
  add_choice(app, "--home", {"pinned", "mmap"},
             "where weights live: pinned RAM, or read from the file in place [pinned]", options.home);
  add_size(app, "--vram-budget", "never use more device memory than this [what is free, less 10 %]",
           options.vram_budget);
  add_choice(app, "--kv", {"auto", "device", "host"},
             "where the KV cache lives [auto: device if sessions x context fit the budget, else host]",
             options.kv);
  add_choice(app, "--vocab", {"auto", "device", "host"}, "where embedding and lm_head live [auto]",
             options.vocab);
  add_size(app, "--link-limit", "pace copies to this many bytes a second [none]", options.link_limit);
}

void add_numeric_flags(CLI::App& app, EngineOptions& options) {
  add_choice(
      app, "--math", {"exact", "fast"},
      "exact: fp32 activations, weights as stored; fast: may round activations, by a tolerance that inspect "
      "prints [exact on cpu, fast on cuda]",
      options.math);
  add_choice(app, "--kernels", {"auto", "plain", "avx2", "avx512", "vnni", "amx", "dp4a", "mma", "wgmma"},
             "force one kernel family: plain, dp4a, mma, wgmma on cuda; plain, avx2, avx512, vnni, amx on "
             "cpu [auto]",
             options.kernels);
  add_choice(app, "--kv-type", {"f32", "f16", "bf16"}, "element type of the KV cache [f16]", options.kv_type);
  add_choice(app, "--weights", {"auto", "bf16", "f16", "f32", "w8", "w4"},
             "packed format in memory; auto is lossless [auto]", options.weights);
}

void add_size_flags(CLI::App& app, EngineOptions& options) {
  add_integer(app, "--max-sessions", 1, "sessions in one pass [16]", options.max_sessions);
  add_integer(app, "--max-queued", 0, "sessions that may wait for a place [4 for each of --max-sessions]",
              options.max_queued);
  add_integer(app, "--max-queued-tokens", 1,
              "prompt tokens that may wait to be computed, of all sessions [4096, or --context, for each]",
              options.max_queued_tokens);
  add_integer(app, "--context", 1, "positions a session [the model's]", options.context);
  add_integer(app, "--chunk", 1, "prompt rows a pass [planned]", options.chunk);
  add_flag(
      app, "--host-share", "F|auto",
      "share of each matrix's rows that host threads compute in place: of streamed layers on cpu, of all "
      "layers, for decode rows, on cuda; 0 to 1, or auto: measured [0]",
      [&options](const std::string& text) {
        const auto share = parse_number(text, 0, 1);
        if (text != "auto" && !share) reject_flag("--host-share", text, "auto, or a number from 0 to 1");
        options.host_share = share.value_or(-1);
      });
  add_flag(
      app, "--prefix-cache", "SIZE|auto",
      "most memory for what earlier requests computed, so that prompts that begin as they did compute only "
      "the rest; 0: none [auto: a quarter of the RAM that is left, at most 4G, or what sessions leave of "
      "their memory on the device]",
      [&options](const std::string& text) {
        const auto size = parse_size(text);
        if (text != "auto" && (!size || *size > std::numeric_limits<int64_t>::max())) {
          reject_flag("--prefix-cache", text, "auto, 0, or a size in bytes, or with K, M or G, as 0.5G");
        }
        options.prefix_cache = size ? static_cast<int64_t>(*size) : -1;
      });
  add_integer(app, "--threads", 1, "host threads [the machine's cores]", options.threads);
}

}  // namespace

void add_model_flag(CLI::App& app, std::string& model) {
  app.add_option("--model", model,
                 "a GGUF file, a directory in Hugging Face layout, or random:SHAPE[:w8|w4|bf16]")
      ->type_name("PATH")
      ->required();
}

void add_engine_flags(CLI::App& app, EngineOptions& options) {
  add_device(app, options.device);
  add_placement_flags(app, options);
  add_numeric_flags(app, options);
  add_size_flags(app, options);
  app.add_option(
         "--accept-unknown", options.accept_unknown,
         "a key of the model's configuration to accept although this build does not know it; may be repeated")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->group(kEngineFlagGroup);
}

}  // namespace ete
