#include "dba/data/reader.h"

#include <cmath>
#include <utility>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "missing_values.h"

namespace dba::data {

Reader::Reader(std::string file, LabelUse labels) : file_(std::move(file)), labels_(labels) {}

std::string Reader::place() const {
  const std::string& file = current_.empty() ? file_ : current_;
  return line_ == 0 ? file : file + ":" + std::to_string(line_);
}

void Reader::fail(const std::string& reason) const {
  throw bytes::FormatError(place() + ": " + reason);
}

// A bad record counts as well.
bool Reader::read_counted(Example& example) {
  example.clear();
  try {
    const bool more = read(example);
    position_ += more ? 1 : 0;
    return more;
  } catch (const bytes::FormatError&) {
    ++position_;
    throw;
  }
}

bool Reader::next(Example& example) {
  example.clear();
  try {
    while (position_ < begin_ && read_counted(example)) {
    }
    if (position_ >= end_ || !read_counted(example)) {
      if (count_ == 0 && !met_error_)
        throw bytes::FormatError(file_ + ": holds no examples");
      return false;
    }
    if (content_ && *content_ != example.content) {
      fail("holds " + std::string(name_of(example.content)) + ", but the records before it hold " +
           std::string(name_of(*content_)) + "; a data set has one kind of content");
    }
    if (example.content == Content::series)
      check_series(example);
    if (labels_ == LabelUse::ignored || (example.label && example.label->empty()))
      example.label.reset();
    if (labels_ == LabelUse::required && !example.label)
      fail("has no label; give it one, or leave it out");
  } catch (const bytes::FormatError&) {
    met_error_ = true;
    throw;
  }
  content_ = example.content;
  channels_ = example.channels;
  ++count_;
  return true;
}

void Reader::check_series(Example& example) {
  if (example.values.empty() || example.channels == 0)
    fail("the series has no time steps");
  if (content_ && channels_ != example.channels) {
    fail("the series has " + bytes::counted(example.channels, "channel") + ", those before it " +
         std::to_string(channels_) + "; all series of a data set have the same channels");
  }
  std::size_t missing = 0;
  for (const float value : example.values) {
    if (std::isinf(value))
      fail("the series holds an infinite value");
    missing += std::isnan(value) ? 1 : 0;
  }
  if (missing > 0) {
    repairs_.missing_values += missing;
    repairs_.empty_channels += fill_missing(example.values, example.channels);
    ++repairs_.series;
  }
}

}  // namespace dba::data
