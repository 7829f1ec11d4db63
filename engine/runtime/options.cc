#include "engine/runtime/options.h"

#include <charconv>
#include <cmath>
#include <string>

#include "engine/base/error.h"

namespace ete {

namespace {

constexpr int kMaxSlots = 1024;
constexpr int kMaxSessions = 1024;
constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxChunk = 16384;
constexpr int64_t kChunkUnit = 64;  // positions at which a chunk ends
constexpr uint64_t kMinLinkLimit = uint64_t{1} << 20;

[[noreturn]] void refuse(const std::string& flag, const std::string& value, const std::string& accepted) {
  throw Error(ErrorCode::invalid_argument, flag + ": '" + value + "'; accepted: " + accepted);
}

void check_device(const std::string& device) {
  if (device == "auto" || device == "cpu" || device == "cuda") return;
  int ordinal = -1;
  const char* end = device.data() + device.size();
  if (device.starts_with("cuda:")) {
    const auto [stop, error] = std::from_chars(device.data() + 5, end, ordinal);
    if (error == std::errc() && stop == end && ordinal >= 0) return;
  }
  refuse("--device", device, "auto, cpu, cuda, cuda:N");
}

std::optional<int64_t> resident_layers_from(const std::string& text) {
  if (text == "auto") return std::nullopt;
  int64_t layers = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
  if (error != std::errc() || stop != text.data() + text.size() || layers < -1) {
    refuse("--resident-layers", text, "auto, -1 (all), or a number of layers");
  }
  return layers;
}

PlacementChoice placement_from(const std::string& flag, const std::string& text) {
  if (text == "auto") return PlacementChoice::automatic;
  if (text == "device") return PlacementChoice::device;
  if (text == "host") return PlacementChoice::host;
  refuse(flag, text, "auto, device, host");
}

DType kv_type_from(const std::string& text) {
  if (text == "f32") return DType::f32;
  if (text == "f16") return DType::f16;
  if (text == "bf16") return DType::bf16;
  refuse("--kv-type", text, "f32, f16, bf16");
}

std::optional<Math> math_from(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "exact") return Math::exact;
  if (text == "fast") return Math::fast;
  refuse("--math", text, "exact, fast");
}

KernelFamily kernels_from(const std::string& text) {
  try {
    return kernel_family_from(text);
  } catch (const Error& error) {
    throw Error(error.code(), std::string("--") + error.what());
  }
}

// Layers that stay in the file are packed by each fetch: what would have to be read twice for that, or kept
// beside the file, is refused.
WeightHome home_from(const EngineOptions& options) {
  if (options.home == "pinned") return WeightHome::memory;
  if (options.home != "mmap") refuse("--home", options.home, "pinned, mmap");
  const auto conflict = [](const std::string& with, const std::string& accepted) {
    throw Error(ErrorCode::unsupported,
                "--home: 'mmap' with " + with + " is not supported; accepted: " + accepted);
  };
  if (options.weights != "auto") conflict("--weights " + options.weights, "--weights auto");
  if (options.host_share > 0) conflict("--host-share above 0", "--host-share 0 or auto");
  if (options.model.starts_with("random:")) conflict("--model random:SHAPE", "a model that is a file");
  return WeightHome::file;
}

void parse_numbers(const EngineOptions& options, ParsedOptions* parsed) {
  if (options.slots != -1) {
    if (options.slots < 2 || options.slots > kMaxSlots) {
      refuse("--slots", std::to_string(options.slots), "auto, or 2 to " + std::to_string(kMaxSlots));
    }
    parsed->slots = options.slots;
  }
  if (options.context != -1) {
    if (options.context < 1) {
      refuse("--context", std::to_string(options.context), "at least 1, at most the model's positions");
    }
    parsed->context = options.context;
  }
  if (options.chunk != -1) {
    if (options.chunk < 1 || options.chunk > kMaxChunk) {
      refuse("--chunk", std::to_string(options.chunk), "auto, or 1 to " + std::to_string(kMaxChunk));
    }
    parsed->chunk = (options.chunk + kChunkUnit - 1) / kChunkUnit * kChunkUnit;
  }
  if (options.host_share != -1) {
    if (!(options.host_share >= 0 && options.host_share <= 1)) {
      refuse("--host-share", std::to_string(options.host_share), "auto, or 0 to 1");
    }
    parsed->host_share = options.host_share;
  }
  if (options.max_sessions < 1 || options.max_sessions > kMaxSessions) {
    refuse("--max-sessions", std::to_string(options.max_sessions), "1 to " + std::to_string(kMaxSessions));
  }
  if (options.threads < 0 || options.threads > kMaxThreads) {
    refuse("--threads", std::to_string(options.threads),
           "1 to " + std::to_string(kMaxThreads) + ", or none for the machine's cores");
  }
  if (options.prefix_cache < -1) {
    refuse("--prefix-cache", std::to_string(options.prefix_cache), "auto, 0 (nothing is cached), or a size");
  }
  if (options.link_limit != 0 && options.link_limit < kMinLinkLimit) {
    refuse("--link-limit", std::to_string(options.link_limit), "at least 1M bytes a second");
  }
}

}  // namespace

ParsedOptions parse_options(const EngineOptions& options) {
  if (options.model.empty()) refuse("--model", "", "a GGUF file, a model directory, or random:SHAPE");
  check_device(options.device);
  ParsedOptions parsed;
  parsed.raw = options;
  parsed.resident_layers = resident_layers_from(options.resident_layers);
  parsed.math = math_from(options.math);
  parsed.kernels = kernels_from(options.kernels);
  parsed.kv_type = kv_type_from(options.kv_type);
  parsed.kv = placement_from("--kv", options.kv);
  parsed.vocab = placement_from("--vocab", options.vocab);
  parsed.weights = weights_choice_from(options.weights);
  parsed.home = home_from(options);
  parse_numbers(options, &parsed);
  return parsed;
}

}  // namespace ete
