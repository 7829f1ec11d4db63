#include "engine/runtime/engine.h"

#include <utility>

#include "engine/device/cpu/cpu_features.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/engine_impl.h"
#include "engine/runtime/host_share.h"

namespace ete {

namespace {

int threads_of(int option) { return option > 0 ? option : default_threads(); }

std::unique_ptr<Ops> make_ops_for(Device& device, const ParsedOptions& options) {
  try {
    return make_ops(device, {.math = options.math.value_or(default_math(device, options.kernels)),
                             .family = options.kernels,
                             .host_threads = threads_of(options.raw.threads)});
  } catch (const Error& error) {
    const std::string what = error.what();
    const bool names_flag = what.starts_with("kernels: ") || what.starts_with("math: ");
    throw Error(error.code(), (names_flag ? "--" : "--kernels, --math: ") + what);
  }
}

}  // namespace

PreparedModel prepare_model(const EngineOptions& options, std::unique_ptr<Device> device,
                            std::unique_ptr<Ops> ops) {
  PreparedModel prepared;
  prepared.options = parse_options(options);
  prepared.files = open_model(options.model, options.accept_unknown);
  prepared.device = std::move(device);
  prepared.ops = std::move(ops);
  prepared.weights = weights_of(prepared.files, prepared.options.weights);
  PlanInput input{
      .options = prepared.options,
      .config = prepared.files.config,
      .weights = prepared.weights,
      .device = prepared.device->info(),
      .host_free_bytes = ram_free_bytes(),
      .threads = threads_of(options.threads),
      .kernels = prepared.ops->describe(),
      .host_products = prepared.ops->host_products().describe(),
      .workspace_bytes =
          [&ops = *prepared.ops](const WorkspaceNeeds& needs) { return ops.workspace_bytes(needs); },
      .recording_bytes = [&ops = *prepared.ops](int64_t calls) { return ops.recording_bytes(calls); }};
  if (!prepared.options.host_share) {
    input.chosen_share = automatic_host_share(*prepared.device, *prepared.ops, input);
  }
  prepared.planned = make_plan(input);
  plan_admission(options, &prepared.planned.plan);
  return prepared;
}

PreparedModel prepare_model(const EngineOptions& options) {
  const ParsedOptions parsed = parse_options(options);
  auto device = make_device({.device = options.device, .threads = options.threads});
  auto ops = make_ops_for(*device, parsed);
  return prepare_model(options, std::move(device), std::move(ops));
}

std::unique_ptr<Engine> load_engine(const EngineOptions& options, const LoadProgress& progress,
                                    const EngineTuning& tuning) {
  return std::make_unique<EngineImpl>(prepare_model(options), progress, tuning);
}

std::unique_ptr<Engine> Engine::load(const EngineOptions& options, const LoadProgress& progress) {
  return load_engine(options, progress, {});
}

Plan Engine::plan_only(const EngineOptions& options, ModelFiles* files_out) {
  PreparedModel prepared = prepare_model(options);
  if (files_out != nullptr) *files_out = std::move(prepared.files);
  return std::move(prepared.planned.plan);
}

}  // namespace ete
