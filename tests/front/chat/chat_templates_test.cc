#include "services/front/chat/chat_templates.h"

#include <gtest/gtest.h>

#include "services/front/front_error.h"
#include "services/front/tokenizer/tokenizer.h"

namespace ete::front {
namespace {

using Files = std::map<std::string, std::string>;

FrontError error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const FrontError& error) {
    return error;
  }
  return {FrontErrorCode::internal, "nothing was thrown"};
}

TEST(ChatTemplates, StringOfTheConfiguration) {
  const auto templates = chat_templates_from_files(
      {{"tokenizer_config.json",
        R"({"chat_template": "x", "bos_token": "<s>", "eos_token": {"content": "</s>"},
                                     "pad_token": null, "additional_special_tokens": ["<a>", {"content": "<b>"}]})"}});
  EXPECT_EQ(templates.choose(false), "x");
  EXPECT_EQ(templates.choose(true), "x");
  EXPECT_EQ(templates.special_tokens.dump(),
            R"({"bos_token":"<s>","eos_token":"</s>","additional_special_tokens":["<a>","<b>"]})");
}

TEST(ChatTemplates, NamedOnesAndTheOneForTools) {
  const std::string named = R"({"chat_template": [{"name": "default", "template": "d"},
                                                  {"name": "tool_use", "template": "t"}]})";
  const auto templates = chat_templates_from_files({{"tokenizer_config.json", named}});
  EXPECT_EQ(templates.choose(false), "d");
  EXPECT_EQ(templates.choose(true), "t");
}

TEST(ChatTemplates, AFileOfItsOwnGoesFirst) {
  const Files files = {{"tokenizer_config.json", R"({"chat_template": "x"})"}, {"chat_template.jinja", "y"}};
  EXPECT_EQ(chat_templates_from_files(files).choose(false), "y");
}

TEST(ChatTemplates, NoneIsToldToTheClient) {
  const FrontError none = error_of([] { chat_templates_from_files({}).choose(false); });
  EXPECT_EQ(none.code(), FrontErrorCode::unsupported);
  EXPECT_EQ(none.field(), "messages");
  const std::string only_rag = R"({"chat_template": [{"name": "rag", "template": "r"}]})";
  const FrontError other = error_of([&] {
    chat_templates_from_files({{"tokenizer_config.json", only_rag}}).choose(false);
  });
  EXPECT_NE(std::string(other.what()).find("(rag)"), std::string::npos) << other.what();
}

TEST(ChatTemplates, WrongTypesNameTheirField) {
  const FrontError error = error_of([] {
    chat_templates_from_files({{"tokenizer_config.json", R"({"chat_template": 5})"}});
  });
  EXPECT_EQ(error.code(), FrontErrorCode::corrupt);
  EXPECT_NE(std::string(error.what()).find("chat_template"), std::string::npos) << error.what();
}

TEST(ChatTemplates, OfAGgufFile) {
  GgufVocabulary vocabulary;
  vocabulary.model = "bytes";
  vocabulary.chat_template = "{{ bos_token }}";
  vocabulary.special_ids = {{"bos", 256}, {"eos", 257}, {"unknown", 0}, {"eot", 257}, {"padding", 99999}};
  const auto tokenizer = tokenizer_from_gguf(vocabulary);
  const auto templates = chat_templates_from_gguf(vocabulary, tokenizer->table());
  EXPECT_EQ(templates.choose(false), "{{ bos_token }}");
  EXPECT_EQ(templates.special_tokens.size(), 3u);
  EXPECT_EQ(templates.special_tokens.at("bos_token"), "<bos>");
  EXPECT_EQ(templates.special_tokens.at("eos_token"), "<eos>");
}

}  // namespace
}  // namespace ete::front
