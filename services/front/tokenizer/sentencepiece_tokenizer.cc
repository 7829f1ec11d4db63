#include "services/front/tokenizer/sentencepiece_tokenizer.h"

namespace ete::front {
LeadingSpace leading_space_rule(const SentencePieceProto& proto) {
  if (proto.remove_extra_whitespaces) return LeadingSpace::strip_each_piece;
  return proto.add_dummy_prefix ? LeadingSpace::strip_first_piece : LeadingSpace::keep;
}

}  // namespace ete::front
