// Numbers that no float holds never come to validate(): they are refused in its words all the same.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>

#include "services/front/front_error.h"
#include "services/front/http/openai_request.h"
#include "services/front/tokenizer/byte_tokenizer.h"
#include "services/front/validation.h"

namespace ete::front {
namespace {

// Of a refusal: what is expected instead.
template <typename Call>
std::string expected_by(Call call) {
  try {
    call();
  } catch (const FrontError& error) {
    const std::string what = error.what(), before = "; expected ";
    return what.substr(what.find(before) + before.size());
  }
  return "accepted";
}

std::string expected_of_body(const std::string& field, const std::string& value) {
  return expected_by([&] { parse_completion(R"({"prompt": "x", ")" + field + "\": " + value + "}"); });
}

std::string expected_of_bias(const std::string& value) {
  return expected_by([&] { parse_completion(R"({"prompt": "x", "logit_bias": {"5": )" + value + "}}"); });
}

// With all that the field needs beside it.
std::string expected_by_validate(const google::protobuf::FieldDescriptor* field) {
  ServedModel model;
  model.vocab_size = 256;
  model.context = 128;
  model.tokenizer = make_byte_tokenizer();
  v1::GenerateRequest request;
  request.set_text("x");
  v1::Sampling& sampling = *request.mutable_sampling();
  sampling.set_temperature(1);
  sampling.set_xtc_probability(field->name() == "xtc_threshold" ? 0.5f : 0.0f);
  sampling.set_dry_multiplier(1);
  if (field->name() == "mirostat_eta") sampling.set_mirostat_tau(1);
  if (field->name() == "dynamic_temperature_exponent") sampling.set_dynamic_temperature_range(0.5f);
  sampling.GetReflection()->SetFloat(&sampling, field, std::numeric_limits<float>::infinity());
  return expected_by([&] { validate(request, model); });
}

TEST(NumberRanges, AreThoseOfValidate) {
  int fields = 0;
  const auto* type = v1::Sampling::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const auto* field = type->field(i);
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_FLOAT || field->is_repeated())
      continue;
    ++fields;
    const std::string name(field->name());
    const std::string expected =
        name == "dynamic_temperature_range" ? "a number in [0, temperature]" : expected_by_validate(field);
    for (const char* value : {"1e39", "-1e39", "1e400", "-1e400"}) {
      EXPECT_EQ(expected_of_body(name, value), expected) << name << ": " << value;
    }
  }
  EXPECT_EQ(fields, 15);
}

TEST(NumberRanges, OfOtherNumbers) {
  for (const char* value : {"1e39", "-1e400"}) {
    EXPECT_EQ(expected_of_bias(value), "a number in [-3.40282e+38, 3.40282e+38]") << value;
  }
  EXPECT_EQ(expected_of_body("max_tokens", "1e400"), "a number nearer to 0");
}

}  // namespace
}  // namespace ete::front
