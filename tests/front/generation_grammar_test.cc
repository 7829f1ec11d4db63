#include "tests/front/generation_dialogue.h"

namespace ete::front {
namespace {

GenerationRequest constrained(const std::string& gbnf, float temperature = 1) {
  GenerationRequest request = request_for("p");
  v1::Grammar grammar;
  grammar.set_gbnf(gbnf);
  request.rules = read_grammar(grammar);
  request.sampling.temperature = temperature;
  return request;
}

TEST(GenerationGrammar, TextIsOfTheGrammarAndEndsWhenNothingMayFollow) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GenerationRequest request = constrained("root ::= \"{\" [0-9]{2,4} (\",\" [0-9])* \"}\"");
    request.sampling.seed = seed;
    Dialogue run(request);
    run.pump();
    ASSERT_TRUE(run.sink.ended);
    ASSERT_FALSE(run.sink.error) << run.sink.error->what();
    const std::string text = run.sink.text();
    EXPECT_TRUE(text.starts_with("{") && text.find_first_not_of("{}0123456789,") == std::string::npos)
        << text;
    if (run.sink.finish().reason() == v1::FINISH_REASON_GRAMMAR) {
      EXPECT_TRUE(text.ends_with("}")) << text;
      EXPECT_EQ(run.sink.finish().generated_tokens(), static_cast<int64_t>(text.size()));
    } else {
      EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_CONTEXT_FULL);
    }
    EXPECT_TRUE(run.session.finished);
  }
}

TEST(GenerationGrammar, EndOfTextComesWhereTheTextIsCompleteOnly) {
  // The model wants to end at once.
  ToyModel model;
  model.favourite = [](const auto&) { return 257; };
  Dialogue run(constrained("root ::= \"ab\" \"c\"*", 0), model);
  run.pump();
  EXPECT_EQ(run.sink.text(), "ab");
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(run.sink.ids(), (std::vector<int32_t>{'a', 'b', 257}));
}

TEST(GenerationGrammar, IgnoringEndOfTextGoesOnToTheLimit) {
  GenerationRequest request = constrained("root ::= \"c\"*", 0);
  request.ignore_eos = true;
  request.max_tokens = 5;
  Dialogue run(request);
  run.pump();
  EXPECT_EQ(run.sink.text(), "ccccc");
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_LENGTH);
}

TEST(GenerationGrammar, LimitAndStopStringLeaveTheBeginningOfAText) {
  GenerationRequest request = constrained("root ::= \"abcdefgh\"", 0);
  request.max_tokens = 3;
  Dialogue limited(request);
  limited.pump();
  EXPECT_EQ(limited.sink.text(), "abc");
  EXPECT_EQ(limited.sink.finish().reason(), v1::FINISH_REASON_LENGTH);
  request.max_tokens = 8;
  Dialogue complete(request);
  complete.pump();
  EXPECT_EQ(complete.sink.finish().reason(), v1::FINISH_REASON_GRAMMAR);
  request.stops = {"de"};
  Dialogue stopped(request);
  stopped.pump();
  EXPECT_EQ(stopped.sink.text(), "abc");
  EXPECT_EQ(stopped.sink.finish().reason(), v1::FINISH_REASON_STOP_STRING);
}

TEST(GenerationGrammar, HoldsBehindTheMarkerWithPrefixAndSuffix) {
  v1::Grammar grammar;
  grammar.set_gbnf("root ::= [0-9]{2}");
  grammar.set_after("z");
  grammar.set_prefix("(");
  grammar.set_suffix(")");
  int ended = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GenerationRequest request = request_for("p");
    request.rules = read_grammar(grammar);
    request.sampling.seed = seed;
    Dialogue run(request);
    run.pump();
    ASSERT_FALSE(run.sink.error);
    const std::string text = run.sink.text();
    const size_t marker = text.find('z');
    if (run.sink.finish().reason() != v1::FINISH_REASON_GRAMMAR) continue;
    ++ended;
    const std::string rest = text.substr(text.find('(', marker));
    EXPECT_EQ(rest.size(), 4u) << text;
    EXPECT_EQ(text.substr(marker + 1, text.find('(') - marker - 1).find_first_not_of('\n'),
              std::string::npos);
  }
  EXPECT_GT(ended, 0);
}

TEST(GenerationGrammar, AnEmptyTextNeedsNoPass) {
  Dialogue run(constrained("root ::= \"\""));
  EXPECT_TRUE(run.session.requests.empty());
  EXPECT_TRUE(run.session.finished);
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_GRAMMAR);
}

TEST(GenerationGrammar, ATextThatNoTokenContinuesIsRefused) {
  ToyModel model;
  GenerationRequest request = constrained("root ::= \"ab\"", 0);
  request.rules.allowed_ids = {'a', 'x'};
  Dialogue run(request, model);
  run.pump();
  ASSERT_TRUE(run.sink.error);
  EXPECT_EQ(run.sink.error->field(), "sampling.allowed_token_ids");
}

TEST(GenerationGrammar, SpacesOfTokensBelongToTheText) {
  // "_a" has a space that is not shown at a text's beginning, and that the grammar must see.
  GenerationRequest request = constrained("root ::= \" a\"", 0);
  request.prompt_ids = {1};
  Dialogue run(request, ToyModel{}, spaced_vocabulary());
  run.pump();
  EXPECT_EQ(run.sink.text(), " a");
}

TEST(GenerationRules, AllowedIdsAndMinTokens) {
  ToyModel model;
  model.favourite = [](const auto&) { return 257; };
  GenerationRequest request = request_for("p");
  request.sampling.temperature = 0;
  request.rules.min_tokens = 3;
  Dialogue least(request, model);
  least.pump();
  EXPECT_EQ(least.sink.ids().size(), 4u);
  EXPECT_EQ(least.sink.finish().reason(), v1::FINISH_REASON_STOP_TOKEN);
  request.rules.min_tokens = 0;
  request.rules.allowed_ids = {'x', 'y'};
  request.max_tokens = 9;
  request.sampling.temperature = 1;
  Dialogue listed(request, model);
  listed.pump();
  EXPECT_EQ(listed.sink.text().find_first_not_of("xy"), std::string::npos);
  EXPECT_EQ(listed.sink.text().size(), 9u);
}

}  // namespace
}  // namespace ete::front
