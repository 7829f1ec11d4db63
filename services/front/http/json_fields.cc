#include "services/front/http/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "services/common/safe_text.h"
#include "services/front/front_error.h"

namespace ete::front {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMostShown = 64;     // bytes of a value in a message
constexpr int kNumberOverflow = 406;  // nlohmann's number for what no double holds

// nlohmann's own builder looks through all members of an object for each new one: time that grows with the
// square of what a request holds.
class RequestBuilder final : public nlohmann::json_sax<RequestJson> {
 public:
  RequestJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }

  bool start_object(size_t /*size*/) override { return open(RequestJson::object()); }
  bool key(string_t& name) override {
    Open& object = open_.back();
    if (!object.names.insert(name).second) {
      throw FrontError(FrontErrorCode::invalid_argument,
                       "the request's JSON has " + shown(name) + " twice in one object");
    }
    object.name = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t /*size*/) override { return open(RequestJson::array()); }
  bool end_array() override { return close(); }

  bool parse_error(size_t /*position*/, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    if (error.id == kNumberOverflow) refuse_field(path(), service::safe_text(token, kMostShown), "a number");
    throw FrontError(FrontErrorCode::invalid_argument,
                     "the request is no JSON: " + service::safe_text(error.what(), 200));
  }

 private:
  struct Open {
    RequestJson value;
    std::set<std::string> names;  // of its members, and
    std::string name;             // the next one's
  };

  bool open(RequestJson empty) {
    if (open_.size() >= kMaxDepth) {
      throw FrontError(FrontErrorCode::invalid_argument,
                       "the request's JSON is nested more than " + std::to_string(kMaxDepth) + " deep");
    }
    open_.push_back({std::move(empty), {}, {}});
    return true;
  }
  bool close() {
    RequestJson value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }
  // Where the next value stands.
  std::string path() const {
    std::string path;
    for (const Open& in : open_) {
      if (in.value.is_array()) {
        path += "[" + std::to_string(in.value.size()) + "]";
      } else {
        path += (path.empty() ? "" : ".") + service::safe_text(in.name, kMostShown);
      }
    }
    return path;
  }
  bool add(RequestJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& in = open_.back(); in.value.is_array()) {
      in.value.push_back(std::move(value));
    } else {
      in.value.get_ref<RequestJson::object_t&>().emplace_back(std::move(in.name), std::move(value));
    }
    return true;
  }

  RequestJson root_;
  std::vector<Open> open_;
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
    refuse_field(path, shown(value), "a number");
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

void JsonFields::refuse_others() const {
  for (const auto& [name, value] : value_.items()) {
    if (!known_.contains(name)) {
      const std::string field = service::safe_text(path_of(name), kMostShown);
      throw FrontError(FrontErrorCode::invalid_argument, field + ": no such field is known", field);
    }
  }
}

}  // namespace ete::front
