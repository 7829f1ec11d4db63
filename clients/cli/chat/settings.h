#pragma once

#include <string>

#include "ete/v1/generation.pb.h"

namespace ete::cli {

// What /set changes.
struct ChatSettings {
  v1::Sampling sampling;
  v1::Stopping stopping;
  bool stats = false;  // a line of figures behind each reply
};

// name: "temperature" and so on, as the flags without their dashes, or "stats". Throws
// Error(invalid_argument) naming it, the value and what would be accepted; then nothing has changed.
void change_setting(ChatSettings& settings, const std::string& name, const std::string& value);

// A line for each setting.
std::string settings_text(const ChatSettings& settings);

}  // namespace ete::cli
