#include <absl/strings/escaping.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "clients/cli/command.h"
#include "clients/cli/input.h"
#include "clients/cli/model_tokenizer.h"
#include "clients/cli/output.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeOptions {
  std::string model;
  bool decode = false;
  bool special = false;
  bool no_bos = false;
};

Json parse_json(const std::string& line) {
  try {
    return Json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    const std::string what = error.what();
    throw Error(ErrorCode::invalid_argument, "not JSON: " + what.substr(what.find("] ") + 2));
  }
}

Json encode_line(const front::Tokenizer& tokenizer, const TokenizeOptions& options, const std::string& line) {
  const Json text = parse_json(line);
  if (!text.is_string()) {
    throw Error(ErrorCode::invalid_argument, std::string("a JSON string is due, not ") + text.type_name());
  }
  front::EncodeOptions how;
  how.add_special = !options.no_bos;
  how.parse_special = options.special;
  return {{"ids", tokenizer.encode(text.get_ref<const std::string&>(), how)}};
}

Json decode_line(const front::Tokenizer& tokenizer, const std::string& line) {
  const Json input = parse_json(line);
  // What encoding prints is taken as it is.
  const bool encoded = input.is_object() && input.size() == 1 && input.contains("ids");
  const Json& list = encoded ? input["ids"] : input;
  if (!list.is_array()) {
    throw Error(ErrorCode::invalid_argument,
                std::string("a JSON list of ids is due, or {\"ids\":[..]} alone, not ") + list.type_name());
  }
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
      throw Error(ErrorCode::invalid_argument, "not an id: " + to_text(id));
    }
    ids.push_back(id.get<int32_t>());
  }
  return {{"text", tokenizer.decode_text(ids)}, {"bytes_hex", absl::BytesToHexString(tokenizer.decode(ids))}};
}

int tokenize(const TokenizeOptions& options) {
  if (options.model.empty()) throw UsageError("--model: \"\" is no path");
  const auto tokenizer = open_model_tokenizer(options.model);
  std::string line;
  for (int64_t number = 1; read_line(line); ++number) {
    Json answer;
    try {
      answer = options.decode ? decode_line(*tokenizer, line) : encode_line(*tokenizer, options, line);
    } catch (const std::runtime_error& error) {
      // Input that is wrong, not a flag.
      throw Error(ErrorCode::corrupt, "line " + std::to_string(number) + " of stdin: " + error.what());
    }
    print(to_text(answer) + "\n");
  }
  return 0;
}

}  // namespace

void add_tokenize_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "tokenize", "JSON strings on stdin, one a line, to {\"ids\":[..]}, one a line; loads no weights");
  auto options = std::make_shared<TokenizeOptions>();
  command
      ->add_option("--model", options->model,
                   "a GGUF file, a directory with tokenizer.json or tokenizer.model, or random:SHAPE")
      ->type_name("PATH")
      ->required();
  CLI::Option* decode = command->add_flag("--decode", options->decode,
                                          "JSON lists of ids, or {\"ids\":[..]}, on stdin, one a line, to "
                                          "{\"text\",\"bytes_hex\"}; ids past the tokenizer's, which models "
                                          "may have, are no text");
  command->add_flag("--special", options->special, "read special tokens in the text as tokens")
      ->excludes(decode);
  command->add_flag("--no-bos", options->no_bos, "add no begin- and end-of-text tokens")->excludes(decode);
  command->callback([&action, options] { action = [options] { return tokenize(*options); }; });
}

}  // namespace ete::cli
