#include <array>
#include <regex>

#include "ete_client.h"

namespace ete::client {
namespace {

// By number.
constexpr std::array<const char*, 17> kNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

std::string name(grpc::StatusCode code) {
  const auto number = static_cast<size_t>(code);
  return number < kNames.size() ? kNames[number] : std::to_string(number);
}

// The path of a field in front of the message; empty: none.
std::string field_of(const std::string& message) {
  static const std::regex kField(R"(^([a-z][a-z0-9_]*(\[\d+\])?(\.[a-z][a-z0-9_]*(\[\d+\])?)*): )");
  // Names of fields are short, and std::regex recurses as deep as what it reads is long.
  constexpr size_t kMost = 256;
  const std::string begin = message.substr(0, kMost);
  std::smatch match;
  return std::regex_search(begin, match, kField) ? match[1].str() : "";
}

}  // namespace

Error::Error(grpc::StatusCode code, const std::string& message,
             std::optional<std::chrono::milliseconds> retry_delay)
    : std::runtime_error(name(code) + ": " + message),
      code_(code),
      message_(message),
      field_(code == grpc::INVALID_ARGUMENT ? field_of(message) : ""),
      retry_delay_(retry_delay) {}

std::string Error::code_name() const { return name(code_); }

}  // namespace ete::client
