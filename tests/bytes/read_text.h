#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dba/bytes/errors.h"
#include "dba/data/formats.h"

namespace dba::data {

/// A reader of text in memory, which errors call "file". The text must outlive it.
inline std::unique_ptr<Reader> read_text(const std::string& format, const std::string& text,
                                         ReaderOptions options = {}) {
  options.format = format;
  return make_reader(memory_source(std::as_bytes(std::span(text))), "file", options);
}

inline std::vector<Example> read_all(Reader& reader) {
  std::vector<Example> examples;
  Example example;
  while (reader.next(example))
    examples.push_back(example);
  return examples;
}

inline std::vector<Example> read_all(const std::string& format, const std::string& text,
                                     const ReaderOptions& options = {}) {
  return read_all(*read_text(format, text, options));
}

inline std::vector<Example> read_path(const std::filesystem::path& path) {
  return read_all(*make_reader(path));
}

inline std::vector<std::string> labels_of(const std::vector<Example>& examples) {
  std::vector<std::string> labels;
  for (const Example& example : examples)
    labels.push_back(example.label.value_or("none"));
  return labels;
}

inline void expect_refused(const std::string& format, const std::string& text, const std::string& reason,
                           const ReaderOptions& options = {}) {
  EXPECT_THAT([&] { read_all(format, text, options); },
              testing::ThrowsMessage<bytes::FormatError>(testing::HasSubstr(reason)))
      << text;
}

}  // namespace dba::data
