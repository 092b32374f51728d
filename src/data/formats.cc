#include "dba/data/formats.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
#include "dba/data/data_path.h"
#include "folder_listing.h"
#include "packed_file.h"
#include "quoted_list.h"
#include "readers.h"
#include "unrecognised.h"

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

// Without the byte order mark that a text may begin with.
std::string without_mark(std::string text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
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
      {"csv_long",
       {".csv"},
       "time series as a table: a row for every time step, columns case, time, one per channel, label",
       is_csv_long,
       open_csv_long},
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
      {"aan",
       {".tsv"},
       "Long-Range Arena's Retrieval: pairs of papers in five columns without a header: label, two ids, two texts",
       is_aan,
       open_aan},
      {"tsv",
       {".tsv", ".tab"},
       "a table with a header, fields separated by tabs",
       {},
       [](std::unique_ptr<ByteSource> source, const std::string& file, const ReaderOptions& options) {
         return open_table(std::move(source), file, options, '\t');
       }},
      {"ts",
       {".ts"},
       "the UEA archive's time series: tags, then a row for every series, dimensions separated by colons",
       {},
       open_ts},
      {"grey",
       {".bin"},
       "grey images of 32 × 32: records of a label byte and 1,024 pixels",
       is_grey,
       open_grey,
       kGreyRecord,
       {},
       {},
       is_grey_name},
      {"cifar10",
       {".bin"},
       "CIFAR-10 in binary, made grey: records of 3,073 bytes, or the folder of data_batch_1.bin to data_batch_5.bin",
       is_cifar10,
       open_cifar10,
       kCifarRecord,
       is_cifar10_folder,
       open_cifar10_folder,
       is_cifar10_name},
      {"imdb",
       {},
       "IMDb: a folder with pos and neg, a file for every review",
       {},
       {},
       0,
       is_imdb_folder,
       open_imdb_folder},
      {"pathfinder",
       {},
       "Long-Range Arena's Pathfinder: a folder with imgs/N/sample_K.png and metadata/N.npy",
       {},
       {},
       0,
       is_pathfinder_folder,
       open_pathfinder_folder},
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
  if (is_folder(path)) {
    const auto found = std::ranges::find_if(
        formats(), [&](const Format& format) { return format.claims_folder && format.claims_folder(path); });
    return found == formats().end() ? nullptr : &*found;
  }
  const std::string name = path.filename().string();
  for (const Format& format : formats()) {
    if (format.claims_name && format.claims_name(name))
      return &format;
  }
  const std::string extension = lower_case_extension(path);
  const Format* cut_short = nullptr;
  for (const Format& format : formats()) {
    if (std::ranges::find(format.extensions, extension) == format.extensions.end())
      continue;
    if (format.claims && !format.claims(format.record > 0 ? beginning_of(path) : without_mark(beginning_of(path))))
      continue;
    if (format.record == 0 || size_of(path) % format.record == 0)
      return &format;
    cut_short = cut_short ? cut_short : &format;
  }
  return cut_short;
}

namespace {

// Why a folder cannot be read, with what in it could.
std::string not_recognised(const std::filesystem::path& folder) {
  for (const std::string& name : names_in(folder)) {
    if (is_folder(folder / name) && recognise(folder / name))
      return ": is no data set itself; name the folder in it, " + (folder / name).string();
  }
  std::vector<std::string> files;
  for (const std::string& name : names_in(folder)) {
    if (is_file(folder / name) && recognise(folder / name))
      files.push_back((folder / name).string());
  }
  constexpr std::size_t kMost = 4;
  if (!files.empty())
    return ": is a folder of data files, which are named one by one (as data.train, data.test): " +
           quoted_list(files, kMost);
  return ": is a folder of no known layout; expected pos and neg (IMDb), data_batch_1.bin … (CIFAR-10), or imgs and "
         "metadata (Pathfinder)";
}

std::unique_ptr<Reader> open_whole(const std::filesystem::path& path, const ReaderOptions& options) {
  const bool standard_input = path == kStandardInput;
  const bool folder = !standard_input && is_folder(path);
  if (!standard_input && is_file(path)) {
    if (const std::string fault = packed_fault(path); !fault.empty())
      throw bytes::FormatError(path.string() + ": " + fault);
  }
  if (!standard_input && is_cache(path)) {
    throw bytes::FormatError(path.string() +
                             ": is a cache of this program, which is read whole and only as data.train, "
                             "data.validation or data.test");
  }
  const Format* format = nullptr;
  if (!options.format.empty())
    format = &find_format(options.format);
  else
    format = standard_input ? &find_format("jsonl") : recognise(path);
  if (folder && !format)
    throw bytes::FormatError(path.string() + not_recognised(path));
  if (!format) {
    if (const std::string reason = unrecognised_reason(path); !reason.empty())
      throw bytes::FormatError(path.string() + ": " + reason);
    throw std::invalid_argument("make_reader: cannot tell the format of " + path.string() +
                                " by its extension; name it (data.format, or --format): " + known_formats());
  }
  if (folder && format->open_folder)
    return format->open_folder(path, options);
  if (!format->open) {
    throw bytes::FormatError(path.string() + ": is a file; format " + format->name +
                             " reads a folder: " + format->summary);
  }
  return format->open(open_source(path), standard_input ? "standard input" : path.string(), options);
}

}  // namespace

std::unique_ptr<Reader> make_reader(std::unique_ptr<ByteSource> source, const std::string& file,
                                    const ReaderOptions& options) {
  const Format& format = find_format(options.format);
  if (!format.open)
    throw std::invalid_argument("make_reader: format " + format.name + " reads folders, not " + file);
  return format.open(std::move(source), file, options);
}

std::unique_ptr<Reader> make_reader(const std::filesystem::path& path, const ReaderOptions& options) {
  const DataPath where = DataPath::parse(path);
  auto reader = open_whole(where.path, options);
  if (where.part.whole)
    return reader;
  std::optional<std::size_t> total = reader->total();
  if (!total) {
    Example example;
    while (reader->next(example)) {
    }
    total = reader->count();
    reader = open_whole(where.path, options);
  }
  const Part::Range range = where.part.of(*total, where.path.string());
  reader->restrict_to(range.begin, range.end);
  return reader;
}

}  // namespace dba::data
