#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ete::front {

// nlohmann's own builders look through all members of an object for each new one, and with a callback through
// all that is before a value at its end: time that grows with the square of what a text holds. This one takes
// time linear in it but for a logarithm, and stops where the text is nested too deeply.
class JsonBuilder : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  using Json = nlohmann::ordered_json;

  // nlohmann's number of the error for what no double holds.
  static constexpr int kNumberOverflow = 406;

  explicit JsonBuilder(size_t most_depth) : most_depth_(most_depth) {}

  Json take() { return std::move(root_); }

  bool null() final { return add(nullptr); }
  bool boolean(bool value) final { return add(value); }
  bool number_integer(number_integer_t value) final { return add(value); }
  bool number_unsigned(number_unsigned_t value) final { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) final { return add(value); }
  bool string(string_t& value) final { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) final { return false; }
  bool start_object(size_t /*size*/) final { return open(Json::object()); }
  bool key(string_t& name) final;
  bool end_object() final { return close(); }
  bool start_array(size_t /*size*/) final { return open(Json::array()); }
  bool end_array() final { return close(); }

 protected:
  struct Open {
    Json value;
    std::map<std::string, size_t> places;  // of its members, and
    std::string name;                      // the next one's
    size_t place = 0;
  };

  // Whether to go on; throws otherwise, or says no.
  virtual bool nested_too_deeply() { return false; }
  virtual bool named_twice(const std::string& /*name*/) { return true; }  // the later value counts

  const std::vector<Open>& open_values() const { return open_; }

 private:
  bool open(Json empty);
  bool close();
  bool add(Json value);

  const size_t most_depth_;
  Json root_;
  std::vector<Open> open_;
};

}  // namespace ete::front
