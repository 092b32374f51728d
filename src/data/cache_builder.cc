#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <string>

#include "cache_file.h"
#include "channel_moments.h"
#include "checksum.h"
#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
#include "dba/data/formats.h"
#include "dba/data/json_text.h"

namespace dba::data {
namespace {

std::string absolute_name(const std::filesystem::path& path) {
  char* const resolved = ::realpath(path.c_str(), nullptr);
  if (!resolved)
    throw bytes::FileError("open", path, errno);
  std::string name = resolved;
  std::free(resolved);
  return name;
}

void write_at_start(bytes::OutputFile& file, const CacheHeader& header, const std::filesystem::path& path) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        ::pwrite(file.descriptor(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0)
      throw bytes::FileError("write", path, count < 0 ? errno : EIO);
    done += static_cast<std::size_t>(count);
  }
}

// Writes the parts of a cache in order. Elements pass through a buffer of fixed size.
class CacheWriter {
 public:
  CacheWriter(bytes::OutputFile& file, const Encoding& encoding)
      : file_(file), encoding_(encoding), moments_(encoding.channels) {
    buffer_.reserve(kBuffer);
    file_.write(std::as_bytes(std::span(&header_, 1)));  // its place; the numbers come at the end
  }

  void add(const Encoded& example, const std::string& place) {
    const std::size_t width = encoding_.kind == Kind::series ? encoding_.channels : 1;
    const std::size_t length = encoding_.kind == Kind::series ? example.values.size() / width : example.first.size();
    constexpr std::size_t kLongest = std::numeric_limits<std::uint32_t>::max();
    if (length > kLongest || example.second.size() > kLongest)
      throw bytes::FormatError(place + ": a sequence of more than " + std::to_string(kLongest) + " elements");
    index_.push_back({header_.elements, static_cast<std::uint32_t>(length),
                      static_cast<std::uint32_t>(example.second.size()), example.label, 0});
    append(std::as_bytes(std::span(example.first)));
    append(std::as_bytes(std::span(example.second)));
    append(std::as_bytes(std::span(example.values)));
    moments_.add(example.values);
    header_.elements += length * width + example.second.size();
    header_.cut += example.cut ? 1 : 0;
    const TokeniserOptions& options = encoding_.tokeniser.options();
    const std::size_t specials = (options.cls ? 1u : 0u) + (options.eos ? 1u : 0u);
    const bool pairs = encoding_.kind == Kind::pairs;
    if (encoding_.kind != Kind::series &&
        (example.first.size() == specials || (pairs && example.second.size() == specials)))
      ++header_.empty;
  }

  CacheHeader finish(std::uint64_t fingerprint, const Repairs& repairs) {
    if (header_.elements % 2 == 1) {
      const std::uint32_t padding = 0;
      append(std::as_bytes(std::span(&padding, 1)));
    }
    flush();
    write(std::as_bytes(std::span(index_)));
    const std::vector<double> deviations = moments_.deviations();
    write(std::as_bytes(std::span(moments_.means())));
    write(std::as_bytes(std::span(deviations)));
    std::string encoding = encoding_.to_json();
    encoding.append((8 - encoding.size() % 8) % 8, ' ');
    write(std::as_bytes(std::span(encoding)));

    header_.fingerprint = fingerprint;
    header_.examples = index_.size();
    header_.channels = encoding_.channels;
    header_.encoding_size = encoding.size();
    header_.missing_values = repairs.missing_values;
    header_.repaired_series = repairs.series;
    header_.empty_channels = repairs.empty_channels;
    checksum_.add(std::as_bytes(std::span(&header_, 1)));
    header_.checksum = checksum_.value();
    return header_;
  }

 private:
  static constexpr std::size_t kBuffer = std::size_t{1} << 20;

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t count = std::min(bytes.size(), kBuffer - buffer_.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (buffer_.size() == kBuffer)
        flush();
    }
  }

  void flush() {
    write(buffer_);
    buffer_.clear();
  }

  void write(std::span<const std::byte> bytes) {
    checksum_.add(bytes);
    file_.write(bytes);
  }

  bytes::OutputFile& file_;
  const Encoding& encoding_;
  CacheHeader header_;
  std::vector<IndexEntry> index_;
  ChannelMoments moments_;
  std::vector<std::byte> buffer_;
  Checksum checksum_;
};

}  // namespace

std::uint64_t fingerprint_of(const CacheSource& source) {
  struct stat status {};
  if (::stat(source.file.c_str(), &status) != 0)
    throw bytes::FileError("open", source.file, errno);
  const ReaderOptions& reader = source.reader;
  std::string text = json_quoted(absolute_name(source.file));
  for (const std::string& name : {reader.format, reader.text, reader.text1, reader.text2, reader.label})
    text += "," + json_quoted(name);
  for (const std::uint64_t number :
       {kCacheVersion, static_cast<std::uint64_t>(status.st_size), static_cast<std::uint64_t>(status.st_mtim.tv_sec),
        static_cast<std::uint64_t>(status.st_mtim.tv_nsec), static_cast<std::uint64_t>(reader.labels),
        static_cast<std::uint64_t>(reader.quotes), static_cast<std::uint64_t>(reader.longest_record)})
    text += "," + std::to_string(number);
  text += "," + (source.encoding ? source.encoding->to_json() : Tokeniser(source.tokeniser).to_json());
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  return checksum.value();
}

void build_cache(const CacheSource& source, const std::filesystem::path& cache) {
  struct stat status {};
  if (::stat(source.file.c_str(), &status) != 0)
    throw bytes::FileError("open", source.file, errno);
  if (S_ISDIR(status.st_mode))
    throw bytes::FileError("read", source.file, EISDIR);
  if (!S_ISREG(status.st_mode))
    throw bytes::FileError("cache what is not a regular file,", source.file, EINVAL);
  const std::uint64_t fingerprint = fingerprint_of(source);
  const Encoding encoding =
      source.encoding ? *source.encoding : learn_encoding(*make_reader(source.file, source.reader), source.tokeniser);

  bytes::atomic_write(cache, [&](bytes::OutputFile& file) {
    const auto reader = make_reader(source.file, source.reader);
    CacheWriter writer(file, encoding);
    Example example;
    Encoded encoded;
    while (reader->next(example)) {
      encoding.encode(example, reader->place(), encoded);
      writer.add(encoded, reader->place());
    }
    if (fingerprint_of(source) != fingerprint)
      throw bytes::FormatError(source.file.string() + ": changed while it was read; start again when it is complete");
    write_at_start(file, writer.finish(fingerprint, reader->repairs()), cache);
  });
}

CacheOutcome open_or_build(const CacheSource& source, const std::filesystem::path& cache) {
  const std::uint64_t wanted = fingerprint_of(source);
  std::string reason;
  try {
    CachedSet set = CachedSet::open(cache);
    if (set.fingerprint() == wanted)
      return {std::move(set), false, ""};
    reason = "the source or an option changed";
  } catch (const bytes::FormatError& error) {
    reason = std::string("damaged: ") + error.what();
  } catch (const bytes::FileError& error) {
    if (error.error() != ENOENT)
      throw;
    reason = "there was none";
  }
  build_cache(source, cache);
  return {CachedSet::open(cache), true, reason};
}

}  // namespace dba::data
