#include "services/front/token_constraint.h"

#include <utility>

#include "services/front/front_error.h"
#include "services/front/grammar/gbnf.h"
#include "services/front/grammar/json_schema.h"

namespace ete::front {
namespace {

constexpr size_t kMostAffixBytes = 1'024;
constexpr size_t kMostMarkerBytes = 64;

std::string checked_affix(const std::string& field, const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  throw FrontError(FrontErrorCode::invalid_argument,
                   field + ": " + std::to_string(text.size()) + " bytes is not accepted; expected at most " +
                       std::to_string(most),
                   field);
}

// prefix and suffix around the grammar's text, and what stands before all of it.
GrammarBuilder::Rule with_affixes(const v1::Grammar& grammar, GrammarBuilder::Rule inside,
                                  GrammarBuilder& builder) {
  const std::string prefix = checked_affix("grammar.prefix", grammar.prefix(), kMostAffixBytes);
  const std::string suffix = checked_affix("grammar.suffix", grammar.suffix(), kMostAffixBytes);
  const std::string after = checked_affix("grammar.after", grammar.after(), kMostMarkerBytes);
  std::vector<GrammarBuilder::Part> parts;
  if (!after.empty()) parts = {builder.through(after), builder.repeat(builder.literal("\n"), 0, 2)};
  parts.insert(parts.end(), {builder.literal(prefix), builder.call(inside), builder.literal(suffix)});
  const GrammarBuilder::Rule whole = builder.declare("the whole text");
  builder.define(whole, builder.sequence(parts));
  return whole;
}

}  // namespace

OutputRules read_grammar(const v1::Grammar& grammar) {
  OutputRules rules;
  const auto compile = [&](const std::string& field, const auto& read) {
    rules.grammar_field = "grammar." + field;
    GrammarBuilder builder(rules.grammar_field);
    const GrammarBuilder::Rule inside = read(builder);
    rules.grammar = std::make_shared<const Grammar>(builder.finish(with_affixes(grammar, inside, builder)));
  };
  switch (grammar.language_case()) {
    case v1::Grammar::kGbnf:
      compile("gbnf", [&](GrammarBuilder& builder) { return read_gbnf(grammar.gbnf(), builder); });
      break;
    case v1::Grammar::kJsonSchema:
      compile("json_schema",
              [&](GrammarBuilder& builder) { return read_json_schema(grammar.json_schema(), builder); });
      break;
    case v1::Grammar::kJsonObject:
      if (!grammar.json_object()) {
        throw FrontError(FrontErrorCode::invalid_argument,
                         "grammar.json_object: false is not accepted; expected true", "grammar.json_object");
      }
      compile("json_object", [](GrammarBuilder& builder) { return any_json_object(builder); });
      break;
    case v1::Grammar::LANGUAGE_NOT_SET:
      throw FrontError(FrontErrorCode::invalid_argument,
                       "grammar: nothing is not accepted; expected gbnf, json_schema or json_object",
                       "grammar");
  }
  return rules;
}

TokenConstraint::TokenConstraint(std::shared_ptr<const ServedModel> model, const OutputRules& rules,
                                 std::vector<int32_t> ending)
    : model_(std::move(model)), ending_(std::move(ending)), min_tokens_(rules.min_tokens) {
  if (!rules.allowed_ids.empty()) {
    listed_.emplace(model_->vocab_size);
    for (const int32_t id : rules.allowed_ids) listed_->add(id);
  }
  if (rules.grammar != nullptr) {
    const TokenTrie& trie = model_->trie->of(model_->tokenizer->table(), model_->vocab_size);
    matcher_.emplace(rules.grammar, trie, model_->vocab_size, rules.grammar_field);
  }
  find_allowed();
}

void TokenConstraint::find_allowed() {
  const bool may_end = generated_ >= min_tokens_ && (!matcher_ || matcher_->complete());
  if (!matcher_ && !listed_ && may_end) {
    allowed_ = nullptr;
    return;
  }
  auto set = std::make_shared<TokenSet>(matcher_ ? matcher_->allowed() : TokenSet(model_->vocab_size, true));
  for (const int32_t id : ending_) set->remove(id);
  over_ = matcher_ && matcher_->complete() && set->empty();
  for (const int32_t id : ending_) {
    if (may_end) set->add(id);
  }
  if (listed_) set->keep(*listed_);
  if (set->empty() && !over_) {
    const std::string field = listed_ ? "sampling.allowed_token_ids" : "grammar";
    throw FrontError(FrontErrorCode::invalid_argument,
                     field + ": none of the ids that it allows can follow the text so far", field);
  }
  allowed_ = std::move(set);
}

void TokenConstraint::accept(int32_t id) {
  ++generated_;
  if (matcher_ && !matcher_->advance(model_->tokenizer->table().bytes(id))) {
    throw FrontError(FrontErrorCode::internal,
                     "id " + std::to_string(id) + " was drawn and does not fit the grammar");
  }
  find_allowed();
}

}  // namespace ete::front
