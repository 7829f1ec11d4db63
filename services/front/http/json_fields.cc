#include "services/front/http/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "services/common/safe_text.h"
#include "services/front/chat/json_builder.h"
#include "services/front/front_error.h"
#include "services/front/http/number_ranges.h"

namespace ete::front {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMostShown = 64;  // bytes of a value in a message

class RequestBuilder final : public JsonBuilder {
 public:
  RequestBuilder() : JsonBuilder(kMaxDepth) {}

  bool parse_error(size_t /*position*/, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    if (error.id == kNumberOverflow) {
      refuse_field(path(), service::safe_text(token, kMostShown), accepted_number(path()));
    }
    throw FrontError(FrontErrorCode::invalid_argument,
                     "the request is no JSON: " + service::safe_text(error.what(), 200));
  }

 private:
  bool nested_too_deeply() override {
    throw FrontError(FrontErrorCode::invalid_argument,
                     "the request's JSON is nested more than " + std::to_string(kMaxDepth) + " deep");
  }
  bool named_twice(const std::string& name) override {
    throw FrontError(FrontErrorCode::invalid_argument,
                     "the request's JSON has " + shown(name) + " twice in one object");
  }
  // Where the next value stands.
  std::string path() const {
    std::string path;
    for (const Open& in : open_values()) {
      if (in.value.is_array()) {
        path += "[" + std::to_string(in.value.size()) + "]";
      } else {
        path += (path.empty() ? "" : ".") + service::safe_text(in.name, kMostShown);
      }
    }
    return path;
  }
};

}  // namespace

RequestJson parse_request_json(const std::string& bytes) {
  RequestBuilder builder;
  RequestJson::sax_parse(bytes, &builder);
  RequestJson json = builder.take();
  if (!json.is_object()) {
    throw FrontError(FrontErrorCode::invalid_argument,
                     "the request is " + shown(json) + ", expected a JSON object");
  }
  return json;
}

void refuse_field(const std::string& field, const std::string& value, const std::string& accepted) {
  throw FrontError(FrontErrorCode::invalid_argument,
                   field + ": " + value + " is not accepted; expected " + accepted, field);
}

std::string shown(const RequestJson& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  return service::safe_text(value.dump(-1, ' ', true), kMostShown);
}

double number_of(const RequestJson& value, const std::string& path) {
  if (!value.is_number() || std::abs(value.get<double>()) > double{std::numeric_limits<float>::max()}) {
    refuse_field(path, shown(value), value.is_number() ? accepted_number(path) : "a number");
  }
  return value.get<double>();
}

JsonFields::JsonFields(const RequestJson& value, std::string path) : value_(value), path_(std::move(path)) {
  if (!value.is_object()) refuse_field(path_, shown(value), "an object");
}

std::string JsonFields::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

const RequestJson* JsonFields::find(const std::string& name) {
  known_.insert(name);
  const auto it = value_.find(name);
  return it == value_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> JsonFields::boolean(const std::string& name) {
  const RequestJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse_field(path_of(name), shown(*value), "true or false");
  return value->get<bool>();
}

std::optional<int64_t> JsonFields::integer(const std::string& name, int64_t low, int64_t high) {
  const RequestJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool fits =
      value->is_number_integer() && (!value->is_number_unsigned() ||
                                     value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    refuse_field(path_of(name), shown(*value),
                 "an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
  }
  return value->get<int64_t>();
}

std::optional<double> JsonFields::number(const std::string& name) {
  const RequestJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  return number_of(*value, path_of(name));
}

std::optional<std::string> JsonFields::string(const std::string& name) {
  const RequestJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse_field(path_of(name), shown(*value), "a string");
  return value->get<std::string>();
}

void JsonFields::unsupported(const std::string& name, const std::string& instead) {
  const RequestJson* value = find(name);
  if (value == nullptr) return;
  const bool asks_nothing =
      *value == false || *value == 0 || *value == "" || (value->is_structured() && value->empty());
  if (asks_nothing) return;
  throw FrontError(FrontErrorCode::unsupported,
                   path_of(name) + ": not supported by this server" + (instead.empty() ? "" : "; " + instead),
                   path_of(name));
}

void JsonFields::unsupported_but(const std::string& name, const char* word, const std::string& instead) {
  const RequestJson* value = find(name);
  if (value != nullptr && *value != word) unsupported(name, instead);
}

void JsonFields::refuse_others() const {
  for (const auto& [name, value] : value_.items()) {
    if (!known_.contains(name) && !value.is_null()) {
      const std::string field = service::safe_text(path_of(name), kMostShown);
      throw FrontError(FrontErrorCode::invalid_argument, field + ": no such field is known", field);
    }
  }
}

}  // namespace ete::front
