#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dba/bytes/mapped_file.h"
#include "dba/data/encoding.h"
#include "dba/data/reader.h"
#include "dba/data/symbols.h"

namespace dba::data {

struct SetStatistics {
  std::uint64_t longest = 0;     ///< symbols or time steps; of pairs, of either sequence
  double mean_length = 0;        ///< in tokens, without those left out; of a pair, both together
  std::uint64_t cut = 0;         ///< examples whose end was dropped
  std::uint64_t empty = 0;       ///< examples without any symbol, CLS and EOS not counted as such
  std::uint64_t unlabelled = 0;  ///< examples without a label
  Repairs repairs;               ///< of the reader
};

/// Over all time steps of all series of a set, before normalising.
struct ChannelStatistics {
  std::vector<double> mean;
  std::vector<double> deviation;  ///< standard deviation, n − 1 in the denominator; 0 where there is one step only

  /// Channels of deviation 0, which standardising brings to 0. From 1.
  std::vector<std::size_t> constant() const {
    std::vector<std::size_t> numbers;
    for (std::size_t c = 0; c < deviation.size(); ++c) {
      if (deviation[c] == 0)
        numbers.push_back(c + 1);
    }
    return numbers;
  }
};

/// An encoded set in a file, mapped: the system reads what is touched and drops it again.
///
/// The file, all numbers little-endian: a header of fixed size (magic, version, fingerprint, counts, statistics, a
/// checksum), the numbers of all examples one after the other (symbols in 1, 2 or 4 bytes as the vocabulary allows,
/// without CLS and EOS, or float32), the index (offset, lengths, label of each), the statistics of the channels
/// (double), the encoding as JSON.
class CachedSet {
 public:
  /// Whole sequences: what the tokeniser leaves out is there.
  struct View {
    SymbolSpan first;
    SymbolSpan second;              ///< of a pair
    std::span<const float> values;  ///< of a series, steps × channels
    std::int32_t label;             ///< −1: none
  };

  /// Reads the file once and checks every promise in it: sizes, order, checksum, symbols below the vocabulary's size,
  /// labels below the number of classes, finite values. Throws bytes::FileError or bytes::FormatError.
  static CachedSet open(const std::filesystem::path& path);
  /// The same for bytes in memory, 8-byte aligned, which must outlive the result.
  static CachedSet parse(std::span<const std::byte> bytes, const std::string& source = "memory");

  CachedSet(CachedSet&&) noexcept;
  CachedSet& operator=(CachedSet&&) noexcept;
  ~CachedSet();

  std::size_t size() const;
  /// i must be below size().
  View example(std::size_t i) const;
  const Encoding& encoding() const;
  Kind kind() const {
    return encoding().kind;
  }
  /// Tokens or time steps of each example, without what is left out; of a pair, of both together.
  std::vector<std::int64_t> lengths() const;
  std::vector<std::int32_t> labels() const;
  /// Examples of each class, in the order of the labels.
  std::vector<std::int64_t> class_counts() const;
  const SetStatistics& statistics() const;
  /// Empty unless the set is of series.
  const ChannelStatistics& channel_statistics() const;
  /// What the set was made from; see `fingerprint_of`.
  std::uint64_t fingerprint() const;
  /// Sixteen hexadecimal digits for symbols or values, lengths, labels and the names of both: the same for every cache
  /// of the same data, wherever they lay, and another one for other data.
  std::string digest() const;

 private:
  struct Contents;
  explicit CachedSet(std::unique_ptr<Contents> contents);
  static CachedSet checked(std::unique_ptr<Contents> contents, const std::string& source);
  void count_tokens();

  std::unique_ptr<Contents> contents_;
};

/// What a cached set is made from.
struct CacheSource {
  std::filesystem::path file;  ///< a regular file or a folder, or a part of one (see DataPath)
  ReaderOptions reader;
  /// With an encoding (validation, test) these options are not used.
  TokeniserOptions tokeniser;
  /// Empty: learned from this file, which is then the training part.
  std::optional<Encoding> encoding;
};

/// A number that changes when the path, size or time of change of the file, or of a file in the folder, an option or
/// the encoding changes. Throws bytes::FileError.
std::uint64_t fingerprint_of(const CacheSource& source);

/// Reads the source, twice if the encoding is to be learned, one record in memory at a time, and writes the cache
/// through `bytes::atomic_write`. Only the index, 24 bytes an example, grows in memory.
void build_cache(const CacheSource& source, const std::filesystem::path& cache);

struct CacheOutcome {
  CachedSet set;
  bool built;          ///< false: the cache was there and sound
  std::string reason;  ///< why it was built: "there was none", "the source or an option changed", "damaged: …"
};

/// Whether a file is a cache, of whatever version.
bool is_cache(const std::filesystem::path& file);

/// A cache that was made by `dba data cache` and is not built anew by itself: what is wrong with it is told with the
/// remedy. Throws as CachedSet::open does.
CachedSet open_cache(const std::filesystem::path& file);

/// The cached set, built anew where the cache is missing, made from something else, or damaged. A source that is a
/// cache itself, made elsewhere, is opened as it is; throws bytes::FormatError where it was made with other options.
CacheOutcome open_or_build(const CacheSource& source, const std::filesystem::path& cache);

}  // namespace dba::data
