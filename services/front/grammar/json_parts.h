#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/grammar/grammar_builder.h"

namespace ete::front {

// The pieces of JSON (RFC 8259) as parts of a grammar. Between values at most one space, or a line's end and
// up to 20 of indentation; numbers have at most 16 digits before and after the point and 2 of exponent: all
// of it is JSON, and a model that has lost its way comes to an end.
class JsonParts {
 public:
  using Part = GrammarBuilder::Part;

  explicit JsonParts(GrammarBuilder& builder) : builder_(builder) {}

  Part space() { return call(space_, &JsonParts::make_space); }
  Part string() { return call(string_, &JsonParts::make_string); }
  // Of least to most characters; most absent: any number.
  Part string(uint32_t least, std::optional<uint32_t> most);
  // A string that stands for none of these, written without escapes.
  Part other_string(const std::vector<std::string>& names);
  Part integer() { return call(integer_, &JsonParts::make_integer); }
  // Within bounds, inclusive; either may be absent.
  Part integer(std::optional<int64_t> least, std::optional<int64_t> most);
  Part number() { return call(number_, &JsonParts::make_number); }
  Part positive_number();  // or 0
  Part boolean();
  Part null() { return builder_.literal("null"); }
  Part any_value();
  Part any_object();
  Part any_array();
  // What a schema's "format" names; absent: it is none of formats().
  std::optional<Part> format(std::string_view name);
  static const char* formats() { return "date, time, date-time, ipv4 or uuid"; }

  // open, then members or elements joined by commas, then close, with space where it may be.
  Part comma();
  Part bracketed(const char* open, Part inside, const char* close);

 private:
  using Rule = GrammarBuilder::Rule;
  using Make = Part (JsonParts::*)();

  Part call(std::optional<Rule>& rule, Make make);
  Part digit(char low = '0', char high = '9');
  Part digits(uint32_t least, uint32_t most);
  Part make_space();
  Part make_character();
  Part make_string();
  Part make_integer();
  Part make_number();
  Part make_object();
  Part make_array();
  Part make_value();
  Part member(Part key, Part value);
  Part whole_number();
  Part fraction_and_exponent();
  Part magnitude(std::string least, const std::string& most);
  Part same_length(std::string_view least, std::string_view most);
  Part date();
  Part time();
  Part names_apart(const std::vector<std::u32string>& names, size_t begin, size_t end, size_t depth);

  GrammarBuilder& builder_;
  std::optional<Rule> space_, character_, string_, integer_, number_, value_, object_, array_;
};

}  // namespace ete::front
