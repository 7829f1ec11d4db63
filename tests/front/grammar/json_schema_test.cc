#include <nlohmann/json.hpp>

#include "tests/front/grammar/grammar_texts.h"

namespace ete::front {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> complete, contradicts;
};

void expect_texts(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    const auto grammar = schema(one.schema);
    for (const char* text : one.complete) {
      EXPECT_EQ(judge(grammar, text), Verdict::complete) << one.schema << "  " << text;
      EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    }
    for (const char* text : one.contradicts) {
      EXPECT_NE(judge(grammar, text), Verdict::complete) << one.schema << "  " << text;
    }
  }
}

TEST(JsonSchema, Scalars) {
  expect_texts({
      {R"({"type": "string"})",
       {R"("")", R"("aü😀")", R"("\n\"\\\/\u00e9\ud7ff\ue000")", R"("\ud83d\ude00\uDBFF\uDFFF")"},
       {R"("\ud800")", R"("\ude00")", R"("\ud83d\u0041")", R"("\ud83dx")", R"("\ud83d\ud83d")", R"("\x")",
        "\"\n\"", R"("a)", "a", "\"\xff\"", "\"\x01\""}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("ü\n😀")", R"("a\ud83d\ude00\n")"},
       {R"("")", R"("a")", R"("abcd")", R"("\ud83d\ude00")"}},
      {R"({"type": "number"})",
       {"0", "-0", "12.50", "1e5", "1.5E-07", "-3"},
       {"01", ".5", "1.", "+1", "1e", "--1", "NaN", "1 "}},
      {R"({"type": "number", "minimum": 0})", {"0", "0.5", "12"}, {"-1", "-0.5"}},
      {R"({"type": "integer"})", {"0", "-7", "123"}, {"1.0", "01", "1e3", ""}},
      {R"({"type": "boolean"})", {"true", "false"}, {"True", "null", "truee"}},
      {R"({"type": "null"})", {"null"}, {"nul", "0"}},
      {R"({"type": ["integer", "null"]})", {"5", "null"}, {"true"}},
      {R"({})", {"5", "null", R"({"a": [1, {"b": "c"}]})", "[]"}, {"", "[1,]", R"({"a"})"}},
      {R"(true)", {"5", "[true]"}, {"x"}},
      {R"({"enum": ["a", 1, null, {"k": [1, "x"]}, "\"\n"]})",
       {R"("a")", "1", "null", R"({"k":[1,"x"]})", R"("\"\n")"},
       {R"("b")", "2", R"({"k": [1]})"}},
      {R"({"enum": ["a", 1, 2.5, null], "type": ["string", "integer"]})", {R"("a")", "1"}, {"2.5", "null"}},
      {R"({"const": {"b": 1, "a": 2}})", {R"({"b":1,"a":2})"}, {R"({"a":2,"b":1})"}},
  });
}

TEST(JsonSchema, Formats) {
  expect_texts({
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-29")", R"("2000-02-29")", R"("2023-12-31")", R"("2023-04-30")", R"("0001-01-01")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2023-04-31")", R"("2023-13-01")", R"("2023-1-1")",
        R"("2023-01-00")", R"("2023-01-32")"}},
      {R"({"type": "string", "format": "date-time"})",
       {R"("2024-01-31T23:59:59Z")", R"("2024-01-31T00:00:00.123+05:30")"},
       {R"("2024-01-31 23:59:59Z")", R"("2024-01-31T24:00:00Z")", R"("2024-01-31T23:60:59Z")"}},
      {R"({"type": "string", "format": "time"})", {R"("12:00:00Z")"}, {R"("12:00")"}},
      {R"({"type": "string", "format": "ipv4"})",
       {R"("0.10.255.249")"},
       {R"("256.1.1.1")", R"("01.1.1.1")", R"("1.1.1")"}},
      {R"({"type": "string", "format": "uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567")"}},
  });
}

TEST(JsonSchema, IntegersWithinBounds) {
  const std::pair<const char*, std::pair<int, int>> cases[] = {
      {R"({"type": "integer", "minimum": 0, "maximum": 0})", {0, 0}},
      {R"({"type": "integer", "minimum": 7, "maximum": 1234})", {7, 1234}},
      {R"({"type": "integer", "minimum": -105, "maximum": 98})", {-105, 98}},
      {R"({"type": "integer", "exclusiveMinimum": -20, "exclusiveMaximum": -9})", {-19, -10}},
      {R"({"type": "integer", "minimum": 0.5, "maximum": 12.5})", {1, 12}},
      {R"({"type": "integer", "minimum": 1990, "exclusiveMinimum": 1999, "maximum": 2001})", {2000, 2001}},
      {R"({"type": "integer", "minimum": 95})", {95, 1 << 30}},
      {R"({"type": "integer", "maximum": -5})", {-(1 << 30), -5}},
  };
  for (const auto& [text, bounds] : cases) {
    const auto grammar = schema(text);
    for (int value = -1300; value <= 2100; ++value) {
      const bool expected = value >= bounds.first && value <= bounds.second;
      ASSERT_EQ(judge(grammar, std::to_string(value)) == Verdict::complete, expected) << text << " " << value;
    }
    for (const char* other : {"01", "-01", "1.0", "-", "1e2"})
      EXPECT_NE(judge(grammar, other), Verdict::complete);
  }
}

TEST(JsonSchema, Objects) {
  expect_texts({
      {R"({"type": "object"})", {"{}", R"({"a": 1, "b": {}})"}, {"[]", R"({"a": 1,})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}},
           "required": ["b"]})",
       {R"({"b":"x"})", R"({"a": 1, "b": "x"})", R"({"b": "x", "c": [1]})",
        "{\n  \"a\": 1,\n  \"b\": \"\",\n  \"c\": null\n}"},
       {"{}", R"({"a": 1})", R"({"b": 1})", R"({"b": "x", "a": 1})", R"({"b": "x", "b": "y"})",
        R"({"b": "x", "d": 1})", R"({,"b": "x"})", R"({"b": "x",})"}},
      {R"({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": false})",
       {"{}", R"({"a": 1})", R"({"b": 1})", R"({"a": 1, "b": 2})"},
       {R"({"b": 1, "a": 2})", R"({"c": 1})"}},
      {R"({"properties": {"ab": {"type": "integer"}, "a": {"type": "integer"}}, "additionalProperties": {"type": "string"}})",
       {"{}", R"({"ab": 1, "x": "y"})", R"({"abc": "y", "": "z"})", R"({"b": "1"})",
        R"({"ab": 1, "a": 2, "ü": ""})"},
       {R"({"ab": "x"})", R"({"a": "x"})", R"({"x": 1})", R"({"\u0061": "x"})", R"({"x": "y", "a": "x"})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"q": 1, "r": 2})"},
       {R"({"q": "1"})"}},
      {R"({"type": "object", "additionalProperties": false})", {"{}"}, {R"({"a": 1})"}},
      {R"({"properties": {"k\"\n": {"const": 1}}, "required": ["k\"\n"]})", {R"({"k\"\n": 1})"}, {"{}"}},
  });
}

TEST(JsonSchema, Arrays) {
  expect_texts({
      {R"({"type": "array"})", {"[]", "[1, \"a\", []]"}, {"[1,]", "{}"}},
      {R"({"type": "array", "items": {"type": "integer"}})", {"[]", "[1,2, 3]"}, {"[\"a\"]", "[,1]"}},
      {R"({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2})",
       {"[1]", "[1, 2]"},
       {"[]", "[1,2,3]"}},
      {R"({"items": {"type": "integer"}, "minItems": 3})", {"[1,2,3]", "[1,2,3,4]"}, {"[1,2]"}},
      {R"({"items": {"type": "integer"}, "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false})",
       {"[1, \"a\"]"},
       {"[1]", "[1, \"a\", 2]"}},
      {R"({"prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "maxItems": 3})",
       {"[1]", "[1, null, null]"},
       {"[]", "[null]", "[1,null,null,null]"}},
  });
}

TEST(JsonSchema, ReferencesAndAlternatives) {
  expect_texts({
      {R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
           "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}},
           "$ref": "#/$defs/node"})",
       {R"({"v": 1, "next": null})", R"({"v": 1, "next": {"v": 2, "next": {"v": 3, "next": null}}})"},
       {R"({"v": 1})", R"({"v": 1, "next": 5})"}},
      {R"({"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["kids"]})",
       {R"({"kids": []})", R"({"kids": [{"kids": []}, {"kids": [{"kids": []}]}]})"},
       {R"({"kids": [1]})"}},
      {R"({"definitions": {"a~b": {"const": 1}}, "allOf": [{"$ref": "#/definitions/a~0b"}], "title": "t", "description": "d"})",
       {"1"},
       {"2"}},
      {R"({"anyOf": [{"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer"}}, "required": ["t", "x"]},
                     {"type": "object", "properties": {"t": {"const": "b"}, "y": {"type": "string"}}, "required": ["t", "y"]}]})",
       {R"({"t": "a", "x": 1})", R"({"t": "b", "y": ""})"},
       {R"({"t": "a", "y": ""})"}},
  });
}

TEST(JsonSchema, RefusalsNameThePlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no JSON"},
      {"{", "no JSON"},
      {"5", "at #: expected an object or true"},
      {"false", "at #: expected an object or true"},
      {R"({"type": "strin"})", "at #: type strin"},
      {R"({"type": 5})", "type"},
      {R"({"type": []})", "type: expected at least one"},
      {R"({"type": "string", "pattern": "a+"})", "at #: \"pattern\" is not supported"},
      {R"({"type": "string", "format": "email"})", "format email is not supported; expected date"},
      {R"({"properties": {"a": {"items": {"type": "number", "multipleOf": 3}}}})",
       "at #/properties/a/items: \"multipleOf\" is not supported"},
      {R"({"type": "number", "maximum": 5})", "maximum is supported for integers only"},
      {R"({"type": "number", "minimum": 5})", "minimum of a number is supported for 0 only"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no integer lies within its bounds"},
      {R"({"type": "integer", "minimum": 1e300})", "within 2^53"},
      {R"({"type": "integer", "exclusiveMinimum": true})", "exclusiveMinimum: expected a number"},
      {R"({"type": "array", "uniqueItems": true})", "\"uniqueItems\" is not supported"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", "minItems exceeds maxItems"},
      {R"({"type": "array", "minItems": 100000})", "minItems: expected a whole number, at most 10000"},
      {R"({"type": "array", "minItems": -1})", "minItems: expected a whole number"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "minLength exceeds maxLength"},
      {R"({"type": "object", "required": ["a"]})", "required: a is not in properties"},
      {R"({"type": "object", "patternProperties": {}})", "\"patternProperties\" is not supported"},
      {R"({"oneOf": [{}]})", "\"oneOf\" is not supported"},
      {R"({"not": {}})", "\"not\" is not supported"},
      {R"({"anyOf": []})", "anyOf: expected a list that is not empty"},
      {R"({"allOf": [{}, {}]})", "allOf of 2 schemas"},
      {R"({"enum": []})", "enum: expected a list that is not empty"},
      {R"({"enum": ["a"], "type": "integer"})", "no value is of the type"},
      {R"({"enum": ["a"], "maxLength": 3})", "\"maxLength\" is not supported here"},
      {R"({"$ref": "#/$defs/x"})", "$ref: #/$defs/x is not in the schema"},
      {R"({"$ref": "http://example.org"})", "expected one into this schema"},
      {R"({"$ref": "#/~2"})", "is not in the schema"},
      {R"({"$ref": "#"})", "rule # is left-recursive"},
      {R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"})",
       "left-recursive"},
      {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "can never end"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_NE(refusal(schema, text).find(expected), std::string::npos) << text << "\n"
                                                                       << refusal(schema, text);
  }
  EXPECT_NE(refusal(schema, std::string(1000, '[')).find("deep"), std::string::npos);
}

TEST(JsonSchema, LongChainsOfReferencesTakeNoStack) {
  std::string text = R"({"$ref": "#/$defs/0", "$defs": {)";
  for (int i = 0; i < 5000; ++i) {
    text += "\"" + std::to_string(i) + R"(": {"$ref": "#/$defs/)" + std::to_string(i + 1) + "\"},";
  }
  EXPECT_EQ(judge(schema(text + R"("5000": {"const": 7}}})"), "7"), Verdict::complete);
}

}  // namespace
}  // namespace ete::front
