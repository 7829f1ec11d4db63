#include <gtest/gtest.h>

#include <optional>
#include <tuple>

#include "tests/runtime/engine_harness.h"
#include "tests/runtime/mutant_device.h"

// Each kind of wait between the engine's streams is needed: without it, and with the other side late, logits
// change. What this proves of the waits it proves of the tests of bit identity too: they would see one that
// is missing.

namespace ete::test {
namespace {

constexpr int64_t kPrompt = 1100;  // three pages of KV cache
constexpr int64_t kSteps = 4;

std::vector<int32_t> some_ids(int64_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * 37 + seed) % 300 + 3));
  return ids;
}

// Everything that streams: layers through two slots, half of their rows computed at home, KV pages one by one
// through the two halves of a window.
EngineOptions streaming(const Path& path) {
  EngineOptions options = with_residency(exact_options("llama_gqa", path.device), 0, 2);
  options.kernels = path.kernels;
  options.kv = "host";
  options.chunk = 512;
  options.host_share = 0.5;
  return options;
}

// The prompt's last row and a row a step; none when the session failed, as it does of NaN.
std::optional<Rows> rows_on(const Path& path, const WaitKind& kind, bool drops, int* met) {
  PreparedModel prepared = prepare(streaming(path));
  auto mutant = std::make_unique<MutantDevice>(std::move(prepared.device), kind, drops);
  const MutantDevice& device = *mutant;
  prepared.device = std::move(mutant);
  const EngineTuning tuning{
      .poison_released_slots = true, .arena = ArenaMode::separate, .kv_half_pages = int64_t{1}, .launch = 1};
  const auto engine = std::make_unique<EngineImpl>(std::move(prepared), LoadProgress{}, tuning);
  std::optional<Rows> rows;
  try {
    rows = forced_rows(*engine, some_ids(kPrompt, 0), some_ids(kSteps, 5));
  } catch (const Error&) {
  }
  *met = device.met();
  return rows;
}

struct NamedKind {
  std::string name;
  WaitKind kind;
};

class WaitMutants : public testing::TestWithParam<std::tuple<NamedKind, Path>> {};

TEST_P(WaitMutants, BreakBits) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a mutant is a data race";
#endif
  const auto& [named, path] = GetParam();
  const std::string reason = why_skipped(path);
  if (!reason.empty()) GTEST_SKIP() << reason;
  const Rows reference = forced_rows(*load(streaming(path)), some_ids(kPrompt, 0), some_ids(kSteps, 5));
  int met = 0;
  const std::optional<Rows> late = rows_on(path, named.kind, false, &met);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(first_different(*late, reference), -1) << "being late alone changes nothing";
  EXPECT_GT(met, 0);
  const std::optional<Rows> mutant = rows_on(path, named.kind, true, &met);
  EXPECT_FALSE(mutant && first_different(*mutant, reference) == -1);
}

const NamedKind kKinds[] = {
    {"copied", {"ete copy in", "ete compute"}},        {"computed", {"ete compute", "ete copy in"}},
    {"kv_copied", {"ete kv in", "ete compute"}},       {"kv_computed", {"ete compute", "ete kv in"}},
    {"rows_ready", {"ete compute", "ete write back"}}, {"rows_home", {"ete write back", "ete compute"}},
    {"x_home", {"ete compute", "ete host rows"}},      {"y_home", {"ete host rows", "ete compute"}}};
const Path kPaths[] = {{"mixed", "plain"}, {"cuda:0", "plain"}};

INSTANTIATE_TEST_SUITE_P(Kinds, WaitMutants,
                         testing::Combine(testing::ValuesIn(kKinds), testing::ValuesIn(kPaths)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + name_of_path(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace ete::test
