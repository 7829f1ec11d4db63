#include "services/front/chat/chat_renderer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

namespace ete::front {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

const std::string kTemplates = std::string(ETE_SOURCE_DIR) + "/tests/front/chat/templates/";
constexpr const char* kPython = "/usr/bin/python3";

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class ChatRendererTest : public ::testing::Test {
 protected:
  static RenderLimits limits() {
    RenderLimits limits;
    limits.render = milliseconds(4000);
    limits.output_bytes = 100'000;
    return limits;
  }
  static ChatRenderer::Result render(ChatRenderer& renderer, const std::string& text,
                                     const Json& variables = Json::object()) {
    ChatTemplates templates;
    templates.by_name["default"] = text;
    templates.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    std::promise<ChatRenderer::Result> done;
    renderer.render(templates, false, variables,
                    [&](ChatRenderer::Result result) { done.set_value(std::move(result)); });
    return done.get_future().get();
  }
  // Renders what must fail, and checks that the renderer goes on.
  FrontError failure(const std::string& text, const Json& variables = Json::object()) {
    const auto result = render(renderer_, text, variables);
    EXPECT_TRUE(result.error) << result.text.substr(0, 200);
    EXPECT_EQ(render(renderer_, "{{ 1 + 1 }}").text, "2");
    return result.error.value_or(FrontError(FrontErrorCode::internal, ""));
  }
  static bool says(const FrontError& error, const std::string& part) {
    return std::string(error.what()).find(part) != std::string::npos;
  }

  ChatRenderer renderer_{limits(), kPython};
};

TEST_F(ChatRendererTest, RendersWhatTransformersRenders) {
  const Json golden = Json::parse(contents(kTemplates + "cases.json"));
  size_t families = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kTemplates)) {
    families += entry.path().extension() == ".jinja" ? 1 : 0;
  }
  EXPECT_GE(families, 8u);
  for (const Json& one : golden["cases"]) {
    const std::string name = one["template"].get<std::string>() + " " + one["case"].get<std::string>();
    const auto result = render(
        renderer_, contents(kTemplates + one["template"].get<std::string>() + ".jinja"), one["variables"]);
    if (one.contains("text")) {
      ASSERT_FALSE(result.error) << name << ": " << result.error->what();
      EXPECT_EQ(result.text, one["text"].get<std::string>()) << name;
    } else {
      ASSERT_TRUE(result.error) << name;
      EXPECT_EQ(result.error->code(), FrontErrorCode::invalid_argument) << name;
      EXPECT_TRUE(says(*result.error, one["error"].get<std::string>()))
          << name << ": " << result.error->what();
    }
  }
}

// Of the published templates, which take what of tools; the others are as if it had not been there.
TEST_F(ChatRendererTest, ToolsThatLeaveNoTraceAreTold) {
  const Json user = {{"role", "user"}, {"content", "x"}};
  const Json function = {{"name", "f"}, {"parameters", {{"type", "object"}}}, {"arguments", Json::object()}};
  const Json one = Json::array({{{"id", "abcdefghi"}, {"type", "function"}, {"function", function}}});
  const Json call = {{"role", "assistant"}, {"content", "c"}, {"tool_calls", one}};
  const Json result = {{"role", "tool"}, {"content", "r"}, {"tool_call_id", "abcdefghi"}};
  const auto field = [&](const std::string& name, const Json& messages, const Json& tools) {
    const Json given = {{"messages", messages}, {"tools", tools}, {"add_generation_prompt", true}};
    const auto error = render(renderer_, contents(kTemplates + name + ".jinja"), given).error;
    return error ? error->field() : "";
  };
  const Json question = Json::array({user});
  const Json conversation = Json::array({user, call, result});
  for (const char* name : {"qwen2_5", "qwen3", "qwen3_5", "llama3", "hermes", "mistral"}) {
    EXPECT_EQ(field(name, question, one), "") << name;
    EXPECT_EQ(field(name, conversation, one), "") << name;
    EXPECT_EQ(field(name, conversation, nullptr), "") << name;
  }
  for (const char* name : {"smollm2", "chatml", "zephyr", "gemma3", "phi3"}) {
    EXPECT_EQ(field(name, question, one), "tools") << name;
    EXPECT_EQ(field(name, question, nullptr), "") << name;
    EXPECT_EQ(field(name, conversation, nullptr), "messages") << name;
  }
  const std::string results_only =
      "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
  const Json with_tools = {{"messages", conversation}, {"tools", one}};
  EXPECT_FALSE(render(renderer_, results_only, with_tools).error);
  EXPECT_EQ(field("phi3", Json::array({user, result}), nullptr), "messages");
  EXPECT_EQ(field("smollm2", Json::array({user, result}), nullptr), "");
}

TEST_F(ChatRendererTest, EndlessTemplateIsStoppedInTime) {
  ASSERT_EQ(render(renderer_, "ready").text, "ready");
  const auto begin = steady_clock::now();
  const FrontError error = failure(
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% "
      "endfor %}"
      "{% endfor %}");
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(error.code(), FrontErrorCode::unsupported);
  EXPECT_TRUE(says(error, "4000 ms")) << error.what();
}

TEST_F(ChatRendererTest, HugeOutputIsRefused) {
  const FrontError many = failure("{% for a in range(99999) %}xxxxxxxxxx{% endfor %}");
  EXPECT_TRUE(says(many, "more than 100000 bytes")) << many.what();
  const FrontError one = failure("{{ 'x' * 4000000000 }}");
  EXPECT_TRUE(says(one, "memory")) << one.what();
}

TEST_F(ChatRendererTest, LeavingTheSandboxIsRefused) {
  for (const char* text : {"{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}",
                           "{{ ''.__class__.__base__.__subclasses__() }}", "{% include 'x' %}",
                           "{{ cycler.__init__.__globals__.os.popen('id').read() }}"}) {
    const FrontError error = failure(text, {{"messages", Json::array({1})}});
    EXPECT_EQ(error.code(), FrontErrorCode::unsupported) << text;
  }
}

TEST_F(ChatRendererTest, BadTemplatesAreTold) {
  EXPECT_TRUE(says(failure("a\n{% for %}"), "line 2")) << failure("a\n{% for %}").what();
  EXPECT_TRUE(says(failure("{{ x.y.z }}"), "'x' is undefined"));
  EXPECT_TRUE(says(failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "nested too deeply"));
  EXPECT_TRUE(says(failure("{{ raise_exception('only\nuser') }}"), "only\nuser"));
}

TEST_F(ChatRendererTest, WhatWaitsIsBounded) {
  RenderLimits small = limits();
  small.jobs = 2;
  ChatRenderer renderer(small, kPython);
  ChatTemplates templates;
  templates.by_name["default"] = "x";
  int refused = 0;
  for (int i = 0; i < 100; ++i) {
    try {
      renderer.render(templates, false, Json::object(), [](const ChatRenderer::Result&) {});
    } catch (const FrontError& error) {
      EXPECT_EQ(error.code(), FrontErrorCode::resource_exhausted);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(ChatRendererTest, MissingPackagesAreNamed) {
  ChatRenderer no_python(limits(), "/nonexistent/python3");
  auto result = render(no_python, "x");
  ASSERT_TRUE(result.error);
  EXPECT_TRUE(says(*result.error, "python3-jinja2")) << result.error->what();

  // A Python that finds no packages.
  const std::string bare =
      std::filesystem::temp_directory_path() / ("ete-bare-python-" + std::to_string(getpid()));
  std::ofstream(bare) << "#!/bin/sh\nexec " << kPython << " -S \"$@\"\n";
  std::filesystem::permissions(bare, std::filesystem::perms::owner_all);
  {
    ChatRenderer no_jinja(limits(), bare);
    result = render(no_jinja, "x");
  }
  std::filesystem::remove(bare);
  ASSERT_TRUE(result.error);
  EXPECT_EQ(result.error->code(), FrontErrorCode::unsupported);
  EXPECT_TRUE(says(*result.error, "Jinja2, which is not installed")) << result.error->what();
}

}  // namespace
}  // namespace ete::front
