#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dba/data/byte_source.h"
#include "dba/data/reader.h"

namespace dba::data {

/// A kind of file. The list of them in src/data/formats.cc is the one place where a further reader joins.
struct Format {
  std::string name;                     ///< "jsonl"
  std::vector<std::string> extensions;  ///< ".jsonl"; the first format that claims a file reads it
  std::string summary;                  ///< one line for people
  /// Whether a file that begins so is of this format; empty: every file of the extensions is.
  std::function<bool(std::string_view beginning)> claims;
  std::function<std::unique_ptr<Reader>(std::unique_ptr<ByteSource> source, const std::string& file,
                                        const ReaderOptions& options)>
      open = {};  ///< empty: only folders are of this format
  /// Of records of one size, in bytes: prefers files whose size is a multiple of it.
  std::size_t record = 0;
  std::function<bool(const std::filesystem::path& folder)> claims_folder = {};
  std::function<std::unique_ptr<Reader>(const std::filesystem::path& folder, const ReaderOptions& options)>
      open_folder = {};
  /// Whether a file of this name is of this format whatever it holds, so that damage to it is told as such.
  std::function<bool(std::string_view name)> claims_name = {};
};

const std::vector<Format>& formats();

/// By name. Throws std::invalid_argument, which lists the known ones.
const Format& find_format(std::string_view name);

/// By a name that is known, else by extension and, where two formats share it, by the first bytes and the size; a
/// folder by what it holds. Null where nothing fits.
const Format* recognise(const std::filesystem::path& path);

/// A reader for a file or folder, for a part of one (see DataPath), or for standard input ("-", JSONL unless
/// options.format says otherwise). Throws std::invalid_argument for a format that is unknown or cannot be told,
/// bytes::FileError where the file cannot be opened and bytes::FormatError where its header is wrong, something of a
/// folder is missing, or the file is still packed, or empty or damaged where its name tells what it should be.
std::unique_ptr<Reader> make_reader(const std::filesystem::path& path, const ReaderOptions& options = {});

/// The same for bytes from anywhere; options.format must be given, and `file` is what errors name.
std::unique_ptr<Reader> make_reader(std::unique_ptr<ByteSource> source, const std::string& file,
                                    const ReaderOptions& options);

}  // namespace dba::data
