#include "engine/models/hf_rope.h"

#include "engine/base/error.h"
#include "engine/models/config_checks.h"
#include "engine/models/rope_frequencies.h"
#include "engine/weights/untrusted.h"

namespace ete {

using nlohmann::json;

namespace {

double required_positive(const JsonFields& fields, const char* field, const std::string& prefix,
                         const std::string& file) {
  const auto value = fields.number(field);
  if (!value) fields.fail(field, "is missing");
  check_positive(*value, prefix + field, file);
  return *value;
}

void apply_scaling(RopeConfig& rope, const JsonFields& fields, const std::string& prefix,
                   const std::string& file) {
  const auto positive = [&](const char* field) { return required_positive(fields, field, prefix, file); };
  if (rope.type == "linear") {
    scale_linear(rope.inv_freq, positive("factor"));
  } else if (rope.type == "llama3") {
    const Llama3Scaling scaling{
        .factor = positive("factor"),
        .low_freq_factor = positive("low_freq_factor"),
        .high_freq_factor = positive("high_freq_factor"),
        .original_max_position_embeddings = positive("original_max_position_embeddings")};
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      fields.fail("high_freq_factor", "must be greater than low_freq_factor");
    }
    scale_llama3(rope.inv_freq, scaling);
  } else if (rope.type != "default") {
    throw Error(ErrorCode::unsupported, file + ": " + prefix + "rope_type " + printable(rope.type) +
                                            " is not supported; default, linear and llama3 are");
  }
}

}  // namespace

RopeObject find_rope_object(const JsonFields& fields) {
  const json* parameters = fields.find("rope_parameters");
  const json* scaling = fields.find("rope_scaling");
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    fields.fail("rope_scaling", "and rope_parameters are both there and differ; one of them is enough");
  }
  RopeObject rope =
      parameters != nullptr ? RopeObject{"rope_parameters", parameters} : RopeObject{"rope_scaling", scaling};
  if (rope.object != nullptr && !rope.object->is_object()) fields.fail(rope.key.c_str(), "is not an object");
  return rope;
}

std::string rope_type_of(const JsonFields& rope) {
  const auto type = rope.string("rope_type");
  const auto old_type = rope.string("type");
  if (type && old_type && *type != *old_type) {
    rope.fail("rope_type", printable(*type) + " and type " + printable(*old_type) + " disagree");
  }
  return type ? *type : old_type.value_or("default");
}

double read_rope_theta(const JsonFields& rope, const JsonFields& config, const char* field, double absent) {
  const auto outer = config.number(field);
  const auto inner = rope.number("rope_theta");
  if (outer && inner && *outer != *inner) {
    rope.fail("rope_theta", std::string("disagrees with the ") + field + " beside it");
  }
  const double theta = inner.value_or(outer.value_or(absent));
  check_positive(theta, field, config.file());
  return theta;
}

RopeConfig read_rope_object(const JsonFields& rope, const std::string& prefix, double theta,
                            int64_t rotary_dim) {
  RopeConfig config;
  config.type = rope_type_of(rope);
  config.theta = theta;
  config.rotary_dim = rotary_dim;
  config.inv_freq = default_inv_freq(theta, rotary_dim);
  apply_scaling(config, rope, prefix, rope.file());
  return config;
}

}  // namespace ete
