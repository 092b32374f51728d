#include <algorithm>
#include <cctype>
#include <utility>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "line_reader.h"
#include "readers.h"
#include "series_value.h"
#include "ts_header.h"

namespace dba::data {
namespace {

// Rows of a `.ts` file: the values of a dimension are separated by commas, dimensions by colons, and the label, where
// there is one, is the last field: "1,2,3:4,?,6:walking".
class TsReader : public Reader {
 public:
  TsReader(std::unique_ptr<ByteSource> source, const std::string& file, const ReaderOptions& options)
      : Reader(file, options.labels),
        lines_(std::move(source), file, options.longest_record),
        header_(read_ts_header(lines_, file, options.labels)),
        dimensions_(header_.dimensions),
        length_(header_.series_length) {}

  std::vector<std::string> listed_classes() const override {
    return header_.classes;
  }

 protected:
  bool read(Example& example) override {
    do {
      if (!lines_.next(line_))
        return false;
    } while (says_nothing(trimmed(line_)));
    begin_record(lines_.number());
    example.content = Content::series;
    const std::size_t colon = header_.labelled ? line_.rfind(':') : line_.npos;
    const std::size_t end = std::min(colon, line_.size());
    by_dimension_.clear();
    read_dimensions(0, end, example);
    bool has_label = colon != line_.npos;
    // A row without a label, as those to be classified are: its last field is the dimension that is still missing, or
    // one too many.
    if (has_label && (completes(example.channels, label_text(colon)) || is_dimension(label_text(colon)))) {
      read_dimensions(colon + 1, line_.size(), example);
      has_label = false;
    }
    check_promises(example.channels, end);
    if (has_label && labels() != LabelUse::ignored)
      read_label(colon, example);
    transpose(example);
    dimensions_ = example.channels;
    if (header_.equal_length)
      length_ = steps_;
    return true;
  }

 private:
  // Whether the last field is the only dimension that a row still lacks.
  bool completes(std::size_t channels, std::string_view field) const {
    return channels + 1 == dimensions_ && !(steps_ > 1 && header_.find_class(field));
  }

  // Whether the last field is no label but several values.
  bool is_dimension(std::string_view field) const {
    if (field.find(',') == field.npos || header_.find_class(field))
      return false;
    const char* at = field.data();
    const char* const end = at + field.size();
    float value = 0;
    while ((at = read_value(at, end, value)) != nullptr) {
      at = std::find_if(at, end, [](char c) { return c != ' ' && c != '\t'; });
      if (at == end)
        return true;
      if (*at++ != ',')
        return false;
    }
    return false;
  }

  // The dimensions between two places of the line, behind those that are there already.
  void read_dimensions(std::size_t begin, std::size_t end, Example& example) {
    const char* at = line_.data() + begin;
    const char* const last = line_.data() + end;
    while (true) {
      const char* const start = at;
      const std::size_t before = by_dimension_.size();
      at = read_values(at, last);
      const std::size_t count = by_dimension_.size() - before;
      if (example.channels == 0) {
        steps_ = count;
      } else if (count != steps_) {
        fail_at(start, "dimension " + std::to_string(example.channels + 1) + " has " + bytes::counted(count, "value") +
                           ", the first " + std::to_string(steps_) +
                           "; the dimensions of a case have one length: fill up the shorter ones with ?");
      }
      ++example.channels;
      if (at == last)
        return;
      ++at;
    }
  }

  // One dimension; returns where it ends, at a colon or at `last`.
  const char* read_values(const char* at, const char* last) {
    const char* const start = at;
    while (true) {
      float value = 0;
      const char* const stopped = read_value(at, last, value);
      const char* next = stopped;
      while (next && next != last && (*next == ' ' || *next == '\t' || *next == '\r'))
        ++next;
      if (!next || (next != last && *next != ',' && *next != ':')) {
        const char* const field_end = std::find_if(at, last, [](char c) { return c == ',' || c == ':'; });
        const std::string_view field(at, static_cast<std::size_t>(field_end - at));
        const bool empty = at == start && trimmed(field).empty() && (field_end == last || *field_end == ':');
        fail_at(at, empty ? "a dimension without values; leave empty series out"
                          : value_fault(field, remedy(field, field_end)));
      }
      by_dimension_.push_back(value);
      if (next == last || *next == ':')
        return next;
      at = next + 1;
    }
  }

  // What to do about a field that is no number; empty: nothing is known of it.
  std::string remedy(std::string_view field, const char* end) const {
    const char* const line_end = line_.data() + line_.size();
    const bool last_field = trimmed({end, static_cast<std::size_t>(line_end - end)}).empty();
    const bool first_field = field.data() == line_.data();
    if (!header_.labelled && last_field && !first_field && field.data()[-1] == ':')
      return label_remedy();
    if (header_.labelled && end != line_end && *end == ':' &&
        label_text(static_cast<std::size_t>(end - line_.data())).empty())
      return "; the label stands behind the last colon, and there is nothing: take that colon out";
    const std::string_view text = trimmed(field);
    if (text.find(';') != text.npos)
      return "; values are separated by commas and dimensions by colons, not by semicolons";
    const bool word = !text.empty() && std::isalpha(static_cast<unsigned char>(text.front()));
    if (word && last_field && !first_field && field.data()[-1] == ',') {
      return "; if it is the label, put a colon before it instead of the comma" +
             std::string(header_.labelled ? "" : ", and @classLabel true and the classes into the header");
    }
    return text.find_first_of(" \t") != text.npos ? "; values are separated by commas, not by spaces" : "";
  }

  std::string label_remedy() const {
    return header_.label_denied ? "; if the last field is a label, @classLabel false is wrong: write @classLabel true "
                                  "and the classes"
                                : "; if the last field is a label, put @classLabel true and the classes into the "
                                  "header";
  }

  std::string_view label_text(std::size_t colon) const {
    return trimmed(line_.substr(colon + 1));
  }

  void check_promises(std::size_t channels, std::size_t end) const {
    if (dimensions_ > 0 && channels != dimensions_) {
      std::string reason = "the row has " + bytes::counted(channels, "dimension") + ", " +
                           (header_.dimensions > 0 ? "the header promises " : "those before it ") +
                           std::to_string(dimensions_);
      if (channels == dimensions_ + 1 && !header_.labelled)
        reason += label_remedy();
      else if (header_.univariate)
        reason += "; mend the row, or write @univariate false and @dimensions " + std::to_string(channels);
      else
        reason += header_.dimensions > 0 ? "; mend the row or @dimensions" : "; mend the row";
      fail_at(line_.data() + end, reason);
    }
    if (length_ > 0 && steps_ != length_) {
      fail_at(line_.data(), "the series has " + bytes::counted(steps_, "value") + ", " +
                                (header_.series_length > 0 ? "@seriesLength promises " : "those before it ") +
                                std::to_string(length_) +
                                "; where lengths differ, write @equalLength false and leave out @seriesLength");
    }
  }

  void read_label(std::size_t colon, Example& example) const {
    const std::string_view label = label_text(colon);
    if (label.empty() || label == "?")
      return;
    const std::string* const found = header_.find_class(label);
    if (!found && !header_.classes.empty())
      fail_at(label.data(), "the label " + bytes::in_quotes(label) + not_among(header_.classes));
    example.label = found ? *found : std::string(label);
  }

  static std::string not_among(const std::vector<std::string>& classes) {
    const auto joined =
        std::ranges::find_if(classes, [](const std::string& name) { return name.find(',') != name.npos; });
    const std::string which = classes.size() == 1
                                  ? " is not " + bytes::in_quotes(classes[0]) + ", the only class of the header"
                                  : " is none of the " + std::to_string(classes.size()) + " classes of the header";
    if (joined == classes.end())
      return which + "; add it to @classLabel or mend the row";
    return which + "; @classLabel separates classes by spaces, not by commas as in " + bytes::in_quotes(*joined);
  }

  // Channel after channel becomes step after step.
  void transpose(Example& example) {
    if (example.channels == 1) {
      example.values.swap(by_dimension_);
      return;
    }
    example.values.resize(by_dimension_.size());
    const float* from = by_dimension_.data();
    for (std::size_t channel = 0; channel < example.channels; ++channel) {
      float* to = example.values.data() + channel;
      for (std::size_t step = 0; step < steps_; ++step, to += example.channels)
        *to = *from++;
    }
  }

  [[noreturn]] void fail_at(const char* place, const std::string& reason) const {
    fail("column " + std::to_string(place - line_.data() + 1) + ": " + reason);
  }

  LineReader lines_;
  TsHeader header_;
  std::size_t dimensions_;  // 0: not known yet
  std::size_t length_;      // 0: not known yet, or they may differ
  std::string_view line_;
  std::size_t steps_ = 0;            // of the row
  std::vector<float> by_dimension_;  // channels × steps
};

}  // namespace

std::unique_ptr<Reader> open_ts(std::unique_ptr<ByteSource> source, const std::string& file,
                                const ReaderOptions& options) {
  return std::make_unique<TsReader>(std::move(source), file, options);
}

}  // namespace dba::data
