#include "services/front/grammar/json_parts.h"

#include <algorithm>

#include "services/front/tokenizer/utf8.h"

namespace ete::front {

using Part = GrammarBuilder::Part;

namespace {

constexpr uint32_t kMostDigits = 16;
constexpr uint32_t kMostIndent = 20;

const CodePoints kQuote = {{'"', '"'}};
// What a string holds as it is.
const CodePoints kPlain = {{0x20, '!'}, {'#', '['}, {']', kLastCodePoint}};

std::u32string code_points(const std::string& text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char read = read_utf8(std::string_view(text).substr(at));
    out += static_cast<char32_t>(read.code_point);
    at += read.length;
  }
  return out;
}

// Of an int64, without its sign.
std::string magnitude_of(int64_t value) {
  const uint64_t bits = static_cast<uint64_t>(value);
  return std::to_string(value < 0 ? 0 - bits : bits);
}

}  // namespace

// Made once, as a rule.
Part JsonParts::call(std::optional<Rule>& rule, Make make) {
  if (!rule) {
    rule = builder_.declare("JSON");
    builder_.define(*rule, (this->*make)());
  }
  return builder_.call(*rule);
}

Part JsonParts::digit(char low, char high) {
  return builder_.characters({{static_cast<uint32_t>(low), static_cast<uint32_t>(high)}});
}

Part JsonParts::digits(uint32_t least, uint32_t most) { return builder_.repeat(digit(), least, most); }

Part JsonParts::make_space() {
  const Part indent = builder_.repeat(builder_.characters({{' ', ' '}, {'\t', '\t'}}), 0, kMostIndent);
  const Part line = builder_.sequence({builder_.literal("\n"), indent});
  return builder_.either({builder_.nothing(), builder_.literal(" "), line});
}

// Two escapes of half characters are one character, and one alone is none.
Part JsonParts::make_character() {
  const CodePoints hex = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
  const auto hex_digits = [&](uint32_t count) {
    return builder_.repeat(builder_.characters(hex), count, count);
  };
  const Part before_d = builder_.sequence(
      {builder_.characters({{'0', '9'}, {'a', 'c'}, {'e', 'f'}, {'A', 'C'}, {'E', 'F'}}), hex_digits(3)});
  const Part after_d =
      builder_.sequence({builder_.characters({{'d', 'd'}, {'D', 'D'}}), digit('0', '7'), hex_digits(2)});
  const auto half = [&](const CodePoints& third) {
    return builder_.sequence({builder_.literal("u"), builder_.characters({{'d', 'd'}, {'D', 'D'}}),
                              builder_.characters(third), hex_digits(2)});
  };
  const Part pair = builder_.sequence(
      {half({{'8', '9'}, {'a', 'b'}, {'A', 'B'}}), builder_.literal("\\"), half({{'c', 'f'}, {'C', 'F'}})});
  const Part number = builder_.sequence({builder_.literal("u"), builder_.either({before_d, after_d})});
  const Part letter = builder_.characters(
      {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}});
  const Part escape = builder_.sequence({builder_.literal("\\"), builder_.either({letter, number, pair})});
  return builder_.either({builder_.characters(kPlain), escape});
}

Part JsonParts::make_string() {
  return builder_.sequence(
      {builder_.literal("\""), builder_.any_number(make_character()), builder_.literal("\"")});
}

Part JsonParts::string(uint32_t least, std::optional<uint32_t> most) {
  const Part character = call(character_, &JsonParts::make_character);
  return builder_.sequence({builder_.literal("\""),
                            builder_.repeat(character, least, most.value_or(GrammarBuilder::kUnbounded)),
                            builder_.literal("\"")});
}

// What follows `depth` characters that names[begin, end), sorted, have in common, up to the closing quote.
Part JsonParts::names_apart(const std::vector<std::u32string>& names, size_t begin, size_t end,
                            size_t depth) {
  std::vector<Part> ways;
  CodePoints taken = complement(kPlain);
  if (names[begin].size() > depth) ways.push_back(builder_.literal("\""));
  while (begin < end && names[begin].size() == depth) ++begin;
  while (begin < end) {
    const char32_t first = names[begin][depth];
    size_t last = begin;
    while (last < end && names[last][depth] == first) ++last;
    const CodePoints one = {{first, first}};
    taken.push_back(one[0]);
    ways.push_back(builder_.sequence({builder_.characters(one), names_apart(names, begin, last, depth + 1)}));
    begin = last;
  }
  ways.push_back(
      builder_.sequence({builder_.characters(complement(taken)),
                         builder_.any_number(builder_.characters(kPlain)), builder_.characters(kQuote)}));
  return builder_.either(ways);
}

Part JsonParts::other_string(const std::vector<std::string>& names) {
  std::vector<std::u32string> sorted;
  for (const std::string& name : names) {
    const std::u32string text = code_points(name);
    const auto plain = [](char32_t c) { return c >= 0x20 && c != '"' && c != '\\'; };
    // Others cannot be written without escapes anyway.
    if (std::all_of(text.begin(), text.end(), plain)) sorted.push_back(text);
  }
  std::sort(sorted.begin(), sorted.end());
  const Part rest =
      sorted.empty()
          ? builder_.sequence({builder_.any_number(builder_.characters(kPlain)), builder_.characters(kQuote)})
          : names_apart(sorted, 0, sorted.size(), 0);
  return builder_.sequence({builder_.literal("\""), rest});
}

Part JsonParts::whole_number() {
  return builder_.either(
      {builder_.literal("0"), builder_.sequence({digit('1', '9'), digits(0, kMostDigits - 1)})});
}

Part JsonParts::make_integer() {
  return builder_.sequence({builder_.optional(builder_.literal("-")), whole_number()});
}

// Of digits, when both numbers have equally many: digit by digit, free as soon as it has left both bounds.
Part JsonParts::same_length(std::string_view least, std::string_view most) {
  if (least.empty()) return builder_.nothing();
  const auto rest = static_cast<uint32_t>(least.size() - 1);
  const char low = least[0], high = most[0];
  const std::string zeros(rest, '0'), nines(rest, '9');
  if (low == high) {
    return builder_.sequence({digit(low, low), same_length(least.substr(1), most.substr(1))});
  }
  std::vector<Part> ways;
  const bool free_low = least.substr(1) == zeros, free_high = most.substr(1) == nines;
  if (!free_low) ways.push_back(builder_.sequence({digit(low, low), same_length(least.substr(1), nines)}));
  if (!free_high) ways.push_back(builder_.sequence({digit(high, high), same_length(zeros, most.substr(1))}));
  const char from = static_cast<char>(free_low ? low : low + 1);
  const char to = static_cast<char>(free_high ? high : high - 1);
  if (from <= to) ways.push_back(builder_.sequence({digit(from, to), digits(rest, rest)}));
  return builder_.either(ways);
}

// The numbers from least to most, of digits without leading zeros; at least one.
Part JsonParts::magnitude(std::string least, const std::string& most) {
  std::vector<Part> ways;
  while (least.size() < most.size()) {
    ways.push_back(same_length(least, std::string(least.size(), '9')));
    least = "1" + std::string(least.size(), '0');
  }
  ways.push_back(same_length(least, most));
  return builder_.either(ways);
}

Part JsonParts::integer(std::optional<int64_t> least, std::optional<int64_t> most) {
  if (!least && !most) return integer();
  const std::string largest = "9999999999999999999";  // past every int64
  std::vector<Part> ways;
  if (!most || *most >= 0) {
    const int64_t from = std::max<int64_t>(least.value_or(0), 0);
    ways.push_back(magnitude(magnitude_of(from), most ? magnitude_of(*most) : largest));
  }
  if (!least || *least < 0) {
    const int64_t to = std::min<int64_t>(most.value_or(-1), -1);
    ways.push_back(builder_.sequence(
        {builder_.literal("-"), magnitude(magnitude_of(to), least ? magnitude_of(*least) : largest)}));
  }
  return builder_.either(ways);
}

Part JsonParts::fraction_and_exponent() {
  const Part fraction = builder_.sequence({builder_.literal("."), digits(1, kMostDigits)});
  const Part exponent =
      builder_.sequence({builder_.characters({{'e', 'e'}, {'E', 'E'}}),
                         builder_.optional(builder_.characters({{'+', '+'}, {'-', '-'}})), digits(1, 2)});
  return builder_.sequence({builder_.optional(fraction), builder_.optional(exponent)});
}

Part JsonParts::make_number() { return builder_.sequence({make_integer(), fraction_and_exponent()}); }

Part JsonParts::positive_number() { return builder_.sequence({whole_number(), fraction_and_exponent()}); }

Part JsonParts::boolean() { return builder_.either({builder_.literal("true"), builder_.literal("false")}); }

Part JsonParts::comma() { return builder_.sequence({builder_.literal(","), space()}); }

Part JsonParts::bracketed(const char* open, Part inside, const char* close) {
  return builder_.sequence({builder_.literal(open), space(), inside, space(), builder_.literal(close)});
}

Part JsonParts::member(Part key, Part value) {
  return builder_.sequence({key, builder_.literal(":"), space(), value});
}

Part JsonParts::make_object() {
  const Part first = member(string(), any_value());
  const Part more = builder_.any_number(builder_.sequence({comma(), member(string(), any_value())}));
  const Part full = bracketed("{", builder_.sequence({first, more}), "}");
  return builder_.either({builder_.literal("{}"), full});
}

Part JsonParts::make_array() {
  const Part more = builder_.any_number(builder_.sequence({comma(), any_value()}));
  const Part full = bracketed("[", builder_.sequence({any_value(), more}), "]");
  return builder_.either({builder_.literal("[]"), full});
}

Part JsonParts::make_value() {
  return builder_.either({any_object(), any_array(), string(), number(), boolean(), null()});
}

Part JsonParts::any_object() { return call(object_, &JsonParts::make_object); }
Part JsonParts::any_array() { return call(array_, &JsonParts::make_array); }
Part JsonParts::any_value() { return call(value_, &JsonParts::make_value); }

// Of the proleptic Gregorian calendar (RFC 3339, section 5.6).
Part JsonParts::date() {
  const auto text = [&](const char* bytes) { return builder_.literal(bytes); };
  const auto day = [&](char most_tens, char most_units) {  // 01 to the last day
    const Part first = builder_.sequence({text("0"), digit('1', '9')});
    std::vector<Part> ways = {first};
    for (char tens = '1'; tens <= most_tens; ++tens) {
      ways.push_back(
          builder_.sequence({digit(tens, tens), digit('0', tens == most_tens ? most_units : '9')}));
    }
    return builder_.either(ways);
  };
  const auto months = [&](const std::vector<const char*>& names, Part days) {
    std::vector<Part> ways;
    for (const char* name : names) ways.push_back(text(name));
    return builder_.sequence({builder_.either(ways), days});
  };
  const Part any_year = builder_.sequence(
      {digits(4, 4),
       builder_.either({months({"-01-", "-03-", "-05-", "-07-", "-08-", "-10-", "-12-"}, day('3', '1')),
                        months({"-04-", "-06-", "-09-", "-11-"}, day('3', '0')),
                        months({"-02-"}, day('2', '8'))})});
  const auto multiple_of_four = [&](bool zero) {  // of two digits
    const CodePoints even = {{'0', '0'}, {'2', '2'}, {'4', '4'}, {'6', '6'}, {'8', '8'}};
    const CodePoints even_not_zero = {{'2', '2'}, {'4', '4'}, {'6', '6'}, {'8', '8'}};
    const CodePoints odd = {{'1', '1'}, {'3', '3'}, {'5', '5'}, {'7', '7'}, {'9', '9'}};
    std::vector<Part> ways = {
        builder_.sequence({builder_.characters(even), builder_.characters({{'4', '4'}, {'8', '8'}})}),
        builder_.sequence({builder_.characters(zero ? even : even_not_zero), text("0")}),
        builder_.sequence({builder_.characters(odd), builder_.characters({{'2', '2'}, {'6', '6'}})})};
    return builder_.either(ways);
  };
  const Part leap_year = builder_.either({builder_.sequence({digits(2, 2), multiple_of_four(false)}),
                                          builder_.sequence({multiple_of_four(true), text("00")})});
  return builder_.either({any_year, builder_.sequence({leap_year, text("-02-29")})});
}

Part JsonParts::time() {
  const auto text = [&](const char* bytes) { return builder_.literal(bytes); };
  const auto hour = [&] {
    return builder_.either(
        {builder_.sequence({digit('0', '1'), digit()}), builder_.sequence({text("2"), digit('0', '3')})});
  };
  const auto sixty = [&] { return builder_.sequence({digit('0', '5'), digit()}); };
  const Part fraction = builder_.sequence({text("."), digits(1, 9)});
  const Part offset =
      builder_.sequence({builder_.characters({{'+', '+'}, {'-', '-'}}), hour(), text(":"), sixty()});
  return builder_.sequence({hour(), text(":"), sixty(), text(":"), sixty(), builder_.optional(fraction),
                            builder_.either({text("Z"), offset})});
}

std::optional<Part> JsonParts::format(std::string_view name) {
  const auto quoted = [&](const std::vector<Part>& parts) {
    return builder_.sequence({builder_.literal("\""), builder_.sequence(parts), builder_.literal("\"")});
  };
  if (name == "date") return quoted({date()});
  if (name == "time") return quoted({time()});
  if (name == "date-time") return quoted({date(), builder_.literal("T"), time()});
  if (name == "ipv4") {
    std::vector<Part> parts;
    for (int i = 0; i < 4; ++i) {
      if (i > 0) parts.push_back(builder_.literal("."));
      parts.push_back(magnitude("0", "255"));
    }
    return quoted(parts);
  }
  if (name == "uuid") {
    std::vector<Part> parts;
    for (const uint32_t count : {8, 4, 4, 4, 12}) {
      if (!parts.empty()) parts.push_back(builder_.literal("-"));
      parts.push_back(builder_.repeat(builder_.characters({{'0', '9'}, {'a', 'f'}}), count, count));
    }
    return quoted(parts);
  }
  return std::nullopt;
}

}  // namespace ete::front
