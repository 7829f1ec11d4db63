#include "services/front/http/openai_request.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "services/front/front_error.h"
#include "services/front/http/responses_request.h"

namespace ete::front {
namespace {

FrontError refusal(OpenAiRequest (*parse)(const std::string&), const std::string& body) {
  try {
    parse(body);
  } catch (const FrontError& error) {
    return error;
  }
  ADD_FAILURE() << "accepted: " << body;
  return {FrontErrorCode::internal, ""};
}

std::string with_prompt(const std::string& more) { return R"({"prompt": "x", )" + more + "}"; }
std::string with_messages(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "x"}], )" + more + "}";
}

TEST(OpenAiRequest, EveryFieldOfACompletion) {
  const OpenAiRequest request = parse_completion(R"({
    "model": "m", "prompt": "text", "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125,
    "presence_penalty": -1, "frequency_penalty": 1.5, "repetition_penalty": 1.25, "logit_bias": {"5": -100, "6": 2},
    "seed": 11, "stop": ["a", "b"], "n": 2, "best_of": 2, "logprobs": 4, "stream": true,
    "stream_options": {"include_usage": true}, "user": "somebody", "echo": false, "suffix": null,
    "ignore_eos": true, "stop_token_ids": [9], "cache_salt": "s", "add_special_tokens": false})");
  const v1::GenerateRequest message = request.choice(request.prompts.at(0), 1);
  EXPECT_EQ(
      message.ShortDebugString(),
      "model: \"m\" text: \"text\" add_special: false sampling { temperature: 0.5 top_k: 3 top_p: 0.25 "
      "min_p: "
      "0.125 repetition_penalty: 1.25 presence_penalty: -1 frequency_penalty: 1.5 logit_bias { key: 5 value: "
      "-100 } logit_bias { key: 6 value: 2 } seed: 12 } stopping { max_tokens: 7 stop: \"a\" stop: \"b\" "
      "ignore_eos: true stop_token_ids: 9 } logprobs { top: 4 } cache_salt: \"s\"");
  EXPECT_EQ(request.n, 2);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
}

TEST(OpenAiRequest, AbsentAndNullAreTheSame) {
  for (const char* body :
       {R"({"prompt": "x"})", R"({"prompt": "x", "stop": null, "temperature": null, "n": null})"}) {
    const OpenAiRequest request = parse_completion(body);
    EXPECT_EQ(request.choice(request.prompts.at(0), 0).ShortDebugString(),
              "text: \"x\" sampling { } stopping { max_tokens: 16 }");
    EXPECT_FALSE(request.stream);
  }
}

// llama.cpp's server, too, tells of it in streams only, and minds no more.
TEST(OpenAiRequest, ProgressIsOfStreams) {
  const std::string wanted = R"("return_progress": true)";
  for (const bool stream : {false, true}) {
    const std::string more = wanted + (stream ? R"(, "stream": true)" : "");
    EXPECT_EQ(parse_completion(with_prompt(more)).settings.prompt_progress(), stream);
    EXPECT_EQ(parse_chat_completion(with_messages(more)).settings.prompt_progress(), stream);
  }
  EXPECT_FALSE(parse_completion(with_prompt(R"("stream": true)")).settings.has_prompt_progress());
  EXPECT_EQ(refusal(&parse_completion, with_prompt(R"("return_progress": 1)")).field(), "return_progress");
}

TEST(OpenAiRequest, WithoutCacheItIsSkippedAndNotFilledUnderASaltOfItsOwn) {
  const auto settings = [](const std::string& more) { return parse_completion(with_prompt(more)).settings; };
  const v1::GenerateRequest with = settings(R"("cache_prompt": true, "cache_salt": "s")");
  EXPECT_EQ(with.cache_salt(), "s");
  EXPECT_FALSE(with.skip_prefix_cache());
  EXPECT_FALSE(settings(R"("cache_salt": "s")").skip_prefix_cache());
  const v1::GenerateRequest without = settings(R"("cache_prompt": false)");
  EXPECT_TRUE(without.skip_prefix_cache());
  EXPECT_EQ(without.cache_salt(), "");
}

TEST(OpenAiRequest, FourFormsOfPrompts) {
  EXPECT_EQ(parse_completion(R"({"prompt": ["a", "b"]})").prompts.size(), 2u);
  const auto ids = parse_completion(R"({"prompt": [1, 2]})").prompts;
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(ids[0].tokens().ids_size(), 2);
  const auto lists = parse_completion(R"({"prompt": [[1], [2, 3]], "add_special_tokens": true})");
  ASSERT_EQ(lists.prompts.size(), 2u);
  EXPECT_FALSE(lists.choice(lists.prompts[1], 0).has_add_special());
}

TEST(OpenAiRequest, RefusalsNameTheField) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({})", "prompt"},
      {R"({"prompt": 5})", "prompt"},
      {R"({"prompt": []})", "prompt"},
      {R"({"prompt": [1, "a"]})", "prompt[1]"},
      {R"({"prompt": [["a"]]})", "prompt[0][0]"},
      {with_prompt(R"("temperature": "hot")"), "temperature"},
      {with_prompt(R"("temperature": 1e39)"), "temperature"},
      {with_prompt(R"("temperature": 1e400)"), "temperature"},
      {with_prompt(R"("max_tokens": -2)"), "max_tokens"},
      {with_prompt(R"("n": 0)"), "n"},
      {with_prompt(R"("n": 65)"), "n"},
      {with_prompt(R"("max_tokens": 1.5)"), "max_tokens"},
      {with_prompt(R"("seed": 18446744073709551615)"), "seed"},
      {with_prompt(R"("stop": [1])"), "stop[0]"},
      {with_prompt(R"("logit_bias": {"x": 1})"), "logit_bias"},
      {with_prompt(R"("logit_bias": [1])"), "logit_bias"},
      {with_prompt(R"("stream_options": {"include_usage": true})"), "stream_options"},
      {with_prompt(R"("stream": true, "stream_options": {"x": 1})"), "stream_options.x"},
      {with_prompt(R"("best_of": 2)"), "best_of"},
      {with_prompt(R"("echo": 1)"), "echo"},
      {with_prompt(R"("suffix": "y")"), "suffix"},
      {with_prompt(R"("messages": [])"), "messages"},
      {with_prompt(R"("temprature": 1)"), "temprature"},
  };
  for (const auto& [body, field] : cases) {
    const FrontError error = refusal(parse_completion, body);
    EXPECT_EQ(error.field(), field) << body << ": " << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with(field)) << error.what();
  }
}

TEST(OpenAiRequest, WhatIsNoJsonObjectIsRefused) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string(R"({"prompt": "x", "prompt": "y"})"),
        std::string("\"\\ud800\""), std::string("{\"prompt\": \"\xff\"}"), std::string(100'000, '['),
        "{\"prompt\":" + std::string(100'000, '[')}) {
    EXPECT_EQ(refusal(parse_completion, body).code(), FrontErrorCode::invalid_argument);
  }
}

// With time that grows with the square of their number, it would be hours.
TEST(OpenAiRequest, ManyMembersTakeNoTime) {
  std::string members;
  for (int i = 0; i < 50'000; ++i) members += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(refusal(parse_completion, with_prompt(members)).field(), "0");
  const OpenAiRequest biased = parse_completion(with_prompt(R"("logit_bias": {)" + members + "}"));
  EXPECT_EQ(biased.settings.sampling().logit_bias_size(), 50'000);
  const std::string arguments = with_messages(R"("chat_template_kwargs": {)" + members + "}");
  EXPECT_EQ(refusal(parse_chat_completion, arguments).field(), "chat_template_kwargs");
  const std::string tool = R"({"input": "x", "tools": [{"type": "function", "name": "f", )" + members + "}]}";
  EXPECT_EQ(refusal(parse_responses_request, tool).field(), "tools[0].0");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(OpenAiRequest, AConversationForTheTemplate) {
  const OpenAiRequest request = parse_chat_completion(R"({
    "messages": [{"role": "developer", "content": "s"},
                 {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                 {"role": "assistant", "content": null, "tool_calls": [
                   {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2.0}"}}]},
                 {"role": "tool", "tool_call_id": "c", "content": "r"},
                 {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]},
                 {"role": "assistant", "content": null, "tool_calls": []},
                 {"role": "assistant", "content": "e", "tool_calls": []}],
    "chat_template_kwargs": {"enable_thinking": false}, "max_completion_tokens": 3, "logprobs": true,
    "top_logprobs": 2, "response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "store": true})");
  ASSERT_TRUE(request.chat);
  EXPECT_EQ(
      request.chat->variables.dump(),
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"a\nb"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f",)"
      R"("arguments":{"z":1,"a":2.0}}}]},{"role":"tool","content":"r","tool_call_id":"c"},)"
      R"({"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}]},{"role":"assistant","content":""},)"
      R"({"role":"assistant","content":"e"}],)"
      R"("tools":null,"documents":null,"add_generation_prompt":true,"enable_thinking":false})");
  EXPECT_EQ(request.settings.ShortDebugString(),
            "sampling { } stopping { max_tokens: 3 } logprobs { top: 2 }");
}

// Its client gave none: it is not there, as in a chat completion without it.
TEST(OpenAiRequest, ACallOfAResponseHasNoContent) {
  const OpenAiRequest request = parse_responses_request(
      R"({"input": [{"role": "user", "content": "x"},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]})");
  EXPECT_EQ(request.chat->variables["messages"][1].dump(),
            R"({"role":"assistant","tool_calls":[{"id":"c","type":"function",)"
            R"("function":{"name":"f","arguments":{}}}]})");
}

// A message of the request, as the template gets it.
std::string turn_of_chat(const std::string& message) {
  const OpenAiRequest request = parse_chat_completion(R"({"messages": [)" + message + "]}");
  return request.chat->variables["messages"][0].dump();
}

RequestJson turns_of_response(const std::string& items) {
  const OpenAiRequest request = parse_responses_request(R"({"input": [)" + items + "]}");
  return request.chat->variables["messages"];
}

// A call that was cut is part of the conversation, too: its client sends back what it got.
TEST(OpenAiRequest, AnyTextIsTheArgumentsOfACall) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("{\"a\": 1}")", R"({"a":1})"},
      {R"("")", "{}"},
      {R"(" \n")", "{}"},
      {"null", "{}"},
      {R"({"a": 1})", R"({"a":1})"},
      {R"("{")", R"("{")"},
      {R"("[1]")", R"("[1]")"},
      {R"("{\"a\": 1e999}")", R"("{\"a\": 1e999}")"},
  };
  for (const auto& [given, shown] : cases) {
    EXPECT_EQ(
        turn_of_chat(R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": )" +
                     given + "}}]}"),
        R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" + shown + "}}]}");
  }
  EXPECT_EQ(
      turns_of_response(R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"n\":",
                                  "status": "incomplete"})")[0]["tool_calls"][0]["function"]["arguments"],
      R"({"n":)");
}

TEST(OpenAiRequest, ATurnOfTheAssistantMayBeEmpty) {
  EXPECT_EQ(turn_of_chat(R"({"role": "assistant", "content": null})"),
            R"({"role":"assistant","content":""})");
  EXPECT_EQ(turn_of_chat(R"({"role": "assistant", "reasoning_content": "t"})"),
            R"({"role":"assistant","content":"","reasoning_content":"t"})");
  EXPECT_EQ(turn_of_chat(R"({"role": "user", "content": "x", "tool_calls": []})"),
            R"({"role":"user","content":"x"})");
}

// What front ends keep beside a turn says nothing to the model.
TEST(OpenAiRequest, MembersThatCarryNoContentAreLeftOut) {
  EXPECT_EQ(
      turn_of_chat(R"({"role": "user", "content": [{"type": "text", "text": "x", "id": "p", "annotations": [],
              "cache_control": {"type": "ephemeral"}}], "id": "m", "timestamp": 5, "created_at": 5, "images": [],
              "files": [], "audio": null, "cache_control": {"type": "ephemeral"}, "metadata": {"a": 1},
              "whatever": null})"),
      R"({"role":"user","content":"x"})");
  EXPECT_EQ(turn_of_chat(R"({"role": "assistant", "content": "x", "refusal": null, "parsed": {"a": 1},
              "function_call": null, "annotations": [{"type": "url_citation"}], "reasoning": "t"})"),
            R"({"role":"assistant","content":"x","reasoning_content":"t"})");
  EXPECT_EQ(turns_of_response(R"({"role": "user", "id": "m", "timestamp": 5, "cache_control": {}, "content": [
              {"type": "input_text", "text": "x", "cache_control": {}, "id": "p"}]})")
                .dump(),
            R"([{"role":"user","content":"x"}])");
  const std::string tool = R"("name": "f", "cache_control": {"type": "ephemeral"})";
  const OpenAiRequest chat = parse_chat_completion(
      with_messages(R"("tools": [{"type": "function", "cache_control": {}, "function": {)" + tool + "}}]"));
  const OpenAiRequest response =
      parse_responses_request(R"({"input": "x", "tools": [{"type": "function", )" + tool + "}]}");
  for (const OpenAiRequest* request : {&chat, &response}) {
    EXPECT_EQ(request->chat->variables["tools"].dump(), R"([{"type":"function","function":{"name":"f"}}])");
  }
}

TEST(OpenAiRequest, ValuesThatChangeNothingAreAccepted) {
  const OpenAiRequest stop = parse_chat_completion(with_messages(
      R"("stop": "", "verbosity": "medium", "reasoning_effort": "medium", "function_call": "none",
         "functions": [], "max_tokens": -1, "response_format": {"type": "text", "json_schema": null})"));
  EXPECT_EQ(stop.settings.ShortDebugString(), "sampling { } stopping { }");
  EXPECT_EQ(parse_chat_completion(with_messages(R"("stop": [], "max_completion_tokens": -1)"))
                .settings.ShortDebugString(),
            "sampling { } stopping { }");
  const OpenAiRequest completion = parse_completion(with_prompt(R"("max_tokens": -1)"));
  EXPECT_EQ(completion.choice(completion.prompts.at(0), 0).ShortDebugString(),
            "text: \"x\" sampling { } stopping { }");
  for (const char* more :
       {R"("reasoning": {"effort": null, "summary": null})", R"("reasoning": {"effort": "medium"})",
        R"("text": {"verbosity": "medium"})", R"("text": {"verbosity": null, "format": null})",
        R"("text": {"format": {"type": "text", "schema": null}})", R"("tool_choice": "auto", "tools": [])",
        R"("max_output_tokens": -1)", R"("include": [], "background": false, "top_logprobs": 0)"}) {
    EXPECT_EQ(
        parse_responses_request(std::string(R"({"input": "x", )") + more + "}").settings.ShortDebugString(),
        "sampling { } stopping { }")
        << more;
  }
  const std::pair<const char*, const char*> refused[] = {
      {R"("reasoning": {"effort": "high"})", "reasoning.effort"},
      {R"("reasoning": {"summary": "detailed"})", "reasoning.summary"},
      {R"("reasoning": {"odd": 1})", "reasoning.odd"},
      {R"("text": {"verbosity": "low"})", "text.verbosity"},
      {R"("tool_choice": "required")", "tool_choice"},
  };
  for (const auto& [more, field] : refused) {
    EXPECT_EQ(refusal(parse_responses_request, std::string(R"({"input": "x", )") + more + "}").field(),
              field);
  }
}

// What a response thought is of the turn that it begins.
TEST(OpenAiRequest, TheOutputOfAResponseIsInputOfTheNext) {
  const std::string user = R"({"role": "user", "content": "x"}, )";
  const std::string thoughts = R"({"id": "rs_1", "type": "reasoning", "status": "completed", "summary": [],
      "encrypted_content": null, "content": [{"type": "reasoning_text", "text": "t"}]})";
  const std::string said = R"({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
      "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]})";
  const std::string call = R"({"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "c",
      "name": "f", "arguments": "{}"})";
  const std::string result = R"({"type": "function_call_output", "call_id": "c", "output": "r"})";
  const std::string called =
      R"("tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{}}}])";
  const auto roles = [](const RequestJson& turns) {
    std::string all;
    for (const RequestJson& turn : turns) all += turn["role"].get<std::string>() + " ";
    return all;
  };
  EXPECT_EQ(turns_of_response(user + thoughts + ", " + said)[1].dump(),
            R"({"role":"assistant","content":"a","reasoning_content":"t"})");
  const RequestJson turns = turns_of_response(user + thoughts + ", " + said + ", " + call + ", " + result);
  EXPECT_EQ(roles(turns), "user assistant tool ");
  EXPECT_EQ(turns[1].dump(),
            R"({"role":"assistant","content":"a",)" + called + R"(,"reasoning_content":"t"})");
  EXPECT_EQ(turns_of_response(user + thoughts + ", " + call)[1].dump(),
            R"({"role":"assistant",)" + called + R"(,"reasoning_content":"t"})");
  EXPECT_EQ(turns_of_response(user + call + ", " + call)[1]["tool_calls"].size(), 2u);
  // One that was cut among its thoughts, and one that has none.
  EXPECT_EQ(turns_of_response(user + thoughts + ", " + user + thoughts)[1].dump(),
            R"({"role":"assistant","content":"","reasoning_content":"t"})");
  EXPECT_EQ(roles(turns_of_response(user + thoughts)), "user assistant ");
  EXPECT_EQ(turns_of_response(R"({"type": "reasoning", "id": "rs_1", "summary": []}, )" + said).dump(),
            R"([{"role":"assistant","content":"a"}])");
  EXPECT_EQ(roles(turns_of_response(said + ", " + thoughts + ", " + call)), "assistant assistant ");
  // Errors are of the item, whichever turn it became.
  const std::string late =
      R"({"input": [)" + user + thoughts + ", " + call + R"(, {"role": "cook", "content": "x"}]})";
  EXPECT_EQ(refusal(parse_responses_request, late).field(), "input[3].role");
  EXPECT_EQ(refusal(parse_responses_request,
                    R"({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]})")
                .field(),
            "input[0].encrypted_content");
}

TEST(OpenAiRequest, FormatsOfTheOutput) {
  EXPECT_EQ(parse_chat_completion(with_messages(R"("response_format": {"type": "json_object"})"))
                .settings.grammar()
                .ShortDebugString(),
            "json_object: true");
  const OpenAiRequest schema = parse_chat_completion(with_messages(
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"type": "null"}}})"));
  EXPECT_EQ(schema.settings.grammar().json_schema(), R"({"type":"null"})");
  const OpenAiRequest rules = parse_completion(
      with_prompt(R"("grammar": "root ::= [a]", "min_tokens": 3, "allowed_token_ids": [4, 5])"));
  EXPECT_EQ(
      rules.settings.ShortDebugString(),
      "sampling { allowed_token_ids: 4 allowed_token_ids: 5 } stopping { max_tokens: 16 min_tokens: 3 } "
      "grammar { gbnf: \"root ::= [a]\" }");
}

TEST(OpenAiRequest, SamplersThatOpenAiDoesNotHave) {
  const OpenAiRequest request = parse_completion(with_prompt(
      R"("typical_p": 0.5, "xtc_probability": 0.25, "xtc_threshold": 0.125, "dry_multiplier": 1, "dry_base": 2,
         "dry_allowed_length": 3, "dry_range": 64, "dry_sequence_breakers": ["x"], "dynamic_temperature_range": 0.5,
         "dynamic_temperature_exponent": 2)"));
  EXPECT_EQ(request.settings.sampling().ShortDebugString(),
            "typical_p: 0.5 xtc_probability: 0.25 xtc_threshold: 0.125 dry_multiplier: 1 dry_base: 2 "
            "dry_allowed_length: 3 dry_range: 64 dry_sequence_breakers: \"x\" dynamic_temperature_range: 0.5 "
            "dynamic_temperature_exponent: 2");
  EXPECT_EQ(refusal(parse_completion, with_prompt(R"("dry_sequence_breakers": [1])")).field(),
            "dry_sequence_breakers");
}

TEST(OpenAiRequest, ToolsAndWhichOfThemMustBeCalled) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "description": "d"}},
    {"type": "function", "function": {"name": "g", "parameters": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}}}])";
  const ChatPrompt offered = *parse_chat_completion(with_messages(tools)).chat;
  EXPECT_TRUE(offered.has_tools);
  EXPECT_EQ(offered.variables["tools"].size(), 2u);
  EXPECT_TRUE(offered.tools.forced.is_null());
  const ChatPrompt none = *parse_chat_completion(with_messages(tools + R"(, "tool_choice": "none")")).chat;
  EXPECT_FALSE(none.has_tools);
  EXPECT_TRUE(none.variables["tools"].is_null());
  const ChatPrompt any = *parse_chat_completion(with_messages(tools + R"(, "tool_choice": "required")")).chat;
  EXPECT_EQ(any.tools.forced.size(), 2u);
  const ChatPrompt one =
      *parse_chat_completion(
           with_messages(
               tools +
               R"(, "tool_choice": {"type": "function", "function": {"name": "g"}}, "parallel_tool_calls": false)"))
           .chat;
  EXPECT_TRUE(one.tools.one_call);
  v1::Grammar grammar;
  force_call(one.tools.forced, ToolCallStyle::bare, grammar);
  EXPECT_EQ(grammar.json_schema(),
            R"({"anyOf":[{"type":"object","properties":{"name":{"const":"g"},"parameters":)"
            R"({"$ref":"#/anyOf/0/properties/parameters/$defs/a","$defs":{"a":{"type":"object"}}}},)"
            R"("required":["name","parameters"]}]})");
  EXPECT_EQ(grammar.prefix(), "");
  force_call(any.tools.forced, ToolCallStyle::tagged, grammar);
  EXPECT_EQ(grammar.prefix(), "<tool_call>\n");
  EXPECT_NE(grammar.json_schema().find(R"("arguments":{"type":"object","additionalProperties":false})"),
            std::string::npos);
}

TEST(OpenAiRequest, ChatRefusalsNameTheField) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": ["x"]})", "messages[0]"},
      {R"({"messages": [{"role": "king", "content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": "x", "weight": 1}]})", "messages[0].weight"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": 5}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {R"({"messages": [{"role": "user", "content": null}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]})", "messages[0].images"},
      {R"({"messages": [{"role": "assistant", "content": "x", "prefix": true}]})", "messages[0].prefix"},
      {with_messages(R"("function_call": "auto")"), "function_call"},
      {with_messages(R"("verbosity": "low")"), "verbosity"},
      {with_messages(R"("response_format": {"type": "yaml"})"), "response_format.type"},
      {with_messages(R"("response_format": {"type": "json_schema"})"), "response_format.json_schema"},
      {with_messages(R"("response_format": {"type": "json_schema", "json_schema": {}})"),
       "response_format.json_schema.name"},
      {with_messages(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})"),
       "response_format.json_schema.schema"},
      {with_messages(R"("response_format": {"type": "text", "schema": {}})"), "response_format.schema"},
      {with_messages(R"("response_format": {"type": "json_object"}, "grammar": "root ::= [a]")"), "grammar"},
      {with_messages(R"("tools": {})"), "tools"},
      {with_messages(R"("tools": [{"type": "web_search"}])"), "tools[0].type"},
      {with_messages(R"("tools": [{"type": "function"}])"), "tools[0].function"},
      {with_messages(R"("tools": [{"type": "function", "function": {"name": "a b"}}])"),
       "tools[0].function.name"},
      {with_messages(R"("tools": [{"type": "function", "function": {"name": "f"}},
         {"type": "function", "function": {"name": "g"}}, {"type": "function", "function": {"name": "f"}}])"),
       "tools[2].function.name"},
      {with_messages(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}])"),
       "tools[0].function.parameters"},
      {with_messages(R"("tools": [{"type": "function", "function": {"name": "f", "more": 5}}])"),
       "tools[0].function.more"},
      {with_messages(R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "maybe")"),
       "tool_choice"},
      {with_messages(R"("tools": [{"type": "function", "function": {"name": "f"}}],
         "tool_choice": {"type": "function", "function": {"name": "g"}})"),
       "tool_choice.function.name"},
      {with_messages(R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required",
         "response_format": {"type": "json_object"})"),
       "tool_choice"},
      {with_messages(R"("tool_choice": "required")"), "tool_choice"},
      {with_messages(R"("tool_choice": "auto")"), "tool_choice"},
      {with_messages(R"("functions": [{}])"), "functions"},
      {with_messages(R"("reasoning_effort": "high")"), "reasoning_effort"},
      {with_messages(R"("modalities": ["audio"])"), "modalities"},
      {with_messages(R"("top_logprobs": 3)"), "top_logprobs"},
      {with_messages(R"("logprobs": 3)"), "logprobs"},
      {with_messages(R"("max_tokens": 3, "max_completion_tokens": 4)"), "max_tokens"},
      {with_messages(R"("chat_template_kwargs": {"messages": 1})"), "chat_template_kwargs"},
      {with_messages(R"("chat_template": "x")"), "chat_template"},
      {with_messages(R"("prompt": "x")"), "prompt"},
  };
  for (const auto& [body, field] : cases) {
    const FrontError error = refusal(parse_chat_completion, body);
    EXPECT_EQ(error.field(), field) << body << ": " << error.what();
  }
}

TEST(OpenAiError, SpeaksOfTheClientsFields) {
  const FrontError shared(FrontErrorCode::invalid_argument,
                          "sampling.temperature: -1 is not accepted; expected x", "sampling.temperature");
  const FrontError error = in_client_words(shared, {});
  EXPECT_EQ(error.field(), "temperature");
  EXPECT_STREQ(error.what(), "temperature: -1 is not accepted; expected x");
  const FrontError most(FrontErrorCode::invalid_argument, "stopping.max_tokens: x", "stopping.max_tokens");
  EXPECT_STREQ(in_client_words(most, {.max_tokens = "max_completion_tokens"}).what(),
               "max_completion_tokens: x");
  const FrontError schema(FrontErrorCode::invalid_argument, "grammar.json_schema: at #: x",
                          "grammar.json_schema");
  EXPECT_EQ(in_client_words(schema, {}).field(), "response_format.json_schema.schema");
  const FrontError ids(FrontErrorCode::invalid_argument, "tokens.ids[3]: x", "tokens.ids[3]");
  EXPECT_EQ(in_client_words(ids, {}).field(), "prompt[3]");
}

TEST(OpenAiError, HasTheDocumentedShape) {
  const HttpReply reply = error_reply(FrontError(FrontErrorCode::invalid_argument, "stop: \"\n\"", "stop"));
  EXPECT_EQ(reply.status, 400u);
  EXPECT_EQ(
      reply.body,
      R"({"error":{"message":"stop: \" \"","type":"invalid_request_error","param":"stop","code":null}})");
  EXPECT_EQ(error_reply(FrontError(FrontErrorCode::invalid_argument, "model: x", "model")).status, 400u);
  const HttpReply full = error_reply(FrontError(FrontErrorCode::context_exceeded, "prompt: x", "prompt"));
  EXPECT_EQ(full.status, 400u);
  EXPECT_EQ(
      full.body,
      R"({"error":{"message":"prompt: x","type":"invalid_request_error","param":"prompt","code":"context_length_exceeded"}})");
  EXPECT_EQ(error_reply(FrontError(FrontErrorCode::unknown_model, "model: x", "model")).status, 404u);
  EXPECT_EQ(error_reply(FrontError(FrontErrorCode::resource_exhausted, "x")).status, 429u);
  EXPECT_EQ(error_reply(FrontError(FrontErrorCode::unavailable, "x")).status, 503u);
  EXPECT_EQ(error_reply(FrontError(FrontErrorCode::internal, "x")).status, 500u);
}

}  // namespace
}  // namespace ete::front
