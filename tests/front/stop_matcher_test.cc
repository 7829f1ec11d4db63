#include "services/front/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ete::front {
namespace {

struct Outcome {
  std::string text;  // handed out so far
  std::optional<size_t> matched;
};

// By the definition: the first end of any stop; the longest stop that ends there.
Outcome naive(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t s = 0; s < stops.size(); ++s) {
      if (stops[s].size() > end || text.compare(end - stops[s].size(), stops[s].size(), stops[s]) != 0)
        continue;
      if (!best || stops[s].size() > stops[*best].size()) best = s;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  // Held back: the longest suffix that begins a stop.
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) held = std::max(held, n);
    }
  }
  return {text.substr(0, text.size() - held), std::nullopt};
}

TEST(StopMatcher, AgreesWithTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 random(7);
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    const int letters = 2 + static_cast<int>(random() % 2);
    const auto word = [&](int length) {
      std::string s;
      for (int i = 0; i < length; ++i) s += static_cast<char>('a' + random() % letters);
      return s;
    };
    std::vector<std::string> stops;
    for (uint32_t n = random() % 5; n > 0; --n) stops.push_back(word(1 + static_cast<int>(random() % 6)));
    const std::string text = word(static_cast<int>(random() % 24));
    StopMatcher matcher(stops);
    std::string given, handed_out;
    while (given.size() < text.size()) {
      const std::string piece = text.substr(given.size(), random() % 4);
      given += piece;
      handed_out += matcher.push(piece);
      const Outcome expected = naive(stops, given);
      ASSERT_EQ(handed_out, expected.text) << given;
      ASSERT_EQ(matcher.matched(), expected.matched) << given;
    }
    handed_out += matcher.flush();
    const Outcome expected = naive(stops, text);
    ASSERT_EQ(handed_out, expected.matched ? expected.text : text);
    matches += matcher.matched().has_value();
  }
  EXPECT_GT(matches, 5000);
}

TEST(StopMatcher, WithoutStopsEverythingComesBackAtOnce) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, FindsAStopThatBeginsInsideACharacter) {
  StopMatcher matcher({"\xA9!"});
  EXPECT_EQ(matcher.push("caf\xC3"), "caf\xC3");
  EXPECT_EQ(matcher.push("\xA9"), "");
  EXPECT_EQ(matcher.push("!"), "");
  EXPECT_EQ(matcher.matched(), 0u);
}

TEST(StopMatcher, LongestOfThoseThatEndTogether) {
  StopMatcher matcher({"c", "bc", "abc"});
  EXPECT_EQ(matcher.push("xabc"), "x");
  EXPECT_EQ(matcher.matched(), 2u);
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, ManyLongStopsStayLinear) {
  std::vector<std::string> stops;
  for (int i = 0; i < 64; ++i) stops.push_back(std::string(1023, 'a') + static_cast<char>(i + 128));
  StopMatcher matcher(stops);
  const std::string text(1 << 20, 'a');
  size_t handed_out = 0;
  for (size_t i = 0; i < text.size(); i += 4096) handed_out += matcher.push(text.substr(i, 4096)).size();
  EXPECT_EQ(handed_out, text.size() - 1023);
}

}  // namespace
}  // namespace ete::front
