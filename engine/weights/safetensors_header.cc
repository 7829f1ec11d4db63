#include "engine/weights/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

constexpr size_t kMaxRank = 8;
constexpr int kMaxMetadataDepth = 4;

enum class Field : uint8_t { none, dtype, shape, data_offsets };

const char* name_of(Field field) {
  return field == Field::dtype ? "dtype" : field == Field::shape ? "shape" : "data_offsets";
}

// Receives the events of the JSON parser, in the order of the text.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}
  std::vector<SafetensorsEntry> take() { return std::move(entries_); }

  bool null() override { return value("null"); }
  bool boolean(bool value_seen) override { return value(value_seen ? "true" : "false"); }
  bool number_integer(int64_t number) override { return value(std::to_string(number)); }
  bool number_float(double, const std::string& text) override { return value(text); }
  bool number_unsigned(uint64_t number) override {
    if (place_ != Place::list || number > INT64_MAX) return value(std::to_string(number));
    if (list_.size() == kMaxRank) wrong_list();
    list_.push_back(static_cast<int64_t>(number));
    return true;
  }
  bool string(std::string& text) override {
    if (place_ != Place::entry || field_ != Field::dtype) return value('"' + text + '"');
    dtype_ = std::move(text);
    return true;
  }
  bool binary(nlohmann::json::binary_t&) override { return value("bytes"); }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      place_ = Place::entry;
      dtype_.reset();
      shape_.reset();
      offsets_.reset();
    } else {
      nested("an object");
    }
    return true;
  }
  bool key(std::string& key) override {
    if (place_ == Place::top) {
      begin_entry(std::move(key));
    } else if (place_ == Place::entry) {
      begin_field(key);
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::entry) {
      end_entry();
      place_ = Place::top;
    } else if (place_ == Place::metadata) {
      leave_metadata();
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::entry && (field_ == Field::shape || field_ == Field::data_offsets)) {
      place_ = Place::list;
      list_.clear();
    } else {
      nested("a list");
    }
    return true;
  }
  bool end_array() override {
    if (place_ == Place::list) {
      if (field_ == Field::data_offsets && list_.size() != 2) wrong_list();
      (field_ == Field::shape ? shape_ : offsets_) = list_;
      place_ = Place::entry;
    } else if (place_ == Place::metadata) {
      leave_metadata();
    }
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw Error(ErrorCode::corrupt, file_ + " (header): not valid JSON: " + printable(error.what(), 300));
  }

 private:
  // Where the parser is. `metadata`: after the key __metadata__, and in what it holds.
  enum class Place : uint8_t { start, top, entry, list, metadata };

  [[noreturn]] void corrupt(const std::string& what) const {
    const std::string tensor = place_ == Place::start ? "" : ": tensor " + printable(name_);
    throw Error(ErrorCode::corrupt, file_ + tensor + ": " + what);
  }
  [[noreturn]] void wrong_list() const {
    corrupt(field_ == Field::shape ? "shape is not a list of at most " + std::to_string(kMaxRank) + " extents"
                                   : "data_offsets is not a list of two offsets");
  }

  // A value that is none of those due.
  bool value(const std::string& text) {
    switch (place_) {
      case Place::start:
        corrupt("the header is not a JSON object");
      case Place::top:
        corrupt("the header's entry is not an object");
      case Place::entry:
        if (field_ == Field::dtype) corrupt("dtype is not a string");
        wrong_list();
      case Place::list:
        corrupt(std::string(name_of(field_)) + " holds " + printable(text) +
                " where a whole number >= 0 is due");
      case Place::metadata:
        if (metadata_depth_ == 0) place_ = Place::top;
    }
    return true;
  }

  void nested(const std::string& what) {
    if (place_ != Place::metadata) {
      value(what);
    } else if (++metadata_depth_ > kMaxMetadataDepth) {
      corrupt("nested deeper than " + std::to_string(kMaxMetadataDepth) + " levels");
    }
  }
  void leave_metadata() {
    if (--metadata_depth_ == 0) place_ = Place::top;
  }

  void begin_entry(std::string name) {
    name_ = std::move(name);
    field_ = Field::none;
    if (name_ != "__metadata__") return;
    if (std::exchange(has_metadata_, true)) corrupt("the key occurs twice in one object");
    place_ = Place::metadata;
    metadata_depth_ = 0;
  }

  void begin_field(const std::string& key) {
    bool seen = false;
    if (key == "dtype") {
      field_ = Field::dtype;
      seen = dtype_.has_value();
    } else if (key == "shape") {
      field_ = Field::shape;
      seen = shape_.has_value();
    } else if (key == "data_offsets") {
      field_ = Field::data_offsets;
      seen = offsets_.has_value();
    } else {
      corrupt("field " + printable(key) + " is not known; dtype, shape and data_offsets are");
    }
    if (seen) corrupt("key \"" + key + "\" occurs twice in one object");
  }

  void end_entry() {
    if (!dtype_) corrupt("dtype is missing");
    if (!shape_) corrupt("shape is missing");
    if (!offsets_) corrupt("data_offsets is missing");
    entries_.push_back(
        {std::move(name_), std::move(*dtype_), std::move(*shape_), offsets_->front(), offsets_->back()});
  }

  const std::string& file_;
  std::vector<SafetensorsEntry> entries_;
  Place place_ = Place::start;
  Field field_ = Field::none;
  std::string name_;
  std::optional<std::string> dtype_;
  std::optional<std::vector<int64_t>> shape_;
  std::optional<std::vector<int64_t>> offsets_;
  std::vector<int64_t> list_;
  bool has_metadata_ = false;
  int metadata_depth_ = 0;
};

void refuse_repeated_names(const std::vector<SafetensorsEntry>& entries, const std::string& file) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto repeated = std::adjacent_find(names.begin(), names.end());
  if (repeated != names.end()) {
    throw Error(ErrorCode::corrupt,
                file + " (header): key \"" + printable(*repeated) + "\" occurs twice in one object");
  }
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, const std::string& file) {
  HeaderReader reader(file);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  std::vector<SafetensorsEntry> entries = reader.take();
  refuse_repeated_names(entries, file);
  return entries;
}

}  // namespace ete
