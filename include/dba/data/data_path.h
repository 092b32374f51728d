#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace dba::data {

/// A range of the records of a file or folder, by number or by percent.
struct Part {
  bool whole = true;
  bool percent = false;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  ///< exclusive

  struct Range {
    std::size_t begin;
    std::size_t end;
  };
  /// Of `total` records; percentages are rounded down. Throws bytes::FormatError, which names the source, for a part
  /// that reaches beyond the last record or holds none.
  Range of(std::size_t total, const std::string& source) const;
};

/// What a configuration calls a file: its path, and behind an @ which part of it. "data.bin@80-90%" are the records
/// from 80 % of them to 90 %, "data.bin@0-45000" the first 45,000.
struct DataPath {
  std::filesystem::path path;
  Part part;

  /// A path that exists is taken as it stands. Throws std::invalid_argument for a part that ends before it begins or
  /// beyond 100 %.
  static DataPath parse(const std::filesystem::path& text);
};

}  // namespace dba::data
