#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/runtime/engine_harness.h"

namespace ete::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

EngineOptions options() {
  EngineOptions options = exact_options("llama_gqa");
  options.max_sessions = 2;
  options.context = 1024;
  return options;
}

std::string refusal(ErrorCode code, const EngineOptions& options) {
  try {
    Engine::plan_only(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(Options, BadValuesNameFlagValueAndWhatIsAccepted) {
  const auto refused = [](const std::function<void(EngineOptions&)>& spoil, const std::string& text,
                          ErrorCode code = ErrorCode::invalid_argument) {
    EngineOptions spoilt = options();
    spoil(spoilt);
    EXPECT_THAT(refusal(code, spoilt), HasSubstr(text));
  };
  refused([](auto& o) { o.model = ""; }, "--model");
  refused([](auto& o) { o.device = "gpu"; }, "--device: 'gpu'; accepted: auto, cpu, cuda, cuda:N");
  refused([](auto& o) { o.device = "cuda:x"; }, "--device: 'cuda:x'");
  refused([](auto& o) { o.resident_layers = "many"; }, "--resident-layers: 'many'; accepted: auto, -1");
  refused([](auto& o) { o.resident_layers = "-2"; }, "--resident-layers: '-2'");
  refused([](auto& o) { o.resident_layers = "99"; }, "--resident-layers: '99'; accepted: auto, or -1 to");
  refused([](auto& o) { o.slots = 1; }, "--slots: '1'; accepted: auto, or 2 to 1024");
  refused([](auto& o) { o.math = "quick"; }, "--math: 'quick'; accepted: exact, fast");
  refused([](auto& o) { o.kernels = "best"; }, "--kernels: 'best'; accepted:");
  refused([](auto& o) { o.link_limit = 1; }, "--link-limit: '1'; accepted: at least 1M");
  refused([](auto& o) { o.home = "disk"; }, "--home: 'disk'; accepted: pinned, mmap");
  const auto in_file = [&](const std::function<void(EngineOptions&)>& spoil, const std::string& text) {
    refused([&](auto& o) { (o.home = "mmap", spoil(o)); }, text, ErrorCode::unsupported);
  };
  in_file([](auto& o) { o.weights = "w8"; }, "'mmap' with --weights w8 is not supported");
  in_file([](auto& o) { o.host_share = 0.5; }, "'mmap' with --host-share above 0");
  in_file([](auto& o) { o.model = "random:tiny"; }, "'mmap' with --model random:SHAPE");
  refused([](auto& o) { o.kv = "disk"; }, "--kv: 'disk'; accepted: auto, device, host");
  refused([](auto& o) { o.kv_type = "f8"; }, "--kv-type: 'f8'; accepted: f32, f16, bf16");
  refused([](auto& o) { o.vocab = "disk"; }, "--vocab: 'disk'; accepted: auto, device, host");
  refused([](auto& o) { o.weights = "w2"; }, "--weights: 'w2'; accepted: auto, bf16, f16, f32, w8, w4");
  refused([](auto& o) { o.max_sessions = 0; }, "--max-sessions: '0'; accepted: 1 to 1024");
  refused([](auto& o) { o.context = 0; }, "--context: '0'");
  refused([](auto& o) { o.context = 1 << 30; }, "--context: '1073741824'; accepted: 1 to");
  refused([](auto& o) { o.chunk = 0; }, "--chunk: '0'; accepted: auto, or 1 to 16384");
  refused([](auto& o) { o.host_share = 1.5; }, "--host-share: '1.5");
  refused([](auto& o) { o.host_share = -0.5; }, "--host-share: '-0.5");
  refused([](auto& o) { o.threads = -1; }, "--threads: '-1'; accepted: 1 to 1024, or none");
  refused([](auto& o) { o.kernels = "wgmma"; }, "--kernels: 'wgmma'");
  refused([](auto& o) { o.prefix_cache = -2; }, "--prefix-cache: '-2'; accepted: auto, 0");
}

TEST(Planner, CachedPrefixesCountAsHostBytesUnlessTheyLieInWhatIsSetAside) {
  const Plan none = Engine::plan_only(options());
  EXPECT_EQ(none.prefix_cache_bytes, 0u);
  EXPECT_THAT(none.to_text(), HasSubstr("prefix cache        none"));
  EngineOptions cached = options();
  cached.prefix_cache = 5 << 20;
  const Plan plan = Engine::plan_only(cached);
  EXPECT_EQ(plan.prefix_cache_bytes, 5u << 20);
  EXPECT_EQ(plan.peak_host_bytes, none.peak_host_bytes + (5u << 20));
  cached.prefix_cache = -1;
  const Plan automatic = Engine::plan_only(cached);
  EXPECT_GT(automatic.prefix_cache_bytes, 0u);
  EXPECT_LE(automatic.prefix_cache_bytes, uint64_t{4} << 30);
  cached.prefix_cache = INT64_MAX;
  EXPECT_THAT(refusal(ErrorCode::resource_exhausted, cached), HasSubstr("--prefix-cache: "));

  EngineOptions budgeted = options();
  budgeted.vram_budget = none.peak_device_bytes + (1 << 20);
  const Plan uncached = Engine::plan_only(budgeted);
  for (const int64_t asked : {int64_t{-1}, int64_t{1} << 40}) {
    budgeted.prefix_cache = asked;
    const Plan within = Engine::plan_only(budgeted);
    EXPECT_EQ(within.prefix_cache_bytes, 2 * within.kv_bytes_per_session);
    EXPECT_EQ(within.peak_device_bytes, uncached.peak_device_bytes);
    // But for rows of logits, of which there is one with each page at most.
    const uint64_t row = 320 * sizeof(float);
    const uint64_t page = within.kv_bytes_per_token * 512;
    EXPECT_EQ(within.peak_host_bytes,
              uncached.peak_host_bytes + within.prefix_cache_bytes / (page + row) * row);
  }
  EXPECT_THAT(Engine::plan_only(budgeted).notes, Contains(HasSubstr("--prefix-cache: no more than")));
}

// Only what is no layer is at home, and slots; layers that are asked to be resident are packed into RAM.
TEST(Planner, LayersInTheFileTakeNoHome) {
  EngineOptions in_file = options();
  in_file.home = "mmap";
  const Plan plan = Engine::plan_only(in_file);
  const Plan pinned = Engine::plan_only(options());
  EXPECT_EQ(plan.resident_layers, 0);
  EXPECT_GE(plan.slots, 2);
  EXPECT_EQ(plan.streamed_bytes_per_pass, pinned.resident_bytes);
  EXPECT_EQ(plan.home_bytes + pinned.resident_bytes, pinned.home_bytes);
  EXPECT_THAT(plan.notes, Contains(HasSubstr("--home mmap: layers stay in the file")));
  in_file.resident_layers = "-1";
  const Plan resident = Engine::plan_only(in_file);
  EXPECT_EQ(resident.resident_layers, resident.layers);
  EXPECT_EQ(resident.home_bytes, plan.home_bytes);
  EXPECT_GE(resident.peak_host_bytes, resident.home_bytes + resident.resident_bytes);
}

TEST(Planner, EverythingIsResidentWithoutABudget) {
  const Plan plan = Engine::plan_only(options());
  EXPECT_EQ(plan.resident_layers, plan.layers);
  EXPECT_EQ(plan.slots, 0);
  EXPECT_EQ(plan.streamed_bytes_per_pass, 0u);
  EXPECT_EQ(plan.kv_placement, "device");
  EXPECT_GT(plan.home_bytes, plan.resident_bytes);
  EXPECT_EQ(plan.chunk, 512);
}

TEST(Planner, ABudgetDecidesResidencyAndSlots) {
  EngineOptions budgeted = options();
  const Plan all = Engine::plan_only(budgeted);
  const uint64_t layer = all.resident_bytes / static_cast<uint64_t>(all.layers);
  const uint64_t kv = 2 * all.kv_bytes_per_session;
  const uint64_t slack = 16 * 1024;
  budgeted.chunk = all.chunk;
  budgeted.vram_budget = all.activation_bytes + kv + all.resident_bytes + slack;
  EXPECT_EQ(Engine::plan_only(budgeted).resident_layers, all.layers);
  // A layer less than all: four slots do not leave room for more than they replace.
  budgeted.vram_budget = all.activation_bytes + kv + 3 * layer + slack;
  const Plan three = Engine::plan_only(budgeted);
  EXPECT_EQ(three.slots, 3);
  EXPECT_EQ(three.resident_layers, 0);
  EXPECT_EQ(three.streamed_bytes_per_pass, all.resident_bytes);
  EXPECT_LE(three.peak_device_bytes, budgeted.vram_budget);
  budgeted.slots = 2;
  const Plan two = Engine::plan_only(budgeted);
  EXPECT_EQ(two.slots, 2);
  EXPECT_EQ(two.resident_layers, 1);
  EXPECT_LE(two.peak_device_bytes, budgeted.vram_budget);
}

TEST(Planner, RefusesWithTheFigureThatWouldFit) {
  EngineOptions small = options();
  const Plan all = Engine::plan_only(small);
  small.chunk = all.chunk;
  small.vram_budget = all.activation_bytes + 1024;
  small.kv = "host";
  EXPECT_THAT(refusal(ErrorCode::resource_exhausted, small), HasSubstr("--vram-budget"));
  small.kv = "device";
  small.vram_budget = all.activation_bytes + all.resident_bytes + all.kv_bytes_per_session + 16 * 1024;
  small.resident_layers = "-1";
  EXPECT_THAT(refusal(ErrorCode::resource_exhausted, small),
              HasSubstr("or --context 512, or --max-sessions 1, or --kv host"));
  small.kv = "auto";
  EXPECT_EQ(Engine::plan_only(small).kv_placement, "host");
}

TEST(Planner, SlotsThatDoNotFitAreRefusedWithTheFigure) {
  EngineOptions slots = options();
  const Plan all = Engine::plan_only(slots);
  const uint64_t layer = all.resident_bytes / static_cast<uint64_t>(all.layers);
  slots.chunk = all.chunk;
  slots.kv = "host";
  slots.resident_layers = "0";
  slots.slots = 4;
  slots.vram_budget = all.activation_bytes + 3 * layer + 8 * 1024;
  EXPECT_THAT(refusal(ErrorCode::resource_exhausted, slots), HasSubstr("(3 would fit)"));
}

TEST(Planner, HostShareShrinksWhatIsStreamed) {
  EngineOptions shared = options();
  shared.resident_layers = "0";
  const Plan whole = Engine::plan_only(shared);
  shared.host_share = 0.5;
  const Plan half = Engine::plan_only(shared);
  EXPECT_LT(half.streamed_bytes_per_pass, whole.streamed_bytes_per_pass * 6 / 10);
  EXPECT_GT(half.streamed_bytes_per_pass, whole.streamed_bytes_per_pass * 4 / 10);
}

TEST(Planner, OptionsWithoutEffectAreNoted) {
  EngineOptions idle = options();
  idle.slots = 3;
  idle.host_share = 0.5;
  idle.link_limit = uint64_t{1} << 30;
  EXPECT_THAT(
      Engine::plan_only(idle).notes,
      testing::IsSupersetOf({HasSubstr("--slots"), HasSubstr("--host-share"), HasSubstr("--link-limit")}));
}

// A device with memory of its own.
EngineOptions detached() {
  EngineOptions own = options();
  own.device = "detached";
  return own;
}

TEST(PlannerOfOwnMemory, ArenaHoldsWhatThePlanSays) {
  for (const char* kv : {"device", "host"}) {
    for (const char* vocab : {"device", "host"}) {
      EngineOptions own = detached();
      own.kv = kv;
      own.vocab = vocab;
      SCOPED_TRACE(std::string(kv) + " " + vocab);
      const PreparedModel prepared = prepare(own);
      const Plan& plan = prepared.planned.plan;
      EXPECT_EQ(plan.kv_placement, kv);
      EXPECT_EQ(plan.vocab_placement, vocab);
      EXPECT_EQ(plan.resident_layers, plan.layers);
      const uint64_t cache = std::string(kv) == "device" ? 2 * plan.kv_bytes_per_session : 0;
      EXPECT_EQ(plan.peak_device_bytes, prepared.planned.placement.arena_bytes + cache);
      EXPECT_EQ(load(own)->plan().peak_device_bytes, plan.peak_device_bytes);
    }
  }
}

TEST(PlannerOfOwnMemory, WhatDoesNotFitStaysOnTheHost) {
  EngineOptions own = detached();
  const Plan all = prepare(own).planned.plan;
  EXPECT_EQ(all.vocab_placement, "device");
  EXPECT_EQ(all.kv_placement, "device");
  own.chunk = all.chunk;
  own.vram_budget = all.peak_device_bytes;
  EXPECT_EQ(prepare(own).planned.plan.vocab_placement, "device");
  own.vram_budget = all.peak_device_bytes - 1024;
  const Plan less = prepare(own).planned.plan;
  EXPECT_EQ(less.vocab_placement, "host");
  EXPECT_THAT(less.notes, testing::Contains(HasSubstr("vocabulary by host threads: exact, plain")));
  EXPECT_LE(less.peak_device_bytes, own.vram_budget);
  own.vocab = "device";
  own.resident_layers = "0";
  own.slots = 2;
  const Plan streamed = prepare(own).planned.plan;
  EXPECT_EQ(streamed.vocab_placement, "device");
  EXPECT_LE(streamed.peak_device_bytes, own.vram_budget);
}

// More rows for each layer that crosses the link, as far as an eighth of the budget; and fewer of them before
// a budget is refused.
TEST(PlannerOfOwnMemory, ChunksAreAsLongAsTheBudgetAllows) {
  EngineOptions own = with_residency(detached(), 0, 2);
  own.kv = "host";
  own.vocab = "host";
  own.chunk = 2048;
  const Plan longest = prepare(own).planned.plan;
  own.chunk = 64;
  const Plan shortest = prepare(own).planned.plan;
  own.chunk = -1;
  own.vram_budget = 8 * longest.activation_bytes + longest.peak_device_bytes;
  EXPECT_EQ(prepare(own).planned.plan.chunk, 2048);
  own.vram_budget = 8 * longest.activation_bytes - 1024;
  EXPECT_EQ(prepare(own).planned.plan.chunk, 1024);
  own.vram_budget = shortest.peak_device_bytes;
  EXPECT_EQ(prepare(own).planned.plan.chunk, 64);
  own.vram_budget = shortest.peak_device_bytes - 1024;
  EXPECT_THROW(prepare(own), Error);
}

// States are kept where passes end, for turns that follow.
TEST(PlannerOfOwnMemory, ChunksEndAtPagesWhereStatesAreCached) {
  EngineOptions own = with_residency(exact_options("qwen3_5", "detached"), 0, 2);
  own.prefix_cache = -1;
  EXPECT_EQ(prepare(own).planned.plan.chunk, 512);
  own.prefix_cache = 0;
  EXPECT_EQ(prepare(own).planned.plan.chunk, 2048);
}

TEST(PlannerOfOwnMemory, KvOnTheHostTakesTheSameOfTheDeviceAtAnyContext) {
  EngineOptions own = with_residency(detached(), 0, 2);
  own.model = "random:qwen3-0.6b:w8";
  own.kv = "host";
  own.max_sessions = 1;
  own.context = 1024;
  const Plan few = prepare(own).planned.plan;
  own.context = 32768;
  EXPECT_EQ(prepare(own).planned.plan.peak_device_bytes, few.peak_device_bytes);
}

// Halves for as many sessions as an eighth of the budget holds, but not in the place of a layer that would
// stay: it would cross the link in every pass.
TEST(PlannerOfOwnMemory, WindowsOnStatesLeaveLayersTheirRoom) {
  EngineOptions own = exact_options("qwen3_5", "detached");
  own.model = "random:qwen3.5-9b:w4";
  own.kv = "host";
  own.vocab = "host";
  own.context = 1024;
  own.chunk = 64;
  own.max_sessions = 128;
  own.vram_budget = uint64_t{6} << 30;
  const auto check = [&](int64_t least_halves) {
    const PlannedEngine planned = prepare(own).planned;
    EXPECT_EQ(planned.plan.state_placement, "host");
    EXPECT_EQ(planned.plan.resident_layers, planned.plan.layers);
    EXPECT_LE(planned.plan.peak_device_bytes, own.vram_budget);
    EXPECT_GE(planned.placement.streamed_states->half_sessions, least_halves);
    return planned.plan.peak_device_bytes;
  };
  own.vram_budget = check(90) - (uint64_t{512} << 20);
  check(16);
}

// A part of the numeric path, so the plan says it beside the kernels; slots hold whole layers, since rows of
// prompts take the host's rows from there.
TEST(PlannerOfOwnMemory, HostShareIsPrinted) {
  EngineOptions own = with_residency(detached(), 1, 2);
  const PreparedModel without = prepare(own);
  own.host_share = 0.5;
  const PreparedModel prepared = prepare(own);
  const Plan& plan = prepared.planned.plan;
  const Plan& whole = without.planned.plan;
  EXPECT_EQ(plan.host_share, 0.5);
  EXPECT_THAT(plan.kernels, HasSubstr("; host rows (decode): exact, plain"));
  EXPECT_THAT(plan.to_text(), HasSubstr("host share          0.5 of each matrix's rows"));
  EXPECT_EQ(nlohmann::json::parse(plan.to_json()).at("host_share").get<double>(), 0.5);
  EXPECT_THAT(plan.notes, Contains(HasSubstr("--host-share holds for resident layers, too")));
  EXPECT_LT(plan.streamed_bytes_per_pass, whole.streamed_bytes_per_pass * 6 / 10);
  EXPECT_EQ(plan.prompt_streamed_bytes_per_pass, whole.streamed_bytes_per_pass);
  EXPECT_EQ(plan.resident_bytes, whole.resident_bytes);
  EXPECT_EQ(prepared.planned.placement.arena_bytes, without.planned.placement.arena_bytes);
  EXPECT_EQ(plan.peak_host_bytes - whole.peak_host_bytes, prepared.planned.placement.host_rows->host_bytes());
  EXPECT_EQ(whole.host_share, 0);
  EXPECT_THAT(whole.kernels, testing::Not(HasSubstr("host rows")));
}

TEST(Planner, AChunkIsRoundedUpAndTheNoteSaysSo) {
  EngineOptions chunked = options();
  chunked.chunk = 7;
  const Plan plan = Engine::plan_only(chunked);
  EXPECT_EQ(plan.chunk, 64);
  EXPECT_THAT(plan.notes, testing::Contains("--chunk 7: rounded up to 64"));
  chunked.chunk = 128;
  EXPECT_THAT(Engine::plan_only(chunked).notes, testing::Not(testing::Contains(HasSubstr("--chunk"))));
}

TEST(Planner, AutomaticHostShareSaysWhy) {
  EngineOptions shared = options();
  shared.host_share = -1;
  EXPECT_THAT(Engine::plan_only(shared).notes,
              testing::Contains("--host-share auto: 0, since every layer is resident"));
  shared.home = "mmap";
  EXPECT_THAT(Engine::plan_only(shared).notes,
              testing::Contains("--host-share auto: 0, since layers stay in the file"));
}

TEST(Planner, FastMathStatesItsTolerance) {
  EngineOptions fast = options();
  fast.math = "fast";
  const Plan plan = Engine::plan_only(fast);
  const std::string tolerance = "x rounded to int8 per 32 columns, each by at most absmax / 254";
  EXPECT_THAT(plan.to_text(), HasSubstr(tolerance));
  EXPECT_THAT(nlohmann::json::parse(plan.to_json()).at("kernels").get<std::string>(), HasSubstr(tolerance));
}

// As many bytes as no 64-bit number holds: refused, not planned with what is left of them.
TEST(Planner, AKvCacheBeyondCountingIsRefused) {
  EngineOptions huge = options();
  huge.max_sessions = 1024;
  huge.context = -1;
  PreparedModel prepared = prepare_model(huge);
  ModelConfig& config = prepared.files.config;
  config.max_position_embeddings = (int64_t{1} << 31) - 1;
  config.num_hidden_layers = 4096;
  config.num_key_value_heads = 64;
  config.head_dim = 256;
  prepared.weights.layers.resize(4096, prepared.weights.layers.front());
  try {
    make_plan({.options = prepared.options,
               .config = config,
               .weights = prepared.weights,
               .device = prepared.device->info(),
               .host_free_bytes = uint64_t{1} << 40,
               .threads = 1,
               .kernels = ""});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.what(), testing::StartsWith("--context, --max-sessions: 1024 sessions of 2147483647"));
  }
}

TEST(Planner, VocabularyOfTheDeviceCountsAsTheDevices) {
  EngineOptions placed = options();
  const Plan host = Engine::plan_only(placed);
  placed.vocab = "device";
  const Plan device = Engine::plan_only(placed);
  const auto matrix = static_cast<uint64_t>(prepare_model(placed).files.config.vocab_size *
                                            prepare_model(placed).files.config.hidden_size) *
                      sizeof(float);
  EXPECT_GE(device.peak_device_bytes, host.peak_device_bytes + matrix);
  // The figure is one that a budget of as much accepts.
  placed.vram_budget = device.peak_device_bytes + 16 * 1024;
  placed.chunk = device.chunk;
  const Plan budgeted = Engine::plan_only(placed);
  EXPECT_EQ(budgeted.resident_layers, budgeted.layers);
  EXPECT_EQ(budgeted.peak_device_bytes, device.peak_device_bytes);
}

// What is allocated when every session has all its positions is what the plan says.
TEST(Planner, TheDeviceHoldsWhatIsPlanned) {
  EngineOptions usual = options();
  usual.context = 512;
  usual.chunk = 256;
  std::vector<EngineOptions> sets(5, usual);
  sets[1] = with_residency(usual, 0, 2);
  sets[2] = with_residency(usual, 1, 3);
  sets[2].kv = "host";
  sets[3].vocab = "device";
  sets[4] = with_residency(usual, 0, 2);
  sets[4].weights = "w8";
  sets[4].host_share = 0.5;
  for (size_t i = 0; i < sets.size(); ++i) {
    SCOPED_TRACE(i);
    PreparedModel prepared = prepare_model(sets[i]);
    const Device& device = *prepared.device;
    const uint64_t arena = prepared.planned.placement.arena_bytes;
    EngineImpl engine(std::move(prepared), {}, {});
    const std::vector<int32_t> prompt(512, 5);
    OpenRequest open;
    open.prompt_ids = prompt;
    BlockingSession one(engine, open);
    BlockingSession other(engine, open);
    one.opened();
    other.opened();
    const Plan& plan = engine.plan();
    const bool kv_is_device = plan.kv_placement == "device";
    EXPECT_EQ(device.allocated_bytes(), arena + (kv_is_device ? 2 * plan.kv_bytes_per_session : 0));
    // On this device resident weights are read at home: they count, but are not allocated.
    EXPECT_LE(device.allocated_bytes() + plan.resident_bytes, plan.peak_device_bytes);
    if (plan.vocab_placement == "host") {
      EXPECT_EQ(device.allocated_bytes() + plan.resident_bytes, plan.peak_device_bytes);
    }
    EXPECT_GE(plan.peak_host_bytes, plan.home_bytes + 2 * plan.kv_bytes_per_session);
  }
}

TEST(Planner, RepackingIsReported) {
  for (const auto& [weights, format] :
       {std::pair{"w8", "w8_row"}, std::pair{"w4", "w4_g128"}, std::pair{"bf16", "bf16"}}) {
    EngineOptions repacked = options();
    repacked.weights = weights;
    const auto engine = Engine::load(repacked);
    EXPECT_EQ(engine->plan().bytes_by_format.front().first, format);
    EXPECT_THAT(engine->plan().notes,
                testing::Contains(HasSubstr("model.layers.0.self_attn.q_proj.weight as ")));
    EXPECT_THAT(engine->plan().notes, testing::Contains(HasSubstr("lm_head.weight as ")));
    EXPECT_EQ(greedy_ids(*engine, {5, 6, 7}, 3).size(), 3u);
  }
  EXPECT_EQ(Engine::load(options())->plan().notes, Engine::plan_only(options()).notes);
}

TEST(Planner, PlanIsOneJsonDocument) {
  const Plan plan = Engine::plan_only(options());
  const auto json = nlohmann::json::parse(plan.to_json());
  EXPECT_EQ(json.at("layers"), plan.layers);
  EXPECT_EQ(json.at("bytes_by_format").at("f32").get<uint64_t>(), plan.bytes_by_format.front().second);
  EXPECT_THAT(plan.to_text(), HasSubstr("peak device"));
}

}  // namespace
}  // namespace ete::test
