#include "clients/cli/chat/settings.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "clients/cli/run_options.h"
#include "engine/base/error.h"
#include "engine/base/formatted.h"

namespace ete::cli {
namespace {

constexpr std::array<const char*, 7> kNames = {"temperature",    "top-k", "top-p",     "min-p",
                                               "repeat-penalty", "seed",  "max-tokens"};

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& accepted) {
  throw Error(ErrorCode::invalid_argument,
              "/set " + name + ": \"" + value + "\" is not accepted; expected " + accepted);
}

std::string number(double value) { return formatted("%.6g", value); }

}  // namespace

void change_setting(ChatSettings& settings, const std::string& name, const std::string& value) {
  if (name == "stats") {
    if (value != "on" && value != "off") refuse(name, value, "on or off");
    settings.stats = value == "on";
    return;
  }
  if (name == "seed" && value == "random") return settings.sampling.clear_seed();
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    std::string names;
    for (const char* known : kNames) names += std::string(known) + ", ";
    throw Error(ErrorCode::invalid_argument,
                "/set " + name + " is not known; expected one of " + names + "stats");
  }
  // The flags' own checks and words.
  ChatSettings changed = settings;
  CLI::App flags;
  add_request_flags(flags, changed.sampling, changed.stopping);
  try {
    flags.parse(std::vector<std::string>{"--" + name + "=" + value});
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    if (message.starts_with("--")) message.erase(0, 2);
    throw Error(ErrorCode::invalid_argument, "/set " + message);
  }
  settings = changed;
}

std::string settings_text(const ChatSettings& settings) {
  const v1::Sampling& sampling = settings.sampling;
  const bool has_top_p = sampling.has_top_p();
  const bool has_penalty = sampling.has_repetition_penalty();
  const bool has_seed = sampling.has_seed();
  return "temperature     " + number(sampling.temperature()) + "\ntop-k           " +
         std::to_string(sampling.top_k()) + "\ntop-p           " + number(has_top_p ? sampling.top_p() : 1) +
         "\nmin-p           " + number(sampling.min_p()) + "\nrepeat-penalty  " +
         number(has_penalty ? sampling.repetition_penalty() : 1) + "\nseed            " +
         (has_seed ? std::to_string(sampling.seed()) : "random") + "\nmax-tokens      " +
         std::to_string(settings.stopping.max_tokens()) + "\nstats           " +
         (settings.stats ? "on" : "off") + "\n";
}

}  // namespace ete::cli
