#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    EXPECT_EQ(image.positions, prompt + 5);
    EXPECT_EQ(std::ssize(image.ids), prompt + 6);
    const std::vector<int32_t> next = joined(fed, joined({9}, ids(30, 5)));
    const Rows due = second_turn(*engine, "", next, prompt + 5);
    const auto other = load(options());
    EXPECT_EQ(put(*other, "mine", std::move(image)), prompt + 5);
    EXPECT_EQ(first_different(second_turn(*other, "mine", next, prompt + 5), due), -1);
    second_turn(*other, "", ids(40, 8), 0);
  }
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
