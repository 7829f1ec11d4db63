#include "engine/models/config_checks.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"

namespace ete {
namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::corrupt, file + ": " + what);
}

}  // namespace

void check_geometry(ModelConfig& config, const std::string& file, const GeometryNames& names) {
  const auto number = [](const auto& value) { return " " + std::to_string(value); };
  std::string head_dim = names.head_dim + number(config.head_dim);
  if (config.head_dim == 0) {
    const std::string divided = names.hidden_size + number(config.hidden_size);
    const std::string by = names.heads + number(config.num_attention_heads);
    if (config.hidden_size % config.num_attention_heads != 0) {
      refuse(file, divided + " is not a multiple of " + by + ", and " + names.head_dim + " is not given");
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
    head_dim = names.head_dim + number(config.head_dim) + " (" + divided + " / " + by + ")";
  }
  if (config.head_dim % 2 != 0 || config.head_dim < kHeadDimRange.min ||
      config.head_dim > kHeadDimRange.max) {
    throw Error(ErrorCode::unsupported, file + ": " + head_dim + " must be even and from" +
                                            number(kHeadDimRange.min) + " to" + number(kHeadDimRange.max));
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    refuse(file, names.heads + number(config.num_attention_heads) + " is not a multiple of " +
                     names.kv_heads + number(config.num_key_value_heads));
  }
  if (!(config.rms_norm_eps > 0 && config.rms_norm_eps < 1)) {
    refuse(file, names.eps + number(config.rms_norm_eps) + " must lie between 0 and 1");
  }
}

void check_positive(double value, const std::string& field, const std::string& file) {
  if (!(value > 0) || !std::isfinite(static_cast<float>(value))) {
    refuse(file, field + " is " + std::to_string(value) + ", but must be positive and finite");
  }
}

void add_eos_token_id(ModelConfig& config, int64_t id) {
  if (id >= config.vocab_size) return;
  const auto eos = static_cast<int32_t>(id);
  auto& ids = config.eos_token_ids;
  if (std::find(ids.begin(), ids.end(), eos) == ids.end()) ids.push_back(eos);
}

}  // namespace ete
