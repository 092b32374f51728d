#pragma once

#include <memory>
#include <string>

#include "dba/data/byte_source.h"
#include "dba/data/reader.h"

/// The readers behind `formats()`, one file each.
namespace dba::data {

/// One JSON object a line: "text", "text1" and "text2", "tokens", "series" or "pixels", and "label".
std::unique_ptr<Reader> open_jsonl(std::unique_ptr<ByteSource> source, const std::string& file,
                                   const ReaderOptions& options);

/// A table with a header, fields separated by the delimiter.
std::unique_ptr<Reader> open_table(std::unique_ptr<ByteSource> source, const std::string& file,
                                   const ReaderOptions& options, char delimiter);

/// Long-Range Arena's ListOps: a table of columns Source and Target; parentheses are dropped.
std::unique_ptr<Reader> open_listops(std::unique_ptr<ByteSource> source, const std::string& file,
                                     const ReaderOptions& options);

}  // namespace dba::data
