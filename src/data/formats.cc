#include "dba/data/formats.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <utility>

#include "dba/bytes/errors.h"
#include "readers.h"

namespace dba::data {
namespace {

std::string lower_case_extension(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
  return extension;
}

std::string beginning_of(const std::filesystem::path& path) {
  std::array<char, 4096> buffer;
  return {buffer.data(), open_source(path)->read(buffer)};
}

std::string known_formats() {
  std::string names;
  for (const Format& format : formats())
    names += (names.empty() ? "" : ", ") + format.name;
  return names;
}

}  // namespace

const std::vector<Format>& formats() {
  static const std::vector<Format> list = {
      {"jsonl",
       {".jsonl", ".ndjson"},
       "one JSON object a line: text, text1/text2, tokens, series or pixels; label",
       {},
       open_jsonl},
      {"csv",
       {".csv"},
       "a table with a header, fields separated by commas",
       {},
       [](std::unique_ptr<ByteSource> source, const std::string& file, const ReaderOptions& options) {
         return open_table(std::move(source), file, options, ',');
       }},
      {"listops",
       {".tsv"},
       "Long-Range Arena's ListOps: a table of columns Source and Target",
       [](std::string_view beginning) { return beginning.starts_with("Source\tTarget"); },
       open_listops},
      {"tsv",
       {".tsv", ".tab"},
       "a table with a header, fields separated by tabs",
       {},
       [](std::unique_ptr<ByteSource> source, const std::string& file, const ReaderOptions& options) {
         return open_table(std::move(source), file, options, '\t');
       }},
  };
  return list;
}

const Format& find_format(std::string_view name) {
  const auto found = std::ranges::find(formats(), name, &Format::name);
  if (found == formats().end()) {
    throw std::invalid_argument("find_format: name: expected one of " + known_formats() + ", got " +
                                bytes::in_quotes(name));
  }
  return *found;
}

const Format* recognise(const std::filesystem::path& path) {
  const std::string extension = lower_case_extension(path);
  for (const Format& format : formats()) {
    if (std::ranges::find(format.extensions, extension) == format.extensions.end())
      continue;
    if (!format.claims || format.claims(beginning_of(path)))
      return &format;
  }
  return nullptr;
}

std::unique_ptr<Reader> make_reader(std::unique_ptr<ByteSource> source, const std::string& file,
                                    const ReaderOptions& options) {
  return find_format(options.format).open(std::move(source), file, options);
}

std::unique_ptr<Reader> make_reader(const std::filesystem::path& path, const ReaderOptions& options) {
  const bool standard_input = path == kStandardInput;
  const Format* format = nullptr;
  if (!options.format.empty())
    format = &find_format(options.format);
  else
    format = standard_input ? &find_format("jsonl") : recognise(path);
  if (!format) {
    throw std::invalid_argument("make_reader: cannot tell the format of " + path.string() +
                                " by its extension; name one of " + known_formats());
  }
  return format->open(open_source(path), standard_input ? "standard input" : path.string(), options);
}

}  // namespace dba::data
