#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dba/data/reader.h"

namespace dba::data {

struct LengthSummary {
  std::string unit;  ///< "bytes", "words", "integers", "steps"
  std::uint64_t shortest = 0;
  std::uint64_t longest = 0;
  double mean = 0;
};

struct FileDescription {
  std::filesystem::path file;
  std::string part;    ///< "train", "validation", "test" by the file's name, or empty
  std::string format;  ///< empty: not recognised, and only `reason` below is filled
  std::string reason;  ///< why it was not recognised, where that is known: it is packed, it is empty
  std::string content;
  std::uint64_t records = 0;
  std::uint64_t unlabelled = 0;
  std::uint64_t not_utf8 = 0;                  ///< texts, whose bytes are taken as they are
  std::string first_not_utf8;                  ///< file and line of the first of them
  std::uint64_t empty = 0;                     ///< examples without a text, or a pair without one of its texts
  std::string first_empty;                     ///< file, or file and line, of the first of them; of a cache unknown
  std::size_t channels = 0;                    ///< of series
  std::vector<std::size_t> constant_channels;  ///< with one value everywhere, from 1
  std::map<std::string, std::uint64_t> classes;
  std::vector<std::string> listed_classes;  ///< those that the file's header lists
  std::vector<LengthSummary> lengths;       ///< of a text, in bytes and in words; of a pair, both texts together
  Repairs repairs;
  /// Of a file, what `sha256sum` prints; of a folder, the digest of such lines for all files in it, sorted by path.
  std::string sha256;
  std::string digest;        ///< of a cache, CachedSet::digest: what the reports of runs on it hold
  std::string doubt;         ///< Reader::doubt
  std::string doubt_of_end;  ///< Reader::doubt_of_end
  std::uint64_t error_count = 0;
  std::vector<std::string> errors;  ///< the first of them
};

struct Description {
  std::filesystem::path path;
  std::vector<FileDescription> files;      ///< in the order of their names
  std::vector<std::string> missing;        ///< what a complete set would have besides
  std::vector<std::string> remarks;        ///< doubts about labels and channels, sets in folders
  std::string nothing = "holds no files";  ///< what is said of a path without any

  /// No file has errors, there is a training part or a single file, and no remark was necessary.
  bool sound() const;
  /// For people, lines that end in a line feed.
  std::string to_text() const;
  /// One JSON object.
  std::string to_json() const;
};

/// Reads a file or folder of one format, or a part of one (see DataPath), to the end.
FileDescription describe_source(const std::filesystem::path& source, const ReaderOptions& options = {},
                                std::size_t most_errors = 10);

/// Reads a file, a folder that is one data set, or all recognised files directly in a folder, to the end: errors in
/// records are counted, the first `most_errors` of each file kept. Throws bytes::FileError where the path cannot be
/// read.
Description describe_folder(const std::filesystem::path& path, const ReaderOptions& options = {},
                            std::size_t most_errors = 10);

/// The same for files or folders that are the named parts of one set; empty paths are passed over. `path`: what the
/// description calls itself.
Description describe_parts(const std::filesystem::path& path,
                           const std::vector<std::pair<std::string, std::filesystem::path>>& parts,
                           const ReaderOptions& options = {}, std::size_t most_errors = 10);

}  // namespace dba::data
