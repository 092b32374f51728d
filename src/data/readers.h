#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

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

/// Long-Range Arena's Retrieval: pairs of papers in five columns without a header, label, two ids, two texts.
std::unique_ptr<Reader> open_aan(std::unique_ptr<ByteSource> source, const std::string& file,
                                 const ReaderOptions& options);
bool is_aan(std::string_view beginning);

/// IMDb as it is published: a folder with a file for every review in pos and neg.
std::unique_ptr<Reader> open_imdb_folder(const std::filesystem::path& folder, const ReaderOptions& options);
bool is_imdb_folder(const std::filesystem::path& folder);

inline constexpr std::size_t kCifarClasses = 10;
inline constexpr std::size_t kCifarRecord = 1 + 3 * 1024;
inline constexpr std::size_t kGreyRecord = 1 + 1024;

/// CIFAR-10 in binary: a label byte, then 1,024 red, green and blue bytes, which become grey. A folder is the training
/// part, data_batch_1.bin to data_batch_5.bin.
std::unique_ptr<Reader> open_cifar10(std::unique_ptr<ByteSource> source, const std::string& file,
                                     const ReaderOptions& options);
bool is_cifar10(std::string_view beginning);
/// data_batch_1.bin to data_batch_5.bin, test_batch.bin.
bool is_cifar10_name(std::string_view name);
std::unique_ptr<Reader> open_cifar10_folder(const std::filesystem::path& folder, const ReaderOptions& options);
bool is_cifar10_folder(const std::filesystem::path& folder);

/// Grey images: a label byte, then 32 × 32 bytes, row by row. Files of a task of Long-Range Arena, known by their
/// names, have its classes; others up to 256.
std::unique_ptr<Reader> open_grey(std::unique_ptr<ByteSource> source, const std::string& file,
                                  const ReaderOptions& options);
bool is_grey(std::string_view beginning);
/// cifar10_gray_train.bin, cifar10_gray_test.bin, pathfinder32.bin.
bool is_grey_name(std::string_view name);

/// Pathfinder as Long-Range Arena released it: imgs/N/sample_K.png, and lines that name them in metadata/N.npy.
std::unique_ptr<Reader> open_pathfinder_folder(const std::filesystem::path& folder, const ReaderOptions& options);
bool is_pathfinder_folder(const std::filesystem::path& folder);

/// A table of time steps: a row for every step of every case, its channels in columns.
std::unique_ptr<Reader> open_csv_long(std::unique_ptr<ByteSource> source, const std::string& file,
                                      const ReaderOptions& options);
/// Whether the header has columns called case and time, and none called text.
bool is_csv_long(std::string_view beginning);

/// The UEA archive's `.ts`: tags, then a row for every series.
std::unique_ptr<Reader> open_ts(std::unique_ptr<ByteSource> source, const std::string& file,
                                const ReaderOptions& options);

}  // namespace dba::data
