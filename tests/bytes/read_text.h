#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

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

}  // namespace dba::data
