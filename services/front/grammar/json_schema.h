#pragma once

#include <string_view>

#include "services/front/grammar/grammar_builder.h"

namespace ete::front {

constexpr size_t kMostSchemaBytes = size_t{256} << 10;

// JSON texts that a JSON Schema document (draft 2020-12) accepts: not always all of them, but no other.
// docs/grammars.md lists the keywords; any other is refused by its name and place. Members stand in the order
// of "properties". builder: gets the rules. Returns the whole's.
GrammarBuilder::Rule read_json_schema(std::string_view text, GrammarBuilder& builder);

// Any JSON object.
GrammarBuilder::Rule any_json_object(GrammarBuilder& builder);

}  // namespace ete::front
