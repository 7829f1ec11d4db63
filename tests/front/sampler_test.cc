#include "services/front/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Reply {
  std::vector<int32_t> top_ids;
  std::vector<float> top_logits, extra_logits;
  double logsumexp;
  PartialLogits view() const { return {top_ids, top_logits, extra_logits, logsumexp}; }
};

// What a worker answers; logsumexp slightly off, as a worker's may be.
Reply answer(const std::vector<float>& row, const LogitsQuery& query) {
  Reply reply;
  std::vector<int32_t> ids(row.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  if (query.allowed) std::erase_if(ids, [&](int32_t id) { return !query.allowed->has(id); });
  std::sort(ids.begin(), ids.end(),
            [&](int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
  double sum = 0;
  const double best = row[ids[0]];
  for (int32_t id : ids) sum += std::exp((row[id] - best) / query.temperature);
  ids.resize(query.top_k);
  for (int32_t id : ids) reply.top_logits.push_back(row[id]);
  reply.top_ids = ids;
  for (int32_t id : query.extra_ids) reply.extra_logits.push_back(row[id]);
  reply.logsumexp = best / query.temperature + std::log(sum) + 2e-11;
  return reply;
}

// generation.proto's words, literally, over the whole row.
int32_t naive_draw(const SamplingParams& p, const std::vector<int32_t>& prompt,
                   const std::vector<int32_t>& output, const std::vector<float>& row,
                   const TokenSet* allowed) {
  std::vector<double> v(row.begin(), row.end());
  for (const auto& [id, bias] : p.logit_bias) v[id] += bias;
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  seen.insert(output.begin(), output.end());
  for (int32_t id : seen) v[id] = v[id] > 0 ? v[id] / p.repetition_penalty : v[id] * p.repetition_penalty;
  std::map<int32_t, int> counts;
  for (int32_t id : output) ++counts[id];
  for (const auto& [id, count] : counts)
    v[id] -= double{p.presence_penalty} + double{p.frequency_penalty} * count;
  std::vector<int32_t> order(row.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  if (allowed != nullptr) std::erase_if(order, [&](int32_t id) { return !allowed->has(id); });
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return v[a] > v[b]; });
  if (p.temperature == 0) return order[0];
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size()) order.resize(p.top_k);
  std::vector<double> w;
  double total = 0;
  for (int32_t id : order) {
    w.push_back(std::exp((v[id] - v[order[0]]) / p.temperature));
    total += w.back();
  }
  size_t kept = 0;
  double reached = 0;
  while (kept < order.size() && reached < p.top_p * total) reached += w[kept++];
  if (p.top_p >= 1) kept = order.size();
  while (w[kept - 1] < p.min_p) --kept;
  double kept_weight = 0;
  for (size_t i = 0; i < kept; ++i) kept_weight += w[i];
  const double target = uniform_at(p.seed, output.size()) * kept_weight;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += w[i];
    if (sum > target) return order[i];
  }
  return order[kept - 1];
}

// Some ids of a vocabulary, at least one that no bias forbids.
std::shared_ptr<const TokenSet> random_set(std::mt19937_64& random, int32_t vocab) {
  auto set = std::make_shared<TokenSet>(vocab);
  const uint64_t part = 1 + random() % 4;
  for (int32_t id = 0; id < vocab; ++id) {
    if (random() % 4 < part) set->add(id);
  }
  set->add(vocab / 2 + vocab % 2);
  return set;
}

struct Tally {
  int draws = 0, fetches = 0;
};

// Some steps of one request; every draw from a partial row, from the full row, and the naive one must agree.
void compare(const SamplingParams& params, const std::vector<int32_t>& prompt,
             const std::vector<std::vector<float>>& rows, const AskPolicy& policy, Tally* tally,
             std::mt19937_64* masks = nullptr) {
  const auto vocab = static_cast<int32_t>(rows[0].size());
  Sampler partial(params, vocab, prompt, std::nullopt, policy);
  Sampler full(params, vocab, prompt, std::nullopt, policy);
  std::vector<int32_t> output;
  for (const auto& row : rows) {
    const auto allowed = masks != nullptr ? random_set(*masks, vocab) : nullptr;
    partial.allow(allowed);
    full.allow(allowed);
    const int32_t expected = full.draw_full(row).id;
    ASSERT_EQ(expected, naive_draw(params, prompt, output, row, allowed.get()));
    std::optional<Sampled> sampled;
    if (!partial.query().full_row) sampled = partial.draw(answer(row, partial.query()).view());
    ++tally->draws;
    if (!sampled) {
      ++tally->fetches;
      sampled = partial.draw_full(row);
    }
    ASSERT_EQ(sampled->id, expected) << "T " << params.temperature << " k " << params.top_k << " p "
                                     << params.top_p << " min_p " << params.min_p << " rep "
                                     << params.repetition_penalty << " pres " << params.presence_penalty
                                     << " asked " << partial.query().top_k << " of " << vocab;
    output.push_back(expected);
    partial.accept(expected);
    full.accept(expected);
  }
}

std::vector<float> random_row(std::mt19937_64& random, int32_t vocab) {
  std::uniform_int_distribution<int> shape(0, 3);
  const int kind = shape(random);
  std::vector<float> row(vocab);
  std::normal_distribution<float> normal(0, kind == 0 ? 0.01f : kind == 1 ? 1.0f : 5.0f);
  for (float& logit : row) {
    logit = normal(random);
    if (kind == 3) logit = std::round(logit / 3);  // many ties
  }
  return row;
}

std::vector<SamplingParams> combinations() {
  std::vector<SamplingParams> all;
  for (float temperature : {0.0f, 0.3f, 1.0f, 2.5f}) {
    for (int32_t top_k : {0, 1, 3, 50}) {
      for (float top_p : {1.0f, 0.9f, 0.3f}) {
        for (float min_p : {0.0f, 0.05f, 1.0f}) {
          for (int penalties = 0; penalties < 4; ++penalties) {
            SamplingParams p;
            p.temperature = temperature;
            p.top_k = top_k;
            p.top_p = top_p;
            p.min_p = min_p;
            if (penalties & 1) p.repetition_penalty = 1.7f;
            if (penalties & 2) {
              p.presence_penalty = 0.8f;
              p.frequency_penalty = -0.4f;
            }
            all.push_back(p);
          }
        }
      }
    }
  }
  return all;
}

TEST(Sampler, PartialRowsGiveTheFullRowsIdInSmallVocabularies) {
  std::mt19937_64 random(11);
  Tally tally;
  for (int32_t vocab : {1, 2, 3, 5, 8, 13}) {
    for (SamplingParams params : combinations()) {
      for (int32_t k : {1, 2, 4, 16}) {
        for (int bias = 0; bias < 3; ++bias) {
          params.logit_bias.clear();
          if (bias == 1 && vocab > 1) params.logit_bias = {{0, kNever}, {vocab - 1, 4.0f}};
          if (bias == 2) {
            for (int32_t id = 0; id < vocab; id += 2)
              params.logit_bias.emplace_back(id, id % 3 == 0 ? -9.0f : 2.5f);
          }
          params.seed = random();
          std::vector<int32_t> prompt;
          for (int i = 0; i < 2; ++i) prompt.push_back(static_cast<int32_t>(random() % vocab));
          std::vector<std::vector<float>> rows;
          for (int i = 0; i < 3; ++i) rows.push_back(random_row(random, vocab));
          ASSERT_NO_FATAL_FAILURE(compare(params, prompt, rows, {k, 1, k, 0}, &tally));
        }
      }
    }
  }
  EXPECT_LT(tally.fetches, tally.draws / 2);
  EXPECT_GT(tally.fetches, 0);
}

TEST(Sampler, PartialRowsGiveTheFullRowsIdInLargerVocabularies) {
  std::mt19937_64 random(12);
  Tally tally;
  for (SamplingParams params : combinations()) {
    for (int32_t k : {1, 20, 150}) {
      params.seed = random();
      params.logit_bias.clear();
      for (uint64_t i = random() % 20; i > 0; --i) {
        const auto id = static_cast<int32_t>(random() % 30 + 30 * i);
        params.logit_bias.emplace_back(id,
                                       i % 5 == 0 ? kNever : static_cast<float>(random() % 2000) / 100 - 10);
      }
      std::vector<int32_t> prompt;
      for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<int32_t>(random() % 700));
      std::vector<std::vector<float>> rows;
      for (int i = 0; i < 4; ++i) rows.push_back(random_row(random, 700));
      ASSERT_NO_FATAL_FAILURE(compare(params, prompt, rows, {k, 1, k, 0}, &tally));
    }
  }
}

TEST(Sampler, OnlyAllowedIdsAreDrawnFromPartialAndFullRowsAlike) {
  std::mt19937_64 random(13);
  Tally tally;
  for (const int32_t vocab : {3, 9, 14, 300}) {
    for (SamplingParams params : combinations()) {
      for (const int32_t k : {1, 4, 40}) {
        params.seed = random();
        params.logit_bias = {{0, kNever}, {vocab - 1, 4.0f}};
        const std::vector<int32_t> prompt = {static_cast<int32_t>(random() % vocab)};
        std::vector<std::vector<float>> rows;
        for (int i = 0; i < 3; ++i) rows.push_back(random_row(random, vocab));
        ASSERT_NO_FATAL_FAILURE(compare(params, prompt, rows, {k, 1, k, 0}, &tally, &random));
      }
    }
  }
  EXPECT_LT(tally.fetches, tally.draws / 2);
}

TEST(Sampler, LogprobsAreAmongTheAllowedIds) {
  const std::vector<float> row = {5, 1, 0, -1};
  auto allowed = std::make_shared<TokenSet>(4);
  allowed->add(1);
  allowed->add(3);
  const double sum = std::exp(1.0) + std::exp(-1.0);
  for (const float temperature : {0.0f, 0.5f}) {
    SamplingParams params;
    params.temperature = temperature;
    Sampler sampler(params, 4, {}, 3);
    sampler.allow(allowed);
    const Sampled sampled = sampler.query().full_row
                                ? sampler.draw_full(row)
                                : sampler.draw(answer(row, sampler.query()).view()).value();
    EXPECT_TRUE(allowed->has(sampled.id));
    EXPECT_NEAR(sampled.logprobs->logprob, row[sampled.id] - std::log(sum), 1e-5);
    EXPECT_EQ(sampled.logprobs->top_ids, (std::vector<int32_t>{1, 3}));
  }
  Sampler strict(SamplingParams{}, 4, {}, std::nullopt);
  strict.allow(allowed);
  const std::vector<int32_t> ids = {0, 1};  // 0 was not asked for
  const std::vector<float> logits = {5, 1};
  EXPECT_THROW(strict.draw({ids, logits, {}, 5.1}), FrontError);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> row = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  std::vector<int> counts(3);
  constexpr int kDraws = 30000;
  for (int seed = 0; seed < kDraws; ++seed) {
    SamplingParams params;
    params.seed = seed;
    Sampler sampler(params, 3, {}, std::nullopt);
    ++counts[sampler.draw_full(row).id];
  }
  EXPECT_NEAR(counts[0], 0.5 * kDraws, 400);
  EXPECT_NEAR(counts[1], 0.3 * kDraws, 400);
  EXPECT_NEAR(counts[2], 0.2 * kDraws, 400);
}

// The boundary between two ids lies within the error of a worker's logsumexp: the sampler must not trust it.
TEST(Sampler, AnInexactLogsumexpNeverChangesTheId) {
  int decided = 0;
  for (int seed = 0; seed < 200; ++seed) {
    SamplingParams params;
    params.seed = seed;
    const double u = uniform_at(seed, 0);
    if (u < 0.55) continue;
    for (double delta : {-1e-2, -1e-11, 1e-11, 1e-2}) {
      // The third weight makes up for the rounding of the second logit.
      const double p = std::min(u * (1 + delta), 0.9999);
      const auto second = static_cast<float>(std::log(1 / p - 1 - 1e-6));
      const double third = 1 / p - 1 - std::exp(double{second});
      const std::vector<float> row = {0.0f, second, static_cast<float>(std::log(third))};
      Sampler sampler(params, 3, {}, std::nullopt, {1, 1, 1, 0});
      Reply reply = answer(row, sampler.query());
      PartialLogits view = reply.view();
      view.logsumexp += delta > 0 ? 4e-11 : -8e-11;
      const auto sampled = sampler.draw(view);
      decided += sampled.has_value();
      if (!sampled) continue;
      EXPECT_EQ(sampled->id, sampler.draw_full(row).id) << "seed " << seed << " delta " << delta;
    }
  }
  EXPECT_GT(decided, 20);
}

TEST(Sampler, UniformNumbersAreFixedForEver) {
  EXPECT_EQ(uniform_at(0, 0), uniform_at(0, 0));
  EXPECT_NE(uniform_at(0, 0), uniform_at(0, 1));
  EXPECT_NE(uniform_at(0, 1), uniform_at(1, 0));
  // Computed with Python's integers: mix(mix(seed + gamma) + (n + 1) gamma) >> 11, over 2^53.
  EXPECT_EQ(uniform_at(0, 0), 0x1.4e0dba5e9a32fp-1);
  EXPECT_EQ(uniform_at(42, 7), 0x1.782d47a99890cp-1);
  EXPECT_EQ(uniform_at(~0ull, 1000), 0x1.15943cc274da0p-5);
}

TEST(Sampler, GreedyAsksForOneIdAndBreaksTiesByLowestId) {
  SamplingParams params;
  params.temperature = 0;
  Sampler sampler(params, 4, {}, std::nullopt);
  EXPECT_EQ(sampler.query().top_k, 1);
  EXPECT_TRUE(sampler.query().extra_ids.empty());
  const std::vector<float> row = {1, 3, 3, 2};
  EXPECT_EQ(sampler.draw(answer(row, sampler.query()).view())->id, 1);
}

TEST(Sampler, AnIdBiasedIntoTheLeadIsFoundOutsideTheBest) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{90, 50.0f}};
  Sampler sampler(params, 100, {}, std::nullopt);
  std::vector<float> row(100);
  for (int i = 0; i < 100; ++i) row[i] = static_cast<float>(-i) / 10;
  EXPECT_EQ(sampler.draw(answer(row, sampler.query()).view())->id, 90);
}

TEST(Sampler, AllBestPenalisedAsksForTheRow) {
  SamplingParams params;
  params.repetition_penalty = 3.0f;
  params.top_k = 2;
  std::vector<int32_t> prompt(90);
  for (int i = 0; i < 90; ++i) prompt[i] = i;
  Sampler sampler(params, 100, prompt, std::nullopt);
  std::vector<float> row(100);
  for (int i = 0; i < 100; ++i) row[i] = i < 90 ? 3.0f + static_cast<float>(90 - i) / 1000 : 2.9f;
  EXPECT_FALSE(sampler.draw(answer(row, sampler.query()).view()));
  EXPECT_GE(sampler.draw_full(row).id, 90);
}

TEST(Sampler, FewDrawsNeedTheFullRow) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 3.0f);
  constexpr int32_t kVocab = 20000;
  SamplingParams params;
  params.seed = 3;
  Sampler sampler(params, kVocab, {}, std::nullopt);
  std::vector<float> row(kVocab);
  for (float& logit : row) logit = normal(random);
  int late_fetches = 0;
  for (int step = 0; step < 400; ++step) {
    std::shuffle(row.begin(), row.end(), random);
    auto sampled = sampler.draw(answer(row, sampler.query()).view());
    if (!sampled) {
      sampled = sampler.draw_full(row);
      late_fetches += step >= 100;
    }
    sampler.accept(sampled->id);
  }
  EXPECT_LT(late_fetches, 300 / 20);
  EXPECT_GT(sampler.query().top_k, 1024);
}

// Draws go on falling outside the best: how many ids are asked for in the end.
int32_t most_asked(int32_t vocab) {
  Sampler sampler({}, vocab, {}, std::nullopt);
  const std::vector<float> row(vocab);
  for (int step = 0; step < 8; ++step) sampler.accept(sampler.draw_full(row).id);
  return sampler.query().top_k;
}

TEST(Sampler, AsksForMoreIdsWhereRowsAreLong) {
  EXPECT_EQ(most_asked(2000), 2000);
  EXPECT_EQ(most_asked(49152), 4096);
  EXPECT_EQ(most_asked(262144), 16384);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  const std::vector<float> row = {2, 1, 0, -1};
  double sum = 0;
  for (float logit : row) sum += std::exp(double{logit});
  for (float temperature : {0.0f, 1.0f, 0.5f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.logit_bias = {{3, 100.0f}};
    Sampler sampler(params, 4, {}, 2);
    EXPECT_EQ(sampler.query().full_row, temperature == 0.5f);
    const Sampled sampled = sampler.query().full_row
                                ? sampler.draw_full(row)
                                : sampler.draw(answer(row, sampler.query()).view()).value();
    EXPECT_EQ(sampled.id, 3);
    EXPECT_NEAR(sampled.logprobs->logprob, -1 - std::log(sum), 1e-5);
    EXPECT_EQ(sampled.logprobs->top_ids, (std::vector<int32_t>{0, 1}));
    EXPECT_NEAR(sampled.logprobs->top_logprobs[1], 1 - std::log(sum), 1e-5);
  }
}

TEST(Sampler, ForbiddingEveryIdIsTheClientsError) {
  SamplingParams params;
  params.logit_bias = {{0, kNever}, {1, kNever}};
  Sampler sampler(params, 2, {}, std::nullopt);
  const std::vector<float> row = {1, 2};
  EXPECT_THROW(sampler.draw_full(row), FrontError);
  EXPECT_THROW(sampler.draw(answer(row, sampler.query()).view()), FrontError);
}

TEST(Sampler, RepliesThatContradictTheQueryAreRefused) {
  SamplingParams params;
  Sampler sampler(params, 4, {}, std::nullopt);
  const Reply good = answer({4, 3, 2, 1}, sampler.query());
  EXPECT_TRUE(sampler.draw(good.view()));
  Reply short_reply = good;
  short_reply.top_ids.pop_back();
  EXPECT_THROW(sampler.draw(short_reply.view()), FrontError);
  Reply nan = good;
  nan.top_logits[0] = std::nanf("");
  EXPECT_THROW(sampler.draw(nan.view()), FrontError);
  Reply unsorted = good;
  std::swap(unsorted.top_logits[1], unsorted.top_logits[2]);
  EXPECT_THROW(sampler.draw(unsorted.view()), FrontError);
  Reply outside = good;
  outside.top_ids[3] = 4;
  EXPECT_THROW(sampler.draw(outside.view()), FrontError);
  EXPECT_THROW(sampler.draw_full(std::vector<float>{1, 2, 3}), FrontError);
  EXPECT_THROW(sampler.draw_full(std::vector<float>{1, 2, 3, std::nanf("")}), FrontError);
}

}  // namespace
}  // namespace ete::front
