#include "services/front/no_tokenizer.h"

#include "services/front/front_error.h"

namespace ete::front {
namespace {

class NoTokenizer : public Tokenizer {
 public:
  NoTokenizer() : Tokenizer({}, {}) {}

 protected:
  void encode_watched(std::string_view /*text*/, bool /*parse_special*/, EncodeWatch& /*watch*/,
                      std::vector<int32_t>& /*ids*/) const override {
    throw FrontError(FrontErrorCode::invalid_argument,
                     "text: the model comes without a tokenizer; give the prompt as tokens");
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_no_tokenizer() { return std::make_unique<NoTokenizer>(); }

}  // namespace ete::front
