#include "clients/cli/run_options.h"

#include <charconv>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "clients/cli/arguments.h"
#include "clients/cli/command.h"
#include "clients/cli/default_model.h"
#include "clients/cli/file_input.h"
#include "clients/cli/input.h"
#include "clients/options/command_line.h"
#include "clients/options/engine_flags.h"
#include "services/common/address.h"
#include "services/common/service_flags.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::cli {
namespace {

constexpr const char* kGroup = "Generation options";
constexpr int kDefaultMaxTokens = 256;
constexpr int kMaxStops = 64;
constexpr size_t kMaxStopBytes = 1024;
constexpr double kMaxFloat = std::numeric_limits<float>::max();

// A number of a half-open or closed interval; what lies outside is told as `accepted`.
struct NumberFlag {
  std::string name;
  std::string accepted;
  std::string description;
  double lowest = 0;
  double highest = kMaxFloat;
  bool above_lowest = false;  // lowest itself is refused
};

void add_number(CLI::App& app, const NumberFlag& flag, std::function<void(float)> set) {
  app.add_option_function<std::string>(
         flag.name,
         [flag, set = std::move(set)](const std::string& text) {
           const auto number = parse_number(text, flag.lowest, flag.highest);
           // What the request can hold counts: a tiny double may be a float's 0.
           const bool refused = !number || (flag.above_lowest &&
                                            static_cast<float>(*number) <= static_cast<float>(flag.lowest));
           if (refused) reject_flag(flag.name, text, flag.accepted);
           set(static_cast<float>(*number));
         },
         flag.description)
      ->type_name("X")
      ->group(kGroup);
}

void add_count(CLI::App& app, const std::string& name, const std::string& description,
               std::function<void(int32_t)> set) {
  app.add_option_function<std::string>(
         name,
         [name, set = std::move(set)](const std::string& text) {
           const auto count = parse_integer(text, 0, std::numeric_limits<int32_t>::max());
           if (!count) reject_flag(name, text, "a whole number, at least 0");
           set(static_cast<int32_t>(*count));
         },
         description)
      ->type_name("N")
      ->group(kGroup);
}

void add_sampling_flags(CLI::App& app, v1::Sampling& sampling) {
  add_number(
      app,
      {"--temperature", "a number from 0 to 3.4e38", "0: always the best token; 1: as the model says [0]"},
      [&sampling](float value) { sampling.set_temperature(value); });
  add_count(app, "--top-k", "keep the k best tokens; 0: all [0]",
            [&sampling](int32_t value) { sampling.set_top_k(value); });
  add_number(app,
             {"--top-p", "a number above 0, at most 1", "keep the fewest best tokens of this probability [1]",
              0, 1, true},
             [&sampling](float value) { sampling.set_top_p(value); });
  add_number(app,
             {"--min-p", "a number from 0 to 1",
              "keep tokens at least this many times as probable as the best [0]", 0, 1},
             [&sampling](float value) { sampling.set_min_p(value); });
  add_number(app,
             {"--repeat-penalty", "a number above 0, at most 3.4e38",
              "above 1: makes tokens that were seen less likely [1]", 0, kMaxFloat, true},
             [&sampling](float value) { sampling.set_repetition_penalty(value); });
  app.add_option_function<std::string>(
         "--seed",
         [&sampling](const std::string& text) {
           uint64_t seed = 0;
           const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
           if (error != std::errc() || end != text.data() + text.size()) {
             reject_flag("--seed", text, "a whole number from 0 to 2^64 - 1");
           }
           sampling.set_seed(seed);
         },
         "the same seed gives the same text [drawn at random]")
      ->type_name("N")
      ->group(kGroup);
}

void add_stopping_flags(CLI::App& app, v1::Stopping& stopping) {
  const std::string usual =
      stopping.has_max_tokens() ? " [" + std::to_string(stopping.max_tokens()) + "]" : "";
  add_count(app, "--max-tokens", "most tokens to generate" + usual,
            [&stopping](int32_t value) { stopping.set_max_tokens(value); });
  app.add_option_function<std::vector<std::string>>(
         "--stop",
         [&stopping](const std::vector<std::string>& texts) {
           if (texts.size() > kMaxStops) {
             throw CLI::ValidationError("--stop", "at most " + std::to_string(kMaxStops) + " are accepted");
           }
           for (const std::string& text : texts) {
             if (text.empty() || text.size() > kMaxStopBytes) reject_flag("--stop", text, "1 to 1024 bytes");
             stopping.add_stop(text);
           }
         },
         "end before this text; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(kGroup);
  add_count(app, "--min-tokens", "tokens before which the text does not end by itself [0]",
            [&stopping](int32_t value) { stopping.set_min_tokens(value); });
  app.add_flag_callback(
         "--ignore-eos", [&stopping] { stopping.set_ignore_eos(true); },
         "go on after the model's end-of-text ids, up to --max-tokens")
      ->group(kGroup);
}

void add_grammar_flags(CLI::App& app, RunOptions& options) {
  app.add_option("--grammar", options.grammar,
                 "the text is one of the grammar in this file, in llama.cpp's notation (GBNF)")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--json-schema", options.json_schema, "the text is JSON of the JSON Schema in this file")
      ->type_name("FILE")
      ->group(kGroup);
}

template <typename Failure>
void require_utf8(const std::string& what, const std::string& text) {
  const size_t bad = front::find_invalid_utf8(text);
  if (bad != std::string::npos) throw Failure(what + " is not UTF-8: byte " + std::to_string(bad));
}

std::string prompt_text(const std::string& prompt) {
  if (prompt != "-") {
    require_utf8<UsageError>("PROMPT", prompt);
    return prompt;
  }
  std::string text = read_rest();
  require_utf8<std::runtime_error>("PROMPT from stdin", text);
  return text;
}

std::string grammar_text(const std::string& flag, const std::string& path) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 20;  // the server accepts less
  std::string text = read_file({.flag = flag, .path = path, .most_bytes = kMostBytes, .may_be_pipe = true});
  require_utf8<std::runtime_error>(flag + " " + path, text);
  return text;
}

void check_session_flag(const CLI::App& command, const RunOptions& options) {
  if (command.count("--session") == 0) return;
  if (options.session.empty()) throw UsageError("--session: \"\" is no path");
  // Sessions leave a server, and come back into it, through what it caches.
  if (options.engine.prefix_cache == 0) {
    throw UsageError(
        "--session cannot be given with --prefix-cache 0, which leaves nothing to keep; accepted beside it: "
        "--prefix-cache auto, or a size");
  }
}

}  // namespace

void add_request_flags(CLI::App& command, v1::Sampling& sampling, v1::Stopping& stopping) {
  add_stopping_flags(command, stopping);
  add_sampling_flags(command, sampling);
}

void add_generation_flags(CLI::App& command, GenerationOptions& options, int max_tokens) {
  options.sampling.set_temperature(0);
  options.stopping.set_max_tokens(max_tokens);
  add_request_flags(command, options.sampling, options.stopping);
}

void add_server_flags(CLI::App& command, GenerationOptions& options) {
  add_optional_model_flag(command, options.model);
  command
      .add_option_function<std::string>(
          "--address",
          [&options](const std::string& text) {
            try {
              options.address = service::parse_address(text).to_string();
            } catch (const std::invalid_argument& error) {
              throw CLI::ValidationError("--address", error.what());
            }
          },
          "use the server there (unix:/path or host:port) instead of starting one")
      ->type_name("ADDR");
  service::add_client_security_flags(command, "", "that server", options.security);
  for (const char* flag : {"--tls-ca", "--tls-cert", "--tls-key", "--token"}) {
    command.get_option(flag)->needs(command.get_option("--address"));
  }
}

void add_run_flags(CLI::App& command, RunOptions& options) {
  add_server_flags(command, options);
  command.add_option("PROMPT", options.prompt, "the text to continue; - reads all of stdin")->type_name("");
  add_tokens_flag(command, "the prompt as ids, in place of text", options.tokens);
  command
      .add_option(
          "--session", options.session,
          "a file that holds the conversation: PROMPT goes on where it ended, and what comes of it is "
          "kept there; made when it is not there")
      ->type_name("FILE");
  command.add_flag(
      "--json", options.json,
      "one JSON document on stdout, at the end: prompt_ids, ids, text (with U+FFFD for bytes that are "
      "not UTF-8), finish_reason (length, stop_string, stop_token, "
      "context_full, grammar), timings, plan");
  command.add_flag("--chat", options.chat,
                   "PROMPT is what a user says: the model's chat template makes the prompt of it");
  add_generation_flags(command, options, kDefaultMaxTokens);
  add_grammar_flags(command, options);
  add_count(command, "--draft-tokens",
            "tokens to guess a step, 0 to 63, from what prompt and text said before; the text is the same "
            "[as many as pay]",
            [&options](int32_t value) { options.draft_tokens = value; });
  add_engine_flags(command, options.engine);
}

void refuse_beside_address(const CLI::App& command) {
  if (command.count("--address") == 0) return;
  if (command.count("--model") != 0) {
    throw UsageError("--model cannot be given with --address: the server has its model");
  }
  const auto engine = engine_arguments(command);
  if (!engine.empty()) {
    throw UsageError(engine.front().substr(0, engine.front().find('=')) +
                     " cannot be given with --address: the server has its engine options");
  }
}

v1::GenerateRequest make_request(const CLI::App& command, const RunOptions& options) {
  refuse_beside_address(command);
  check_session_flag(command, options);
  const bool has_text = command.count("PROMPT") != 0;
  const bool has_tokens = command.count("--tokens") != 0;
  if (has_text == has_tokens) {
    throw UsageError(has_text ? "PROMPT and --tokens cannot both be given"
                              : "PROMPT or --tokens is required");
  }
  for (const char* flag : {"--tokens", "--session"}) {
    if (!options.chat || command.count(flag) == 0) continue;
    throw UsageError("--chat cannot be given with " + std::string(flag) +
                     ": it makes the whole prompt of PROMPT");
  }
  v1::GenerateRequest request;
  if (has_text) {
    request.set_text(prompt_text(options.prompt));
  } else {
    request.mutable_tokens()->mutable_ids()->Add(options.tokens.begin(), options.tokens.end());
  }
  *request.mutable_sampling() = options.sampling;
  *request.mutable_stopping() = options.stopping;
  if (options.draft_tokens) request.set_draft_tokens(*options.draft_tokens);
  const bool has_grammar = command.count("--grammar") != 0;
  const bool has_schema = command.count("--json-schema") != 0;
  if (has_grammar && has_schema) throw UsageError("--grammar and --json-schema cannot both be given");
  v1::Grammar* grammar = has_grammar || has_schema ? request.mutable_grammar() : nullptr;
  if (has_grammar) grammar->set_gbnf(grammar_text("--grammar", options.grammar));
  if (has_schema) grammar->set_json_schema(grammar_text("--json-schema", options.json_schema));
  return request;
}

}  // namespace ete::cli
