#include "services/front/sampling_chain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "services/front/sampler.h"

namespace ete::front {
namespace {

// Logits whose probabilities are these.
std::vector<float> row_of(const std::vector<double>& probabilities) {
  std::vector<float> row;
  for (const double p : probabilities) row.push_back(static_cast<float>(std::log(p)));
  return row;
}

// Every id that some seed draws.
std::set<int32_t> drawable(SamplingParams params, const std::vector<float>& row, int seeds = 400) {
  std::set<int32_t> ids;
  for (int seed = 0; seed < seeds; ++seed) {
    params.seed = static_cast<uint64_t>(seed);
    Sampler sampler(params, static_cast<int32_t>(row.size()), {}, std::nullopt);
    EXPECT_TRUE(sampler.query().full_row);
    ids.insert(sampler.draw_full(row).id);
  }
  return ids;
}

TEST(SamplingChain, TypicalKeepsWhatIsNearestToTheEntropy) {
  // Entropy 1.19 nats: 0.3 (1.20) is nearest, then 0.45 (0.80), then 0.2 (1.61).
  const std::vector<float> row = row_of({0.45, 0.3, 0.2, 0.05});
  SamplingParams params;
  params.typical_p = 0.25f;
  EXPECT_EQ(drawable(params, row), (std::set<int32_t>{1}));
  params.typical_p = 0.45f;
  EXPECT_EQ(drawable(params, row), (std::set<int32_t>{1, 0}));
  params.typical_p = 0.8f;
  EXPECT_EQ(drawable(params, row), (std::set<int32_t>{1, 0, 2}));
}

TEST(SamplingChain, TopKThenTypicalThenTopPThenMinP) {
  const std::vector<float> row = row_of({0.4, 0.3, 0.15, 0.1, 0.05});
  SamplingParams params;
  params.typical_p = 0.999999f;
  params.top_k = 4;
  EXPECT_EQ(drawable(params, row), (std::set<int32_t>{0, 1, 2, 3}));
  params.min_p = 0.3f;  // of 0.4: 0.12
  EXPECT_EQ(drawable(params, row), (std::set<int32_t>{0, 1, 2}));
  params.top_p = 0.7f;
  EXPECT_EQ(drawable(params, row), (std::set<int32_t>{0, 1}));
}

TEST(SamplingChain, XtcLeavesTheLeastOfTheProbable) {
  const std::vector<float> row = row_of({0.4, 0.3, 0.2, 0.1});
  SamplingParams params;
  params.xtc_probability = 1;
  params.xtc_threshold = 0.15f;
  EXPECT_EQ(drawable(params, row), (std::set<int32_t>{2, 3}));
  params.xtc_threshold = 0.35f;  // one is above it: nothing is left out
  EXPECT_EQ(drawable(params, row), (std::set<int32_t>{0, 1, 2, 3}));
  params.xtc_threshold = 0.15f;
  params.xtc_probability = 0.5f;
  int best = 0;
  for (int seed = 0; seed < 2000; ++seed) {
    params.seed = static_cast<uint64_t>(seed);
    Sampler sampler(params, 4, {}, std::nullopt);
    best += sampler.draw_full(row).id == 0 ? 1 : 0;
  }
  EXPECT_NEAR(best, 2000 * 0.5 * 0.4, 80);
}

TEST(SamplingChain, DynamicTemperatureFollowsTheEntropy) {
  SamplingParams params;
  params.temperature = 1;
  params.dynamic_temperature_range = 1;
  const auto share_of_best = [&](const std::vector<float>& row) {
    int best = 0;
    for (int seed = 0; seed < 2000; ++seed) {
      params.seed = static_cast<uint64_t>(seed);
      Sampler sampler(params, static_cast<int32_t>(row.size()), {}, std::nullopt);
      best += sampler.draw_full(row).id == 0 ? 1 : 0;
    }
    return best / 2000.0;
  };
  EXPECT_NEAR(share_of_best(row_of({0.25, 0.25, 0.25, 0.25})), 0.25, 0.04);
  // Entropy 0.5875 nats of 1.3863: temperature 0.8476.
  const double hot = std::pow(0.85, 1 / 0.8476), cold = std::pow(0.05, 1 / 0.8476);
  EXPECT_NEAR(share_of_best(row_of({0.85, 0.05, 0.05, 0.05})), hot / (hot + 3 * cold), 0.02);
}

// Basu et al.'s algorithm over a row, literally.
struct NaiveMirostat {
  double tau, mu = 2 * tau;
  double surprise = 0;

  int32_t draw(const std::vector<float>& row, double u) {
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    double total = 0, kept = 0;
    for (const float logit : row) total += std::exp(double{logit});
    size_t count = 0;
    for (; count < order.size(); ++count) {
      const double p = std::exp(double{row[order[count]]}) / total;
      if (count > 0 && -std::log2(p) > mu) break;
      kept += p;
    }
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const double p = std::exp(double{row[order[i]]}) / total;
      sum += p;
      if (sum <= u * kept && i + 1 < count) continue;
      surprise = -std::log2(p / kept);
      mu -= double{0.1f} * (surprise - tau);
      return order[i];
    }
    return -1;
  }
};

TEST(SamplingChain, MirostatKeepsTheSurpriseNearItsTarget) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 2);
  for (const float tau : {1.0f, 3.0f, 5.0f}) {
    SamplingParams params;
    params.mirostat_tau = tau;
    params.seed = 5;
    Sampler sampler(params, 500, {}, std::nullopt);
    NaiveMirostat naive{tau};
    std::vector<float> row(500);
    double sum = 0;
    constexpr int kSteps = 1000;
    for (int step = 0; step < kSteps; ++step) {
      for (float& logit : row) logit = normal(random);
      const int32_t id = sampler.draw_full(row).id;
      ASSERT_EQ(id, naive.draw(row, uniform_at(params.seed, step))) << "step " << step << " tau " << tau;
      sum += naive.surprise;
      sampler.accept(id);
    }
    EXPECT_NEAR(sum / kSteps, tau, 0.1 * tau);
  }
}

TEST(SamplingChain, OnlyAllowedIdsAreDrawn) {
  SamplingParams params;
  params.typical_p = 0.9f;
  params.logit_bias = {{2, -std::numeric_limits<float>::infinity()}};
  const std::vector<float> row = row_of({0.4, 0.3, 0.2, 0.1});
  auto allowed = std::make_shared<TokenSet>(4);
  allowed->add(2);
  allowed->add(3);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    params.seed = seed;
    Sampler sampler(params, 4, {}, std::nullopt);
    sampler.allow(allowed);
    EXPECT_EQ(sampler.draw_full(row).id, 3);
  }
}

// The words of generation.proto: for each earlier place, how far what stands before it is what ends the text.
std::map<int32_t, double> naive_penalties(const std::vector<int32_t>& ids, const DryParams& params) {
  const size_t begin = ids.size() > static_cast<size_t>(params.range) ? ids.size() - params.range : 0;
  const std::vector<int32_t> text(ids.begin() + static_cast<ptrdiff_t>(begin), ids.end());
  std::map<int32_t, double> penalties;
  for (size_t next = 0; next < text.size(); ++next) {
    size_t n = 0;
    while (n < next && text[next - 1 - n] == text[text.size() - 1 - n] && !params.breaks(text[next - 1 - n]))
      ++n;
    if (static_cast<int32_t>(n) < params.allowed_length) continue;
    const double penalty =
        params.multiplier * std::pow(params.base, static_cast<double>(n) - params.allowed_length);
    penalties[text[next]] = std::max(penalties[text[next]], penalty);
  }
  return penalties;
}

TEST(RepetitionGuard, PenaltiesAreThoseOfEveryPlaceTriedOneByOne) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    DryParams params;
    params.multiplier = 0.5f;
    params.allowed_length = 1 + static_cast<int32_t>(random() % 3);
    params.range = 3 + static_cast<int32_t>(random() % 40);
    const bool breakers = random() % 2 == 0;
    params.breaks = [breakers](int32_t id) { return breakers && id == 0; };
    std::vector<int32_t> ids;
    for (uint32_t i = 0, n = random() % 20; i < n; ++i) ids.push_back(static_cast<int32_t>(random() % 3));
    RepetitionGuard guard(params, ids);
    for (int step = 0; step < 60; ++step) {
      const auto got = guard.penalties();
      const auto expected = naive_penalties(ids, params);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [id, penalty] : expected) ASSERT_NEAR(got.at(id), penalty, 1e-9 * penalty);
      ids.push_back(static_cast<int32_t>(random() % 3));
      guard.accept(ids.back());
    }
  }
}

TEST(RepetitionGuard, ARepetitionIsNotExtended) {
  SamplingParams params;
  params.temperature = 0;
  params.dry.multiplier = 2;
  const std::vector<int32_t> prompt = {1, 2, 3, 1, 2};
  const std::vector<float> row = {0, 0.5f, 0.7f, 1};
  Sampler sampler(params, 4, prompt, std::nullopt);
  EXPECT_TRUE(sampler.query().full_row);
  EXPECT_EQ(sampler.draw_full(row).id, 2);  // 3 would go on as before
  params.dry.allowed_length = 3;
  EXPECT_EQ(Sampler(params, 4, prompt, std::nullopt).draw_full(row).id, 3);
}

TEST(RepetitionGuard, EndlessRepetitionsStayFinite) {
  DryParams params;
  params.multiplier = 1;
  params.base = 10;
  const RepetitionGuard guard(params, std::vector<int32_t>(1000, 7));
  const auto penalties = guard.penalties();
  ASSERT_EQ(penalties.size(), 1u);
  EXPECT_TRUE(std::isfinite(penalties.at(7)));
}

}  // namespace
}  // namespace ete::front
