#pragma once

#include <spdlog/common.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace ete::service {

// The levels that start_logging takes.
const std::vector<std::string>& log_levels();

enum class LogFormat { text, json };

// spdlog's default logger goes to stderr, a line a message: "time name level message", or an object with
// time (UTC), level, process and message. gRPC's own log goes there at level debug.
void start_logging(const std::string& name, const std::string& level, LogFormat format = LogFormat::text);

// Part of start_logging, for programs without a log of their own: what gRPC logs is not for users, but why it
// ends the process is told in one line.
void take_grpc_log();

// A named value of a message. Never text of a request, never a secret.
struct LogField {
  std::string_view name;
  std::string value;  // empty: left out
};

// A message with values: "message name=value ..." in text, members of the object in JSON.
void log_event(spdlog::level::level_enum level, std::string_view message,
               std::initializer_list<LogField> fields);

}  // namespace ete::service
