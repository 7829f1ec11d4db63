#include "services/front/chat/reply_parser.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "tests/front/chat/reply_cases.h"

namespace ete::front {
namespace {

TEST(ReplyParser, RepliesInPiecesOfAnySize) {
  constexpr auto kNoThoughts = ThinkStyle::none;
  constexpr auto kTagged = ToolCallStyle::tagged;
  constexpr auto kBare = ToolCallStyle::bare;
  constexpr auto kNone = ToolCallStyle::none;
  const Case cases[] = {
      {kNoThoughts, kNone, "<think>a</think> <tool_call>{}</tool_call>",
       "[][<think>a</think> <tool_call>{}</tool_call>]"},
      {kNoThoughts, kNone, "", "[][]"},
      {ThinkStyle::tagged, kNone, "<think>\na b\n</think>\n\nc", "[\na b\n][c]"},
      {ThinkStyle::tagged, kNone, "\n<think>a</think>c", "[a][c]"},
      {ThinkStyle::tagged, kNone, "<think>\n\n</think>\n\nc", "[][c]"},
      {ThinkStyle::tagged, kNone, "<think>\n", "[][]"},
      {ThinkStyle::tagged, kNone, "<think></think>", "[][]"},
      {ThinkStyle::tagged, kNone, "<think>\n</thin", "[\n</thin][]"},
      {ThinkStyle::open, kNone, " \n</think>c", "[][c]"},
      {ThinkStyle::tagged, kBare, "<think>\n</think>\n{\"name\": \"f\", \"parameters\": {}}", "[][]f{}"},
      {ThinkStyle::tagged, kNone, "c <think>a</think>", "[][c <think>a</think>]"},
      {ThinkStyle::tagged, kNone, "<thin", "[][<thin]"},
      {ThinkStyle::tagged, kNone, "<think>a</thin", "[a</thin][]"},
      {ThinkStyle::open, kNone, "a < b</think>\n\n  c </think>", "[a < b][c </think>]"},
      {ThinkStyle::open, kNone, "never ends", "[never ends][]"},
      {kNoThoughts, kTagged,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"</a>\"]}}\n</tool_call>",
       "[][]f{\"x\":[1,\"</a>\"]}"},
      {kNoThoughts, kTagged,
       "hi\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\", "
       "\"parameters\": {\"y\": null}}"
       "</tool_call>\nbye",
       "[][hi\nbye]f{}g{\"y\":null}"},
      {kNoThoughts, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "[][]f{}"},
      {kNoThoughts, kTagged, "<tool_call>{\"name\": \"f\", \"arg", "[][<tool_call>{\"name\": \"f\", \"arg]"},
      {kNoThoughts, kTagged, "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>!",
       "[][<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>!]"},
      {kNoThoughts, kTagged, "a <tool_ b <tool_call", "[][a <tool_ b <tool_call]"},
      {kNoThoughts, kBare, " {\"name\": \"f\", \"parameters\": {\"x\": 1}} ", "[][]f{\"x\":1}"},
      {kNoThoughts, kBare, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "[][]f{}"},
      {kNoThoughts, kBare, "{\"answer\": 42}", "[][{\"answer\": 42}]"},
      {kNoThoughts, kBare, "no {\"name\": \"f\", \"parameters\": {}}",
       "[][no {\"name\": \"f\", \"parameters\": {}}]"},
      {kNoThoughts, kBare, "<|py", "[][<|py]"},
      {ThinkStyle::tagged, kTagged,
       "<think>call <tool_call>?</think>\n\nok<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
       "[call <tool_call>?][ok]f{}"},
      {ThinkStyle::open, kBare, "t</think>{\"name\": \"f\", \"parameters\": {}}", "[t][]f{}"},
  };
  expect_in_pieces(cases, ReplyEnd::own);
}

TEST(ReplyParser, ACallThatIsCutIsNoContent) {
  constexpr auto kTagged = ToolCallStyle::tagged;
  constexpr auto kBare = ToolCallStyle::bare;
  const Case cases[] = {
      {ThinkStyle::none, kTagged, "hi\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"a",
       "[][hi\n]f{\"x\": [1, \"a..."},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}",
       "[][]f{\"x\":1}..."},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arg", "[][]f..."},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\"", "[][]f..."},
      {ThinkStyle::none, kTagged, "<tool_call>{\"type\": \"function\", \"name\": \"f\\\"", "[][]"},
      {ThinkStyle::none, kTagged, "a <tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"f", "[][a ]"},
      {ThinkStyle::none, kTagged, "<tool_call>\n{\"na", "[][]"},
      {ThinkStyle::none, kTagged, "<tool_call>\n", "[][]"},
      {ThinkStyle::none, kTagged, "<tool_call>", "[][]"},
      {ThinkStyle::none, kTagged, "a <tool_ca", "[][a ]"},
      // The call is whole; the tag after it is not.
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_c", "[][]f{}"},
      {ThinkStyle::none, kTagged,
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\", ",
       "[][]f{}g..."},
      {ThinkStyle::none, kBare, " {\"name\": \"f\", \"parameters\": {\"x\": \"\\u00",
       "[][]f{\"x\": \"\\u00..."},
      {ThinkStyle::none, kBare, "<|python_tag|>{\"name\": \"f\", \"parameters\": {", "[][]f{..."},
      {ThinkStyle::none, kBare, "<|python_tag|>{\"name\"", "[][]"},
      {ThinkStyle::none, kBare, "<|python_", "[][]"},
      {ThinkStyle::none, kBare, "{\"name\": \"f\", \"parameters\": {}}", "[][]f{}"},
      {ThinkStyle::open, kBare, "t</think>\n{\"name\": \"f", "[t][]"},
      // These can become no call.
      {ThinkStyle::none, kTagged, "<tool_call>hello {\"name\": ", "[][<tool_call>hello {\"name\": ]"},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": 5", "[][<tool_call>{\"name\": 5]"},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {x",
       "[][<tool_call>{\"name\": \"f\", \"arguments\": {x]"},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": \"x",
       "[][<tool_call>{\"name\": \"f\", \"arguments\": \"x]"},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1e999, \"y\": [",
       "[][<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1e999, \"y\": []"},
      {ThinkStyle::none, kTagged, "a <", "[][a <]"},
      {ThinkStyle::none, kBare, "{\"answer\": 4", "[][{\"answer\": 4]"},
      {ThinkStyle::none, kBare, "{\"name\": \"Oslo\", \"people\": 7",
       "[][{\"name\": \"Oslo\", \"people\": 7]"},
      {ThinkStyle::none, ToolCallStyle::none, "<tool_call>{\"name\": \"f\"",
       "[][<tool_call>{\"name\": \"f\"]"},
      {ThinkStyle::tagged, kTagged, "<think>a <tool_call>{\"na", "[a <tool_call>{\"na][]"},
  };
  expect_in_pieces(cases, ReplyEnd::cut);
}

// Wherever a call is cut: no byte of it is content.
TEST(ReplyParser, ACallCutAnywhere) {
  const std::string arguments = R"({"a": [1.5e3, null, {"b": "}\"{"}], "c": "\u00e9<"})";
  const std::string normalised = Json::parse(arguments).dump();
  const std::string json = R"({"name": "get", "arguments": )" + arguments + "}";
  for (const auto style : {ToolCallStyle::tagged, ToolCallStyle::bare}) {
    const std::string call = style == ToolCallStyle::bare ? json : "<tool_call>" + json + "</tool_call>";
    size_t longest = 0;
    for (size_t size = 5; size <= call.size(); ++size) {
      const Parts parts = all_parts({ThinkStyle::none, style}, call.substr(0, size), size, ReplyEnd::cut);
      const bool named = size >= call.find("\"get\"") + 5;
      ASSERT_EQ(parts.size(), named ? 1u : 0u) << call.substr(0, size);
      if (!named) continue;
      EXPECT_EQ(parts[0].kind, Kind::call) << call.substr(0, size);
      EXPECT_EQ(parts[0].name, "get");
      if (!parts[0].cut) continue;
      longest = std::max(longest, parts[0].text.size());
      EXPECT_TRUE(arguments.starts_with(parts[0].text) || parts[0].text == normalised) << parts[0].text;
    }
    EXPECT_EQ(longest, arguments.size() - 1);
  }
}

TEST(ReplyParser, TextIsHandedOutAsSoonAsItIsCertain) {
  ReplyParser parser({ThinkStyle::none, ToolCallStyle::tagged});
  EXPECT_EQ(described(parser.push("a < b <t")), "[][a < b ]");
  EXPECT_EQ(described(parser.push("he")), "[][<the]");
  EXPECT_EQ(described(parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>")), "[][]f{}");
}

TEST(ReplyParser, ACallThatNeverEndsIsContent) {
  ReplyParser parser({ThinkStyle::none, ToolCallStyle::tagged});
  const std::string text = "<tool_call>" + std::string(ReplyParser::kMostHeld + 1, '[');
  EXPECT_EQ(described(parser.push(text)), "[][" + text + "]");
  EXPECT_TRUE(parser.finish(ReplyEnd::own).empty());
}

TEST(ReplyParser, DeepJsonIsNoCall) {
  const std::string deep =
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": " + std::string(50'000, '[') + "}}</tool_call>";
  EXPECT_EQ(parsed({ThinkStyle::none, ToolCallStyle::tagged}, deep, 1000), "[][" + deep + "]");
  const std::string whole = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": " + std::string(70, '[') +
                            std::string(70, ']') + "}}</tool_call>";
  EXPECT_EQ(parsed({ThinkStyle::none, ToolCallStyle::tagged}, whole, 1000), "[][" + whole + "]");
}

TEST(ReplyParser, CallsInXmlInPiecesOfAnySize) {
  constexpr auto kNone = ThinkStyle::none;
  constexpr auto kXml = ToolCallStyle::xml;
  const Case cases[] = {
      {kNone, kXml,
       "hi\n\n<tool_call>\n<function=f>\n<parameter=s>\na <b>\n\n \"c\"\n</parameter>\n<parameter=i>\n7\n"
       "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>bye",
       "[][hi\n\nbye]f{\"s\":\"a <b>\\n\\n \\\"c\\\"\",\"i\":7}now{}"},
      // Only the template's own line ends are not the value's.
      {kNone, kXml, "<tool_call><function=f><parameter=s>\n\n x \n\n</parameter></function></tool_call>",
       "[][]f{\"s\":\"\\n x \\n\"}"},
      {kNone, kXml, "<tool_call><function=f><parameter=s>x</parameter> </function>", "[][]f{\"s\":\"x\"}"},
      {kNone, kXml, "<tool_call><function=unknown><parameter=i>1</parameter></function></tool_call>",
       "[][]unknown{\"i\":\"1\"}"},
      {kNone, kXml, "<tool_call><function=g><parameter=z>1</parameter></function></tool_call>",
       "[][]g{\"z\":1}"},
      // As other templates have them: what a call that has to be made is.
      {kNone, kXml, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": 5}}\n</tool_call>",
       "[][]f{\"s\":5}"},
      // Without the first tag.
      {kNone, kXml,
       "a\n<function=g>\n<parameter=z>\n1\n</parameter>\n</function>\n</tool_call>\n<function=now></"
       "function>",
       "[][a\n]g{\"z\":1}now{}"},
      {kNone, kXml, "<function=f> is such a tag, <function=h></function> none; <function=",
       "[][<function=f> is such a tag, <function=h></function> none; <function=]"},
      {kNone, kXml, "<function=h>\n</function>", "[][<function=h>\n</function>]"},
      {kNone, kXml, "<function=f> <tool_call><function=now></function></tool_call>",
       "[][<function=f> ]now{}"},
      // Which ends with its own last tag, and the other one where that follows.
      {kNone, kXml, "<function=f></function>\nDone.", "[][Done.]f{}"},
      {kNone, kXml, "a <function=f><parameter=s>x</parameter></function> and </tool_ca",
       "[][a and </tool_ca]f{\"s\":\"x\"}"},
      {kNone, kXml, "<function=f></function>\n</tool_c", "[][</tool_c]f{}"},
      {kNone, kXml, "<function=f></function>\n<function=now></function></tool_call>!", "[][!]f{}now{}"},
      {kNone, kXml, "<function=f></function><tool_call><function=now></function></tool_call>",
       "[][]f{}now{}"},
      {kNone, kXml,
       "<function=f><parameter=s>a </function></tool_call> "
       "b</parameter>\n<parameter=i>1</parameter></function>",
       "[][]f{\"s\":\"a </function></tool_call> b\",\"i\":1}"},
      {kNone, kXml,
       "<function=f><parameter=s>x</parameter>y <tool_call><function=now></function></tool_call>",
       "[][<function=f><parameter=s>x</parameter>y ]now{}"},
      {kNone, kXml, "<function=f><parameter=></parameter></function>",
       "[][<function=f><parameter=></parameter></function>]"},
      {kNone, kXml, "<function=f><parameter=s>x", "[][<function=f><parameter=s>x]"},
      {ThinkStyle::open, kXml, "<function=f>?\n</think>\n\n<tool_call><function=now></function></tool_call>",
       "[<function=f>?\n][]now{}"},
      // No calls.
      {kNone, kXml, "<tool_call><function=f><parameter=s>x</function></tool_call>!",
       "[][<tool_call><function=f><parameter=s>x</function></tool_call>!]"},
      {kNone, kXml, "<tool_call><function=></function></tool_call>",
       "[][<tool_call><function=></function></tool_call>]"},
      {kNone, kXml, "<tool_call><function=f>x</function></tool_call>",
       "[][<tool_call><function=f>x</function></tool_call>]"},
      {kNone, kXml, "<tool_call><function=f></function> x</tool_call>",
       "[][<tool_call><function=f></function> x</tool_call>]"},
      {kNone, kXml, "<tool_call><function=f><parameter=s>\nx", "[][<tool_call><function=f><parameter=s>\nx]"},
      {kNone, ToolCallStyle::tagged, "<tool_call><function=f></function></tool_call> <function=f></function>",
       "[][<tool_call><function=f></function></tool_call> <function=f></function>]"},
  };
  expect_in_pieces(cases, ReplyEnd::own);
}

TEST(ReplyParser, ValuesInXmlAreOfTheTypesOfTheSchema) {
  const std::pair<const char*, const char*> values[] = {
      {"s=5", "\"5\""},
      {"s=null", "\"null\""},
      {"s={\"a\": 1}", "\"{\\\"a\\\": 1}\""},
      {"s=", "\"\""},
      {"i= 5 ", "5"},
      {"i=5.0", "5.0"},
      {"i=5.5", "\"5.5\""},
      {"i=five", "\"five\""},
      {"i=null", "\"null\""},
      {"d=5", "5"},
      {"d=-1.5e3", "-1500.0"},
      {"d=1e999", "\"1e999\""},
      {"b=true", "true"},
      {"b=False", "false"},
      {"b=yes", "\"yes\""},
      {"o={\"a\": [1, null]}", "{\"a\":[1,null]}"},
      {"o=[1]", "\"[1]\""},
      {"o={\"a\": ", "\"{\\\"a\\\": \""},
      {"l=[1,\n {}]", "[1,{}]"},
      {"n=x", "\"x\""},
      {"n=null", "null"},
      {"n=None", "null"},
      {"si=5", "\"5\""},
      {"any=5", "5"},
      {"any=None", "null"},
      {"e=2", "2"},
      {"e=x", "\"x\""},
      {"k=true", "true"},
      {"loop=5", "\"5\""},
      {"no=5", "\"5\""},
      {"other=5", "\"5\""},
  };
  for (const auto& [given, expected] : values) {
    const std::string text = given;
    const size_t split = text.find('=');
    const std::string name = text.substr(0, split);
    std::string call = "<tool_call>\n<function=f>\n<parameter=" + name + ">\n";
    call += text.substr(split + 1) + "\n</parameter>\n</function>\n</tool_call>";
    EXPECT_EQ(parsed({ThinkStyle::none, ToolCallStyle::xml, kOffered}, call, 1000),
              "[][]f{\"" + name + "\":" + expected + "}")
        << given;
  }
}

TEST(ReplyParser, ACallInXmlCutAnywhere) {
  const std::string call =
      "<tool_call>\n<function=f>\n<parameter=i>\n12\n</parameter>\n<parameter=s>\na <b> "
      "</b>\nc\n</parameter>\n"
      "</function>\n</tool_call>";
  const std::string arguments = R"({"i":12,"s":"a <b> </b>\nc"})";
  for (const std::string& text : {call, call.substr(call.find("<function"))}) {
    const size_t named = text.find("=f>") + 3;
    const size_t whole = text.find("</function>") + std::string("</function>").size();
    size_t told = 0;
    // Less of the second could be C++'s #include <functional>.
    const size_t least = text.starts_with("<tool") ? 5 : std::string("<function=").size();
    for (size_t size = least; size <= text.size(); ++size) {
      const std::string begun = text.substr(0, size);
      const Parts parts =
          all_parts({ThinkStyle::none, ToolCallStyle::xml, kOffered}, begun, 3, ReplyEnd::cut);
      ASSERT_EQ(parts.size(), size >= named ? 1u : 0u) << begun;
      if (size < named) continue;
      EXPECT_EQ(parts[0].kind, Kind::call) << begun;
      EXPECT_EQ(parts[0].cut, size < whole) << begun;
      EXPECT_TRUE(arguments.starts_with(parts[0].text)) << parts[0].text;
      EXPECT_GE(parts[0].text.size(), told) << begun;
      told = parts[0].text.size();
      if (begun.ends_with("</b>\nc")) {
        EXPECT_EQ(told, arguments.size() - 2);
      }
    }
    EXPECT_EQ(told, arguments.size());
  }
  const Case others[] = {
      {ThinkStyle::none, ToolCallStyle::xml, "<tool_call><function=f><parameter=n>nu", "[][]f{..."},
      {ThinkStyle::none, ToolCallStyle::xml, "<tool_call>{\"name\": \"f\", \"argu", "[][]f..."},
      {ThinkStyle::none, ToolCallStyle::xml, "<tool_call><function=f>no", "[][<tool_call><function=f>no]"},
      {ThinkStyle::none, ToolCallStyle::xml, "<function=h> is", "[][<function=h> is]"},
      {ThinkStyle::none, ToolCallStyle::xml, "#include <functio", "[][#include <functio]"},
      {ThinkStyle::none, ToolCallStyle::xml, "#include <function", "[][#include <function]"},
      {ThinkStyle::none, ToolCallStyle::xml, "a <tool_", "[][a ]"},
      {ThinkStyle::none, ToolCallStyle::xml, "<function=f></function>\n</tool_c", "[][]f{}"},
      {ThinkStyle::none, ToolCallStyle::xml, "<function=f></function>\nDo", "[][Do]f{}"},
      {ThinkStyle::none, ToolCallStyle::xml, "<function=f></function><function=now>", "[][]f{}now{..."},
  };
  expect_in_pieces(others, ReplyEnd::cut);
}

TEST(ReplyParser, PartsComeInTheOrderOfTheText) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const std::string text =
      "<think>x</think>a" + call + "b</tool_call>" + call + call + "c<tool_call>{\"name\": \"g\"";
  const std::vector<std::string> expected = {"t:x", "c:a", "f{}", "c:b</tool_call>",
                                             "f{}", "f{}", "c:c", "g..."};
  for (const size_t piece : {1, 2, 3, 5, 7, 11, 1000}) {
    EXPECT_EQ(in_order(all_parts({ThinkStyle::tagged, ToolCallStyle::tagged}, text, piece, ReplyEnd::cut)),
              expected)
        << piece;
  }
}

// What is longer than may be held is content, however it comes.
TEST(ReplyParser, LongCallsDoNotDependOnThePieces) {
  const std::string begin = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"";
  const std::string end = "\"}}</tool_call>";
  for (const size_t more : {0, 1}) {
    const size_t size = ReplyParser::kMostHeld - begin.size() - end.size() + more;
    std::string text = begin;
    text.append(size, 'x').append(end);
    const bool whole =
        all_parts({ThinkStyle::none, ToolCallStyle::tagged}, text, text.size())[0].kind == Kind::call;
    EXPECT_EQ(whole, more == 0);
    EXPECT_EQ(all_parts({ThinkStyle::none, ToolCallStyle::tagged}, text, 64 << 10)[0].kind == Kind::call,
              whole);
  }
}

// Space is not held back for ever: from some length on it is handed out as thoughts.
TEST(ReplyParser, LongSpaceAmongThoughtsDoesNotDependOnThePieces) {
  for (const size_t size : {64 << 10, (64 << 10) + 1}) {
    const std::string space(size, ' ');
    const std::string expected = "[" + (size > (64 << 10) ? space : "") + "][c]";
    for (const size_t piece : {1, 4096, 1 << 20}) {
      const ReplyStyle style = {ThinkStyle::tagged, ToolCallStyle::none};
      EXPECT_EQ(parsed(style, "<think>" + space + "</think>c", piece), expected) << size;
    }
  }
}

std::string template_text(const std::string& name) {
  std::ifstream file(ETE_SOURCE_DIR "/tests/front/chat/templates/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Turn {
  const char* name;   // of the template
  const char* begin;  // of what the assistant says
  const char* end;
};

// What a template shows a model of its own calls is what is read of its replies.
TEST(ReplyParser, CallsAsTemplatesRenderThem) {
  const Turn turns[] = {
      {"qwen2_5", "<|im_start|>assistant\n", "<|im_end|>"},
      {"qwen3", "<|im_start|>assistant\n", "<|im_end|>"},
      {"qwen3_5", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|im_end|>"},
      {"hermes", "<|im_start|>assistant\n", "<|im_end|>"},
      {"llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
  };
  std::ifstream file(ETE_SOURCE_DIR "/tests/front/chat/templates/cases.json");
  const auto golden = Json::parse(file);
  size_t found = 0;
  for (const auto& one : golden["cases"]) {
    for (const Turn& turn : turns) {
      if (one["template"] != turn.name || one["case"] != "tool_result") continue;
      ++found;
      const auto text = one["text"].get<std::string>();
      const size_t begin = text.find(turn.begin) + std::string(turn.begin).size();
      const std::string reply = text.substr(begin, text.find(turn.end, begin) - begin);
      const std::string shown = template_text(turn.name);
      Json tools = one["variables"]["tools"];
      tools[0]["function"]["parameters"]["properties"].update(
          Json{{"hourly", {{"type", "boolean"}}}, {"x", {{"type", {"string", "null"}}}}});
      const auto offered = std::make_shared<const Json>(std::move(tools));
      const auto& call = one["variables"]["messages"][1]["tool_calls"][0]["function"];
      for (const size_t piece : {1, 7, 1000}) {
        EXPECT_EQ(parsed({think_style(shown, ""), tool_call_style(shown), offered}, reply, piece),
                  "[][]" + call["name"].get<std::string>() + call["arguments"].dump())
            << turn.name;
      }
    }
  }
  EXPECT_EQ(found, std::size(turns));
}

TEST(ReplyParser, StylesOfPublishedTemplates) {
  EXPECT_EQ(tool_call_style(template_text("qwen2_5")), ToolCallStyle::tagged);
  EXPECT_EQ(tool_call_style(template_text("qwen3")), ToolCallStyle::tagged);
  EXPECT_EQ(tool_call_style(template_text("qwen3_5")), ToolCallStyle::xml);
  EXPECT_EQ(tool_call_style(template_text("llama3")), ToolCallStyle::bare);
  EXPECT_EQ(tool_call_style(template_text("chatml")), ToolCallStyle::tagged);
  EXPECT_EQ(think_style(template_text("qwen3"), "<|im_start|>assistant\n"), ThinkStyle::tagged);
  EXPECT_EQ(think_style(template_text("qwen3"), "<|im_start|>assistant\n<think>\n"), ThinkStyle::open);
  EXPECT_EQ(think_style(template_text("qwen3"), "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
            ThinkStyle::tagged);
  EXPECT_EQ(think_style(template_text("llama3"), "<think>"), ThinkStyle::none);
}

}  // namespace
}  // namespace ete::front
