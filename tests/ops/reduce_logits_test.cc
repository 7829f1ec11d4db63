#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "tests/ops/ops_fixture.h"

namespace ete {
namespace {

using testing::HasSubstr;

bool allowed_by(const std::vector<uint64_t>& mask, int64_t id) {
  return mask.empty() || (mask[static_cast<size_t>(id / 64)] >> (id % 64) & 1) != 0;
}

// A mask in which each id is allowed with probability `share`.
std::vector<uint64_t> random_mask(int64_t vocab, double share, uint32_t seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution allow(share);
  std::vector<uint64_t> mask(static_cast<size_t>((vocab + 63) / 64));
  for (int64_t id = 0; id < vocab; ++id) {
    if (allow(random)) mask[static_cast<size_t>(id / 64)] |= uint64_t{1} << (id % 64);
  }
  return mask;
}

class ReduceLogitsTest : public OpsTest {
 protected:
  std::vector<LogitsRow> reduce(Runner& run, const std::vector<float>& logits, int64_t vocab,
                                const std::vector<LogitsWanted>& wanted) {
    std::vector<LogitsRow> rows(wanted.size());
    std::vector<LogitsRow*> results;
    for (LogitsRow& row : rows) results.push_back(&row);
    const Buffer there = run.upload(logits);
    const auto stride = static_cast<int64_t>(logits.size() / wanted.size());
    run.ops().reduce_logits(run.stream(), there.as<float>(), stride, vocab, wanted, results);
    run.finish();
    return rows;
  }

  void expect_reference(const float* logits, int64_t vocab, const LogitsWanted& wanted,
                        const LogitsRow& row) {
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocab; ++id) {
      if (allowed_by(wanted.allowed_mask, id)) ids.push_back(id);
    }
    double max = -INFINITY;
    for (const int32_t id : ids) max = std::max<double>(max, logits[id]);
    double sum = 0;
    for (const int32_t id : ids) sum += std::exp((logits[id] - max) / wanted.temperature);
    EXPECT_EQ(row.max_logit, max);
    const double logsumexp = max / wanted.temperature + std::log(sum);
    EXPECT_NEAR(row.logsumexp, logsumexp, 1e-12 * (1 + std::abs(logsumexp)));
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    ids.resize(std::min(ids.size(), static_cast<size_t>(wanted.top_k)));
    ASSERT_EQ(row.top_ids, ids);
    ASSERT_EQ(row.top_logits.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(row.top_logits[i], logits[ids[i]]);
    ASSERT_EQ(row.extra_logits.size(), wanted.extra_ids.size());
    for (size_t i = 0; i < wanted.extra_ids.size(); ++i)
      EXPECT_EQ(row.extra_logits[i], logits[wanted.extra_ids[i]]);
    ASSERT_EQ(row.full.size(), wanted.full_row ? static_cast<size_t>(vocab) : 0u);
    EXPECT_TRUE(std::equal(row.full.begin(), row.full.end(), logits));
  }

  // In place of a result.
  static void expect_row_error(const LogitsRow& row, ErrorCode code, const std::string& part) {
    ASSERT_TRUE(row.error);
    EXPECT_EQ(row.error->code(), code);
    EXPECT_THAT(row.error->what(), HasSubstr(part));
    EXPECT_TRUE(row.top_ids.empty());
    EXPECT_TRUE(row.full.empty());
  }

  void expect_error(const std::vector<float>& logits, int64_t vocab, const std::vector<LogitsWanted>& wanted,
                    ErrorCode code, const std::string& part) {
    Runner run = runner();
    try {
      reduce(run, logits, vocab, wanted);
      FAIL() << "no exception; expected " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
};

TEST_P(ReduceLogitsTest, MatchesFloat64) {
  Runner run = runner();
  for (const int64_t vocab : {1, 7, 8, 65, 1000, 16384, 16385, 49152}) {
    for (const int64_t k : {0, 1, 5, 1024, 60000}) {
      SCOPED_TRACE(testing::Message() << "vocab " << vocab << ", k " << k);
      const std::vector<float> logits = random_floats(static_cast<size_t>(vocab), 1, 4.0f);
      LogitsWanted wanted{.top_k = std::min(k, vocab), .temperature = 0.7f, .extra_ids = {0}};
      wanted.full_row = k == 5;
      expect_reference(logits.data(), vocab, wanted, reduce(run, logits, vocab, {wanted})[0]);
    }
  }
}

TEST_P(ReduceLogitsTest, MatchesFloat64OverALargeVocabulary) {
  Runner run = runner();
  constexpr int64_t kVocab = 248320;
  const std::vector<float> logits = random_floats(kVocab, 2, 3.0f);
  const LogitsWanted wanted{.top_k = 1024, .extra_ids = {248319, 5}};
  expect_reference(logits.data(), kVocab, wanted, reduce(run, logits, kVocab, {wanted})[0]);
}

TEST_P(ReduceLogitsTest, TiesGoToTheLowestId) {
  Runner run = runner();
  constexpr int64_t kVocab = 20000;
  for (const float step : {0.5f, 4.0f, 1000.0f}) {  // few levels, fewer, one
    std::vector<float> logits = random_floats(kVocab, 3, 3.0f);
    for (float& logit : logits) logit = std::round(logit / step) * step;  // yields -0 beside 0
    for (const int64_t k : {1, 50, 5000}) {
      const LogitsWanted wanted{.top_k = k};
      expect_reference(logits.data(), kVocab, wanted, reduce(run, logits, kVocab, {wanted})[0]);
    }
  }
}

TEST_P(ReduceLogitsTest, TheMaskComesFirst) {
  Runner run = runner();
  constexpr int64_t kVocab = 20011;
  const std::vector<float> logits = random_floats(kVocab, 4, 5.0f);
  for (const double share : {0.9, 0.1, 0.0005}) {
    for (const int64_t k : {1, 40, 3000}) {
      LogitsWanted wanted{.top_k = k, .temperature = 1.3f, .extra_ids = {3, 20010}};
      wanted.allowed_mask = random_mask(kVocab, share, 5);
      wanted.full_row = true;
      expect_reference(logits.data(), kVocab, wanted, reduce(run, logits, kVocab, {wanted})[0]);
    }
  }
}

TEST_P(ReduceLogitsTest, BitsOfTheMaskPastTheVocabularyAreIgnored) {
  const std::vector<float> logits = random_floats(100, 6);
  Runner run = runner();
  LogitsWanted wanted{.top_k = 100};
  wanted.allowed_mask = {uint64_t{1} << 7, ~uint64_t{0} << 36};
  EXPECT_EQ(reduce(run, logits, 100, {wanted})[0].top_ids, std::vector<int32_t>{7});
  wanted.allowed_mask[0] = 0;
  expect_row_error(reduce(run, logits, 100, {wanted})[0], ErrorCode::invalid_argument,
                   "allowed_mask: allows no id");
}

TEST_P(ReduceLogitsTest, MinusInfinityIsALogit) {
  Runner run = runner();
  std::vector<float> logits(500, -INFINITY);
  const LogitsRow none = reduce(run, logits, 500, {{.top_k = 3}})[0];
  EXPECT_EQ(none.top_ids, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(none.logsumexp, -INFINITY);
  logits[400] = 2.0f;
  const LogitsRow one = reduce(run, logits, 500, {{.top_k = 3}})[0];
  EXPECT_EQ(one.top_ids, (std::vector<int32_t>{400, 0, 1}));
  EXPECT_EQ(one.logsumexp, 2.0f);
}

TEST_P(ReduceLogitsTest, ExtremeTemperatures) {
  Runner run = runner();
  const std::vector<float> logits = random_floats(3000, 7, 10.0f);
  for (const float temperature : {1e-4f, 0.01f, 100.0f, 1e10f}) {
    const LogitsWanted wanted{.top_k = 2, .temperature = temperature};
    expect_reference(logits.data(), 3000, wanted, reduce(run, logits, 3000, {wanted})[0]);
  }
}

TEST_P(ReduceLogitsTest, OtherRowsAndThreadsChangeNoBit) {
  constexpr int64_t kVocab = 40000;
  const std::vector<float> logits = random_floats(3 * kVocab, 8, 3.0f);
  const LogitsWanted wanted{.top_k = 20, .temperature = 0.9f};
  Runner one = runner(1);
  const auto alone = reduce(one, {logits.begin() + kVocab, logits.begin() + 2 * kVocab}, kVocab, {wanted})[0];
  for (const int threads : {1, 2, 3}) {
    Runner run = runner(threads);
    const std::vector<LogitsRow> rows = reduce(run, logits, kVocab, {{.top_k = 1}, wanted, {.top_k = 4000}});
    EXPECT_EQ(std::bit_cast<uint64_t>(rows[1].logsumexp), std::bit_cast<uint64_t>(alone.logsumexp));
    EXPECT_EQ(rows[1].top_ids, alone.top_ids);
  }
}

TEST_P(ReduceLogitsTest, NotANumberSparesTheOtherRows) {
  constexpr int64_t kVocab = 18000;
  std::vector<float> logits = random_floats(3 * kVocab, 9);
  for (const float bad : {std::nanf(""), INFINITY}) {
    logits[kVocab + 17990] = bad;
    const std::vector<LogitsWanted> wanted(3, LogitsWanted{.top_k = 4});
    Runner run = runner();
    std::vector<LogitsRow> rows(3);
    const Buffer there = run.upload(logits);
    run.ops().reduce_logits(run.stream(), there.as<float>(), kVocab, kVocab, wanted,
                            {&rows[0], &rows[1], &rows[2]});
    run.finish();
    expect_row_error(rows[1], ErrorCode::internal, "id 17990 is");
    for (const size_t row : {size_t{0}, size_t{2}}) {
      EXPECT_FALSE(rows[row].error);
      expect_reference(logits.data() + row * kVocab, kVocab, wanted[row], rows[row]);
    }
  }
}

TEST_P(ReduceLogitsTest, BadRequestsAreRefusedByName) {
  const std::vector<float> logits = random_floats(200, 10);
  const auto refused = [&](const LogitsWanted& wanted, const std::string& part) {
    expect_error(logits, 100, {{}, wanted}, ErrorCode::invalid_argument, "logits row 1: " + part);
  };
  refused({.top_k = 101}, "top_k: 101; accepted: 0 to 100");
  refused({.top_k = -1}, "top_k: -1");
  refused({.temperature = 0.0f}, "temperature: 0");
  refused({.temperature = std::nanf("")}, "temperature: nan");
  refused({.extra_ids = {4, 100}}, "extra_ids: 100; accepted: 0 to 99");
  refused({.extra_ids = {-1}}, "extra_ids: -1");
  refused({.allowed_mask = {1}}, "allowed_mask: 1 words; accepted: 0 or 2");
  // Found while the row is reduced.
  Runner run = runner();
  expect_row_error(reduce(run, logits, 100, {{}, {.allowed_mask = {0, 0}}})[1], ErrorCode::invalid_argument,
                   "allowed_mask: allows no id");
}

INSTANTIATE_TEST_SUITE_P(Devices, ReduceLogitsTest, testing::ValuesIn(kOpsParams), name_of_param);

}  // namespace
}  // namespace ete
