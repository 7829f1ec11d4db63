#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>

#include "engine/runtime/engine_answer.h"
#include "tests/runtime/prompts.h"

// Sessions that leave one engine and go on in another.

namespace ete::test {
namespace {

using testing::HasSubstr;

SessionImage taken(Engine& engine, const std::string& salt, const std::vector<int32_t>& ids) {
  EngineAnswer<SessionImage> answer;
  engine.snapshot(salt, ids, answer.callback());
  return answer.wait();
}

int64_t put(Engine& engine, const std::string& salt, SessionImage image) {
  EngineAnswer<int64_t> answer;
  engine.restore(salt, std::move(image), answer.callback());
  return answer.wait();
}

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class SessionImageTest : public testing::TestWithParam<CachingCase> {
 protected:
  void SetUp() override {
    const std::string reason = why_skipped(GetParam().path);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static EngineOptions options() { return GetParam().options(); }
  // A prompt and some steps; the session is left open.
  static std::unique_ptr<BlockingSession> first_turn(Engine& engine, int64_t prompt) {
    auto session = std::make_unique<BlockingSession>(engine, open_prompt(ids(prompt)));
    int64_t length = session->opened().length;
    for (const int32_t id : ids(5, 3)) session->step(one_step(length++, {id}));
    return session;
  }
  static LogitsWanted sampled_row() {
    LogitsWanted wanted = want_full_row();
    wanted.top_k = 20;
    wanted.temperature = 0.8f;
    return wanted;
  }
  static Rows second_turn(Engine& engine, const std::string& salt, const std::vector<int32_t>& prompt,
                          int64_t reused) {
    OpenRequest open = open_prompt(prompt);
    open.cache_salt = salt;
    BlockingSession session(engine, std::move(open));
    StepResult result = session.opened();
    EXPECT_EQ(result.reused_tokens, reused);
    Rows rows;
    rows.push_back(std::move(result.rows.front().full));
    for (const int32_t id : ids(4, 7)) {
      result = session.step(one_step(result.length, {id}));
      rows.push_back(std::move(result.rows.front().full));
    }
    return rows;
  }
};

// Below one page, a whole page and more, and the ids after the last position.
TEST_P(SessionImageTest, GoesOnInAnotherEngineWithTheSameBits) {
  for (const int64_t prompt : {60, 507, 700}) {
    SCOPED_TRACE(prompt);
    const auto engine = load(options());
    const auto session = first_turn(*engine, prompt);
    const std::vector<int32_t> fed = joined(ids(prompt), ids(5, 3));
    SessionImage image = taken(*engine, "", joined(fed, {9}));
    EXPECT_EQ(image.positions, prompt + 6);
    EXPECT_EQ(std::ssize(image.ids), prompt + 6);
    const std::vector<int32_t> next = joined(fed, joined({9}, ids(30, 5)));
    const Rows due = second_turn(*engine, "", next, prompt + 6);
    const auto other = load(options());
    EXPECT_EQ(put(*other, "mine", std::move(image)), prompt + 6);
    EXPECT_EQ(first_different(second_turn(*other, "mine", next, prompt + 6), due), -1);
    second_turn(*other, "", ids(40, 8), 0);
  }
}

// The image of an open session, of one that ended, and of one that ended before its last id was computed.
TEST_P(SessionImageTest, TheNextIdTakesNoPass) {
  const std::vector<int32_t> fed = joined(ids(60), ids(5, 3));
  for (const std::string end : {"open", "drawn", "ended"}) {
    SCOPED_TRACE(end);
    const auto engine = load(options());
    auto session = first_turn(*engine, 60);
    const std::vector<float> row = session->fetch_row(64);
    std::vector<int32_t> all = fed;
    if (end != "open") session.reset();
    if (end == "drawn") all.push_back(9);
    SessionImage image = taken(*engine, "", all);
    const int64_t length = std::ssize(all);
    ASSERT_EQ(image.positions, length);
    if (end == "ended") {
      EXPECT_TRUE(image.logits.empty()) << "nobody knows them any more";
      continue;
    }
    const auto uninterrupted = load(options());
    const auto whole = first_turn(*uninterrupted, 60);
    std::vector<float> due = row;
    LogitsRow told;
    if (end == "drawn") {
      StepRequest step = one_step(length - 1, {9});
      step.wanted = sampled_row();
      told = whole->step(std::move(step)).rows.front();
      due = told.full;
    }
    EXPECT_EQ(first_different({image.logits}, {due}), -1);

    const auto other = load(options());
    EXPECT_EQ(put(*other, "mine", std::move(image)), length);
    const uint64_t passes = other->status().passes;
    OpenRequest open = open_prompt(all);
    open.cache_salt = "mine";
    open.wanted = sampled_row();
    BlockingSession restored(*other, std::move(open));
    const StepResult first = restored.opened();
    EXPECT_EQ(other->status().passes, passes);
    EXPECT_EQ(first.reused_tokens, length);
    EXPECT_EQ(first.length, length);
    ASSERT_EQ(first.rows.size(), 1u);
    EXPECT_EQ(first_different({first.rows.front().full}, {due}), -1);
    if (end == "drawn") {
      // All that a draw goes by, greedy or with a seed.
      EXPECT_EQ(first.rows.front().top_ids, told.top_ids);
      EXPECT_EQ(first.rows.front().top_logits, told.top_logits);
      EXPECT_EQ(first.rows.front().logsumexp, told.logsumexp);
    }
    EXPECT_EQ(restored.fetch_row(length - 1), due);
    const Rows next = {restored.step(one_step(length, {11})).rows.front().full};
    EXPECT_EQ(first_different(next, {whole->step(one_step(length, {11})).rows.front().full}), -1);
  }
}

// Nobody has accepted the drafts of a session's last step when it ends.
TEST_P(SessionImageTest, AcceptedDraftsAreComputedForTheImage) {
  const auto engine = load(options());
  std::vector<int32_t> all = ids(60);
  {
    BlockingSession session(*engine, open_prompt(all));
    session.opened();
    StepRequest step = one_step(60, {5, 6, 7});
    step.n_draft = 2;
    session.step(std::move(step));
  }
  all = joined(all, {5, 6, 7, 9});
  const SessionImage image = taken(*engine, "", all);
  EXPECT_EQ(image.positions, 64);
  const auto uninterrupted = load(options());
  BlockingSession session(*uninterrupted, open_prompt(ids(60)));
  int64_t length = session.opened().length;
  std::vector<float> due;
  for (const int32_t id : {5, 6, 7, 9}) due = session.step(one_step(length++, {id})).rows.front().full;
  EXPECT_EQ(first_different({image.logits}, {due}), -1);
}

// Kept rows count as what they take, and one that was restored is in a later image too.
TEST_P(SessionImageTest, LogitsOutliveASecondRestore) {
  const auto engine = load(options());
  const auto session = first_turn(*engine, 60);
  const std::vector<int32_t> fed = joined(ids(60), ids(5, 3));
  const SessionImage image = taken(*engine, "", fed);
  ASSERT_EQ(std::ssize(image.logits), engine->config().vocab_size);
  const auto other = load(options());
  SessionImage bare = image;
  bare.logits.clear();
  // What a call did is in the status once the next one is answered.
  put(*other, "bare", std::move(bare));
  EXPECT_TRUE(taken(*other, "bare", fed).logits.empty());
  const uint64_t without = other->status().prefix_bytes;
  put(*other, "mine", image);
  EXPECT_EQ(taken(*other, "mine", fed).logits, image.logits);
  EXPECT_EQ(other->status().prefix_bytes, 2 * without + image.logits.size() * sizeof(float));
}

// Where every place is taken nobody waits long for one: whoever asks may hold it.
TEST_P(SessionImageTest, WithoutAPlaceTheLastIdIsNotComputed) {
  EngineOptions one = options();
  one.max_sessions = 1;
  const auto engine = load(one);
  auto session = first_turn(*engine, 60);
  const std::vector<int32_t> all = joined(joined(ids(60), ids(5, 3)), {9});
  EXPECT_EQ(taken(*engine, "", all).positions, 65);
  EngineAnswer<SessionImage> before_its_end;
  engine->snapshot("", all, before_its_end.callback());
  session.reset();
  EXPECT_EQ(before_its_end.wait().positions, 66);
}

TEST_P(SessionImageTest, AnEngineThatStopsAnswersThoseThatWaitForAPlace) {
  struct Opened final : SessionListener {
    void on_result(StepResult /*result*/) override { done.set_value(); }
    void on_error(const Error& /*error*/) override {}
    std::promise<void> done;
  };
  EngineOptions one = options();
  one.max_sessions = 1;
  auto engine = load(one);
  const auto holds_the_place = std::make_shared<Opened>();
  engine->open(open_prompt(ids(60)), holds_the_place);
  holds_the_place->done.get_future().wait();
  EngineAnswer<SessionImage> waiting;
  engine->snapshot("", joined(ids(60), {9}), waiting.callback());
  engine.reset();
  EXPECT_EQ(waiting.wait().positions, 60);
}

TEST_P(SessionImageTest, OfUnknownIdsNothingIsThere) {
  const auto engine = load(options());
  const auto session = first_turn(*engine, 60);
  const SessionImage image = taken(*engine, "other salt", ids(60));
  EXPECT_EQ(image.positions, 0);
  EXPECT_EQ(image.ids, ids(60));
  EXPECT_EQ(image.keys_values.size() + image.state.size(), 0u);
  EXPECT_EQ(put(*engine, "mine", image), 0);
}

TEST_P(SessionImageTest, WhatDoesNotFitTheModelIsRefused) {
  const auto engine = load(options());
  const auto session = first_turn(*engine, 60);
  const SessionImage image = taken(*engine, "", ids(60));
  ASSERT_GT(image.positions, 0);
  const auto refused = [&](const auto& spoil, const std::string& text) {
    SessionImage spoilt = image;
    spoil(spoilt);
    EXPECT_THAT(refusal([&] { put(*engine, "mine", spoilt); }), HasSubstr(text));
  };
  refused([](SessionImage& i) { i.ids.clear(); }, "session: 0 ids");
  refused([](SessionImage& i) { i.ids.resize(2000, 5); }, "session: 2000 ids; accepted: 1 to 1024");
  refused([](SessionImage& i) { i.ids.front() = -1; }, "session: id -1; accepted: 0 to");
  refused([](SessionImage& i) { i.positions = 61; }, "session: 61 positions of 60 ids");
  refused([](SessionImage& i) { i.positions = -1; }, "session: -1 positions");
  refused([](SessionImage& i) { i.keys_values.pop_back(); }, "bytes of keys and values");
  refused([](SessionImage& i) { i.state += 'x'; }, "of recurrent state");
  const auto vocab = static_cast<size_t>(engine->config().vocab_size);
  refused([=](SessionImage& i) { i.logits.assign(vocab + 1, 0.0F); }, "logits after 60 positions");
  refused([=](SessionImage& i) { i.logits.assign(vocab, 0.0F), i.logits.back() = NAN; }, "NaN or infinite");
  refused([=](SessionImage& i) { i.logits.assign(vocab, -INFINITY); }, "that allow no id");
  refused([=](SessionImage& i) { i = {.ids = i.ids, .logits = std::vector<float>(vocab, 0.0F)}; },
          "logits after 0 positions");
  EngineOptions plain = options();
  plain.prefix_cache = 0;
  const auto uncached = load(plain);
  EXPECT_THAT(refusal([&] { taken(*uncached, "", ids(60)); }), HasSubstr("--prefix-cache 0"));
  EXPECT_THAT(refusal([&] { put(*uncached, "", image); }), HasSubstr("--prefix-cache 0"));
}

const CachingCase kCases[] = {{{"cpu", "auto"}, "llama_gqa"},
                              {{"cpu", "auto"}, "qwen3_5"},
                              {{"detached", "plain"}, "qwen3_5"},
                              {{"cuda:0", "plain"}, "llama_gqa"}};
INSTANTIATE_TEST_SUITE_P(Cases, SessionImageTest, testing::ValuesIn(kCases), [](const auto& info) {
  return name_of_path(info.param.path) + "_" + info.param.model;
});

}  // namespace
}  // namespace ete::test
