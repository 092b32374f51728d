#include <sys/stat.h>
#include <unistd.h>

#include <array>
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
#include "dba/data/data_path.h"
#include "dba/data/formats.h"
#include "dba/data/json_text.h"
#include "folder_listing.h"

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
      : file_(file), encoding_(encoding), layout_(symbol_layout(encoding.tokeniser)), moments_(encoding.channels) {
    header_.element_size = encoding.kind == Kind::series ? sizeof(float) : layout_.width;
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
    header_.cut += example.cut ? 1 : 0;
    if (encoding_.kind == Kind::series) {
      append(std::as_bytes(std::span(example.values)));
      moments_.add(example.values);
      header_.elements += example.values.size();
      return;
    }
    const bool pairs = encoding_.kind == Kind::pairs;
    const std::size_t specials = specials_of(layout_);
    append_symbols(example.first);
    if (pairs)
      append_symbols(example.second);
    if (example.first.size() == specials || (pairs && example.second.size() == specials))
      ++header_.empty;
  }

  CacheHeader finish(std::uint64_t fingerprint, const Repairs& repairs) {
    const std::array<std::byte, 8> zeros{};
    append(std::span(zeros).first((8 - header_.elements * header_.element_size % 8) % 8));
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

  // Without CLS and EOS.
  void append_symbols(std::span<const std::int32_t> symbols) {
    symbols = symbols.subspan(layout_.cls >= 0 ? 1 : 0, symbols.size() - specials_of(layout_));
    header_.elements += symbols.size();
    narrow_.clear();
    for (const std::int32_t symbol : symbols) {
      const auto content = static_cast<std::uint32_t>(symbol - layout_.first);
      for (unsigned byte = 0; byte < layout_.width; ++byte)
        narrow_.push_back(static_cast<std::byte>(content >> (8 * byte)));
    }
    append(narrow_);
  }

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
  SymbolLayout layout_;
  CacheHeader header_;
  std::vector<IndexEntry> index_;
  ChannelMoments moments_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> narrow_;  // the symbols of one sequence
  Checksum checksum_;
};

// Another bound on the length is none where nothing reaches it.
std::string comparable(const Encoding& encoding, const SetStatistics& statistics) {
  TokeniserOptions options = encoding.tokeniser.options();
  if (statistics.cut == 0 && (options.max_length == 0 || statistics.longest <= options.max_length))
    options.max_length = 0;
  Encoding same = encoding;
  same.tokeniser = Tokeniser(options, encoding.tokeniser.vocabulary());
  return same.to_json();
}

// Whether a set that was made elsewhere is what this source asks for.
void check_options(const CachedSet& set, const CacheSource& source) {
  const Encoding& made = set.encoding();
  const std::string file = source.file.string();
  constexpr const char* kRemedy = "; make the caches anew with dba data cache";
  if (source.encoding) {
    if (comparable(made, set.statistics()) != comparable(*source.encoding, set.statistics())) {
      throw bytes::FormatError(file +
                               ": was made with another vocabulary, other classes or other options than the training "
                               "part" +
                               kRemedy);
    }
    return;
  }
  const TokeniserOptions& has = made.tokeniser.options();
  const TokeniserOptions& wants = source.tokeniser;
  const auto same = [&](const char* option, const std::string& in_file, const std::string& wanted) {
    if (in_file != wanted) {
      throw bytes::FormatError(file + ": was made with " + option + " " + in_file + ", the options say " + wanted +
                               kRemedy);
    }
  };
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  const auto listed = [](const std::vector<std::int32_t>& numbers) {
    std::string text;
    for (const std::int32_t number : numbers)
      text += (text.empty() ? "" : ", ") + std::to_string(number);
    return "[" + text + "]";
  };
  same("max_length", std::to_string(has.max_length), std::to_string(wants.max_length));
  same("too_long", std::string(name_of(has.too_long)), std::string(name_of(wants.too_long)));
  if (made.kind == Kind::series)
    return;
  same("tokeniser", std::string(name_of(has.scheme)), std::string(name_of(wants.scheme)));
  same("cls", flag(has.cls), flag(wants.cls));
  same("eos", flag(has.eos), flag(wants.eos));
  same("leave_out", listed(has.leave_out), listed(wants.leave_out));
  same("min_count", std::to_string(has.min_count), std::to_string(wants.min_count));
  same("max_vocabulary", std::to_string(has.max_words), std::to_string(wants.max_words));
  if (wants.integers > 0)
    same("integers", std::to_string(has.integers), std::to_string(wants.integers));
}

}  // namespace

std::uint64_t fingerprint_of(const CacheSource& source) {
  const DataPath where = DataPath::parse(source.file);
  struct stat status {};
  if (::stat(where.path.c_str(), &status) != 0)
    throw bytes::FileError("open", where.path, errno);
  const ReaderOptions& reader = source.reader;
  std::string text = json_quoted(absolute_name(where.path));
  for (const std::string& name :
       {reader.format, reader.text, reader.text1, reader.text2, reader.label, reader.case_column, reader.time_column})
    text += "," + json_quoted(name);
  for (const std::uint64_t number :
       {kCacheVersion, static_cast<std::uint64_t>(status.st_size), static_cast<std::uint64_t>(status.st_mtim.tv_sec),
        static_cast<std::uint64_t>(status.st_mtim.tv_nsec),
        S_ISDIR(status.st_mode) ? listing_fingerprint(where.path) : std::uint64_t{0},
        static_cast<std::uint64_t>(where.part.percent), where.part.begin, where.part.end,
        static_cast<std::uint64_t>(reader.labels), static_cast<std::uint64_t>(reader.quotes),
        static_cast<std::uint64_t>(reader.longest_record)})
    text += "," + std::to_string(number);
  text += "," + (source.encoding ? source.encoding->to_json() : Tokeniser(source.tokeniser).to_json());
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  return checksum.value();
}

void build_cache(const CacheSource& source, const std::filesystem::path& cache) {
  const std::filesystem::path path = DataPath::parse(source.file).path;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw bytes::FileError("open", path, errno);
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
    throw bytes::FileError("cache what is neither a regular file nor a folder,", path, EINVAL);
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

bool is_cache(const std::filesystem::path& file) {
  if (!is_file(file))
    return false;
  std::array<char, kCacheMagic.size()> beginning{};
  return open_source(file)->read(beginning) == beginning.size() && beginning == kCacheMagic;
}

CachedSet open_cache(const std::filesystem::path& file) {
  try {
    return CachedSet::open(file);
  } catch (const bytes::FormatError& error) {
    throw bytes::FormatError(std::string(error.what()) + "; make it anew with dba data cache, or remove it");
  }
}

CacheOutcome open_or_build(const CacheSource& source, const std::filesystem::path& cache) {
  if (is_cache(source.file)) {
    CachedSet set = open_cache(source.file);
    check_options(set, source);
    return {std::move(set), false, ""};
  }
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
    reason = "there was no cache";
  }
  build_cache(source, cache);
  return {CachedSet::open(cache), true, reason};
}

}  // namespace dba::data
