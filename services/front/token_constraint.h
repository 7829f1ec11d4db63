#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ete/v1/generation.pb.h"
#include "services/front/grammar/grammar_matcher.h"
#include "services/front/served_model.h"

namespace ete::front {

// What a request says about the ids that may be drawn, validated.
struct OutputRules {
  std::shared_ptr<const Grammar> grammar;  // null: none
  std::string grammar_field;               // of the request, for messages
  std::vector<int32_t> allowed_ids;        // empty: all
  int64_t min_tokens = 0;
};

// FrontError(invalid_argument): names what is wrong in the grammar.
OutputRules read_grammar(const v1::Grammar& grammar);

// The ids that may be drawn next in one request. Those that end the generation may be when the grammar's text
// is complete, and not before min_tokens. Not thread-safe.
class TokenConstraint {
 public:
  // ending: the ids that end the generation.
  TokenConstraint(std::shared_ptr<const ServedModel> model, const OutputRules& rules,
                  std::vector<int32_t> ending);

  bool has_grammar() const { return matcher_.has_value(); }

  // Null: all of them. FrontError(invalid_argument): none; (resource_exhausted): the grammar is past a bound.
  std::shared_ptr<const TokenSet> allowed() const { return allowed_; }
  // The text is complete, and the grammar lets nothing follow.
  bool over() const { return over_; }
  // The id was drawn and does not end the generation.
  void accept(int32_t id);

 private:
  void find_allowed();

  const std::shared_ptr<const ServedModel> model_;
  const std::vector<int32_t> ending_;
  const int64_t min_tokens_;
  std::optional<TokenSet> listed_;  // allowed_ids
  std::optional<GrammarMatcher> matcher_;
  int64_t generated_ = 0;
  bool over_ = false;
  std::shared_ptr<const TokenSet> allowed_;
};

}  // namespace ete::front
