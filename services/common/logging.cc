#include "services/common/logging.h"

#include <errno.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <grpc/support/log.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "clients/options/command_line.h"
#include "clients/options/failure.h"
#include "services/common/safe_text.h"

namespace ete::service {
namespace {

using Json = nlohmann::ordered_json;

// Between a message and its values on their way to the formatter: safe_text leaves none in either.
constexpr char kSeparator = '\x1f';

std::string json_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// What log_event made, taken apart again; the first is the message.
std::vector<std::string_view> parts_of(std::string_view payload) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = payload.find(kSeparator);
    parts.push_back(payload.substr(0, end));
    if (end == std::string_view::npos) return parts;
    payload.remove_prefix(end + 1);
  }
}

std::string text_of(std::string_view payload) {
  std::string text;
  for (const std::string_view part : parts_of(payload)) {
    if (text.empty()) {
      text = part;
      continue;
    }
    const size_t equals = part.find('=');
    const std::string_view value = part.substr(equals + 1);
    const bool plain = value.find_first_of(" \"=\\") == std::string_view::npos;
    text += ' ';
    text += part.substr(0, equals + 1);
    text += plain ? std::string(value) : json_line(value);
  }
  return text;
}

std::string json_of(const spdlog::details::log_msg& message) {
  const auto since = message.time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(since - seconds).count();
  const auto level = spdlog::level::to_string_view(message.level);
  Json json = {{"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                                    fmt::gmtime(static_cast<std::time_t>(seconds.count())), ms)},
               {"level", std::string(level.data(), level.size())},
               {"process", std::string(message.logger_name.data(), message.logger_name.size())}};
  const auto parts = parts_of({message.payload.data(), message.payload.size()});
  json["message"] = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    json[std::string(parts[i].substr(0, equals))] = parts[i].substr(equals + 1);
  }
  return json_line(json);
}

// gRPC aborts next. Where it does so because there is no memory for its threads, the process ends as it does
// when others find that out.
void tell_grpc_failure(const std::string& message) {
  std::string reason = "gRPC: " + message;
  bool lacks_threads = false;
  try {
    std::thread([] {}).join();
  } catch (const std::system_error& error) {
    lacks_threads = true;
    reason = failure_text(error, "gRPC started those that it needs (" + message + ")");
  }
  std::cerr << error_line(program_invocation_short_name, reason) + "\n" << std::flush;
  if (lacks_threads) std::_Exit(EXIT_FAILURE);
}

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(LogFormat format) : format_(format) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    if (format_ == LogFormat::json) {
      fmt::format_to(std::back_inserter(out), "{}\n", json_of(message));
      return;
    }
    const std::string text = text_of({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg plain = message;
    plain.payload = text;
    pattern_.format(plain, out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(format_);
  }

 private:
  const LogFormat format_;
  spdlog::pattern_formatter pattern_{"%Y-%m-%dT%H:%M:%S.%e %n %l %v"};
};

}  // namespace

const std::vector<std::string>& log_levels() {
  static const std::vector<std::string> levels{"trace", "debug", "info", "warn", "error", "off"};
  return levels;
}

void start_logging(const std::string& name, const std::string& level, LogFormat format) {
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<LineFormatter>(format));
  logger->set_level(spdlog::level::from_str(level == "error" ? "err" : level));
  spdlog::set_default_logger(std::move(logger));
  take_grpc_log();
}

void take_grpc_log() {
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function([](gpr_log_func_args* args) {
    spdlog::debug("grpc: {}", args->message);
    if (std::string_view(args->message).starts_with("assertion failed")) tell_grpc_failure(args->message);
  });
}

void log_event(spdlog::level::level_enum level, std::string_view message,
               std::initializer_list<LogField> fields) {
  if (!spdlog::should_log(level)) return;
  std::string payload = safe_text(message);
  for (const LogField& field : fields) {
    if (field.value.empty()) continue;
    payload += kSeparator;
    payload += field.name;
    payload += '=';
    payload += safe_text(field.value);
  }
  spdlog::log(level, "{}", payload);
}

}  // namespace ete::service
