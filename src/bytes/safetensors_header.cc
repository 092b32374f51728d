#include "safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "dba/bytes/errors.h"

namespace dba::bytes {
namespace {

// Takes the header as a stream of events. Only the nesting of the format is followed, so no hostile depth is ever
// stored, and no tree is built.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(const std::string& source) : source_(source) {}

  Header take() {
    return std::move(header_);
  }

  bool null() override {
    unexpected("null");
  }
  bool boolean(bool) override {
    unexpected("true or false");
  }
  bool number_float(double, const std::string& text) override {
    unexpected("the number " + in_quotes(text) + ", no 64-bit integer");
  }
  bool binary(binary_t&) override {
    unexpected("binary data");
  }

  bool number_integer(std::int64_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets)
      unexpected("a number");
    if (value < 0)
      fail(number_name() + " is negative: " + std::to_string(value));
    return number_unsigned(static_cast<std::uint64_t>(value));
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(number_name() + " is too large: " + std::to_string(value));
      }
      if (entry_.shape.size() == kMostDimensions) {
        fail("the shape has more than " + std::to_string(kMostDimensions) + " dimensions");
      }
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offsets) {
      if (offset_count_ == 2)
        fail("data_offsets has more than 2 numbers");
      (offset_count_ == 0 ? entry_.begin : entry_.end) = value;
      ++offset_count_;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) {
      header_.metadata.emplace(std::move(key_), std::move(text));
      return true;
    }
    if (place_ != Place::tensor || field_ != Field::dtype)
      unexpected("a string");
    const auto dtype = parse_dtype(text);
    if (!dtype)
      fail("unknown dtype " + in_quotes(text));
    entry_.dtype = *dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::outside:
        place_ = Place::header;
        return true;
      case Place::header:
        place_ = key_ == kMetadataKey ? Place::metadata : Place::tensor;
        entry_ = {};
        entry_.name = place_ == Place::tensor ? key_ : std::string();
        fields_seen_ = 0;
        return true;
      default:
        unexpected("an object");
    }
  }

  bool end_object() override {
    if (place_ == Place::header) {
      place_ = Place::outside;
      return true;
    }
    if (place_ == Place::tensor) {
      for (const Field field : {Field::dtype, Field::shape, Field::offsets}) {
        if (!(fields_seen_ & bit(field)))
          fail("has no " + std::string(name_of(field)));
      }
      header_.entries.push_back(std::move(entry_));
    }
    place_ = Place::header;
    return true;
  }

  bool key(std::string& text) override {
    switch (place_) {
      case Place::header:
        if (text.empty())
          fail("a tensor has an empty name");
        if (!names_.insert(text).second)
          fail("the name " + in_quotes(text) + " occurs twice");
        break;
      case Place::metadata:
        if (header_.metadata.contains(text))
          fail("the key " + in_quotes(text) + " occurs twice in __metadata__");
        break;
      default:
        field_ = parse_field(text);
        if (fields_seen_ & bit(field_))
          fail("has " + text + " twice");
        fields_seen_ |= bit(field_);
    }
    key_ = std::move(text);
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == Field::dtype)
      unexpected("an array");
    place_ = field_ == Field::shape ? Place::shape : Place::offsets;
    offset_count_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offset_count_ != 2) {
      fail("data_offsets must be two numbers, not " + std::to_string(offset_count_));
    }
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    // The message quotes the last token, which may be as long as the header.
    constexpr std::size_t kLongest = 160;
    std::string reason = error.what();
    if (const auto end_of_tag = reason.find("] "); end_of_tag != std::string::npos)
      reason.erase(0, end_of_tag + 2);
    if (reason.size() > kLongest)
      reason = reason.substr(0, kLongest) + "…";
    throw FormatError(source_ + ": the header is not valid JSON at byte " + std::to_string(position) + ": " + reason);
  }

 private:
  enum class Place { outside, header, metadata, tensor, shape, offsets };
  enum class Field { dtype, shape, offsets };

  static unsigned bit(Field field) {
    return 1u << static_cast<unsigned>(field);
  }

  static std::string_view name_of(Field field) {
    return field == Field::dtype ? "dtype" : field == Field::shape ? "shape" : "data_offsets";
  }

  Field parse_field(const std::string& text) const {
    for (const Field field : {Field::dtype, Field::shape, Field::offsets}) {
      if (text == name_of(field))
        return field;
    }
    fail("unknown key " + in_quotes(text) + "; expected dtype, shape and data_offsets");
  }

  std::string number_name() const {
    if (place_ == Place::shape)
      return "dimension " + std::to_string(entry_.shape.size());
    return "data_offsets[" + std::to_string(offset_count_) + "]";
  }

  [[noreturn]] void fail(const std::string& reason) const {
    const bool in_tensor = place_ == Place::tensor || place_ == Place::shape || place_ == Place::offsets;
    throw FormatError(source_ + ": " + (in_tensor ? "tensor " + in_quotes(entry_.name) + ": " : "") + reason);
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (place_) {
      case Place::outside:
        fail("the header must be one JSON object, found " + what);
      case Place::header:
        fail("the value of " + in_quotes(key_) + " must be an object, found " + what);
      case Place::metadata:
        fail("__metadata__ must map strings to strings; the value of " + in_quotes(key_) + " is " + what);
      case Place::tensor:
        fail(std::string(name_of(field_)) + " must be " +
             (field_ == Field::dtype ? "a string" : "an array of integers") + ", found " + what);
      default:
        fail(number_name() + " must be an integer, found " + what);
    }
  }

  const std::string& source_;
  Header header_;
  Place place_ = Place::outside;
  Field field_ = Field::dtype;    // of the value that comes next inside a tensor
  std::string key_;               // of the value that comes next
  std::set<std::string> names_;   // the header's keys so far
  HeaderEntry entry_;             // the tensor being read
  unsigned fields_seen_ = 0;      // of that tensor
  std::size_t offset_count_ = 0;  // of that tensor
};

}  // namespace

Header parse_header(std::string_view json, const std::string& source) {
  // The JSON library takes a zero byte for the end of its input and would not look at what follows.
  if (const auto zero = json.find('\0'); zero != std::string_view::npos) {
    throw FormatError(source + ": the header is not valid JSON at byte " + std::to_string(zero) + ": zero byte");
  }
  HeaderEvents events(source);
  nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  return events.take();
}

}  // namespace dba::bytes
