#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "bytes/count.h"
#include "cache_file.h"
#include "checksum.h"
#include "dba/bytes/errors.h"
#include "dba/data/cache.h"

namespace dba::data {

struct CachedSet::Contents {
  bytes::MappedFile file;
  std::span<const std::byte> bytes;
  CacheHeader header;
  std::span<const std::byte> symbols;  // one of the two is empty
  std::span<const float> values;
  SymbolLayout layout;
  std::span<const IndexEntry> index;
  Encoding encoding;
  SetStatistics statistics;
  ChannelStatistics channels;
  std::uint64_t digest = 0;
  std::vector<std::int64_t> tokens;  // of each example, where symbols are left out
};

namespace {

template <typename Element>
std::span<const Element> view(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const Element*>(bytes.data()), bytes.size() / sizeof(Element)};
}

struct Parts {
  std::span<const std::byte> payload;
  std::span<const std::byte> index;
  std::span<const std::byte> channels;
  std::span<const std::byte> encoding;
};

Parts parts_of(std::span<const std::byte> bytes, const CacheHeader& header, const std::string& source) {
  std::span<const std::byte> rest = bytes.subspan(sizeof(CacheHeader));
  const auto take = [&](std::uint64_t count, std::size_t size, const char* what) {
    if (count > rest.size() / size) {
      throw bytes::FormatError(source + ": " + std::to_string(count) + " " + what +
                               " are stated, more than the file holds");
    }
    const auto part = rest.first(count * size);
    rest = rest.subspan(count * size);
    return part;
  };
  Parts parts;
  if (header.element_size != 1 && header.element_size != 2 && header.element_size != 4) {
    throw bytes::FormatError(source + ": states elements of " + std::to_string(header.element_size) +
                             " bytes, expected 1, 2 or 4");
  }
  parts.payload = take(header.elements, header.element_size, "elements");
  take((8 - parts.payload.size() % 8) % 8, 1, "bytes of padding");
  parts.index = take(header.examples, sizeof(IndexEntry), "examples");
  parts.channels = take(header.channels, 2 * sizeof(double), "channels");
  parts.encoding = take(header.encoding_size, 1, "bytes of encoding");
  if (!rest.empty())
    throw bytes::FormatError(source + ": " + bytes::counted(rest.size(), "byte") + " too many at the end of the cache");
  return parts;
}

struct Checksums {
  std::uint64_t file = 0;
  Checksum examples;  // elements and index, which lie in front: on the way to that of the file
};

Checksums checksums_of(std::span<const std::byte> bytes, CacheHeader header, const Parts& parts) {
  header.checksum = 0;
  const auto behind_header = bytes.subspan(sizeof header);
  const auto examples =
      behind_header.first(static_cast<std::size_t>(parts.index.data() + parts.index.size() - behind_header.data()));
  Checksums sums;
  sums.examples.add(examples);
  Checksum checksum = sums.examples;
  checksum.add(behind_header.subspan(examples.size()));
  checksum.add(std::as_bytes(std::span(&header, 1)));
  sums.file = checksum.value();
  return sums;
}

// Words and classes give the numbers their meaning; other options have done what they do.
std::uint64_t digest_of_contents(Checksum examples, const Encoding& encoding) {
  const std::string meaning = std::string(name_of(encoding.kind)) + "," + std::to_string(encoding.channels) +
                              encoding.labels.to_json() + encoding.tokeniser.vocabulary().to_json();
  examples.add(std::as_bytes(std::span(meaning)));
  return examples.value();
}

}  // namespace

CachedSet::CachedSet(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
CachedSet::CachedSet(CachedSet&&) noexcept = default;
CachedSet& CachedSet::operator=(CachedSet&&) noexcept = default;
CachedSet::~CachedSet() = default;

CachedSet CachedSet::open(const std::filesystem::path& path) {
  auto contents = std::make_unique<Contents>();
  contents->file = bytes::MappedFile(path);
  contents->bytes = contents->file.bytes();
  return checked(std::move(contents), path.string());
}

CachedSet CachedSet::parse(std::span<const std::byte> bytes, const std::string& source) {
  auto contents = std::make_unique<Contents>();
  contents->bytes = bytes;
  return checked(std::move(contents), source);
}

CachedSet CachedSet::checked(std::unique_ptr<Contents> contents, const std::string& source) {
  const auto fail = [&source](const std::string& reason) { throw bytes::FormatError(source + ": " + reason); };
  Contents& set = *contents;
  if (set.bytes.size() < sizeof(CacheHeader))
    fail("too short for a cache");
  std::memcpy(&set.header, set.bytes.data(), sizeof(CacheHeader));
  const CacheHeader& header = set.header;
  if (header.magic != kCacheMagic)
    fail("is no cache of this program");
  if (header.version != kCacheVersion) {
    fail("is a cache of version " + std::to_string(header.version) + ", expected " + std::to_string(kCacheVersion));
  }
  const Parts parts = parts_of(set.bytes, header, source);
  const Checksums sums = checksums_of(set.bytes, header, parts);
  if (sums.file != header.checksum)
    fail("the checksum does not match");

  const auto encoding = view<char>(parts.encoding);
  set.encoding = Encoding::from_json({encoding.data(), encoding.size()}, source);
  set.digest = digest_of_contents(sums.examples, set.encoding);
  const Kind kind = set.encoding.kind;
  if (header.channels != set.encoding.channels)
    fail("states " + bytes::counted(header.channels, "channel") + ", its encoding " +
         std::to_string(set.encoding.channels));
  set.layout = symbol_layout(set.encoding.tokeniser);
  const std::uint64_t element_size = kind == Kind::series ? sizeof(float) : set.layout.width;
  if (header.element_size != element_size) {
    fail("states elements of " + bytes::counted(header.element_size, "byte") + ", its encoding needs " +
         std::to_string(element_size));
  }
  if (kind == Kind::series) {
    set.values = view<float>(parts.payload);
    const bool any_missing = header.empty_channels > 0;
    const auto allowed = [&](float value) { return std::isfinite(value) || (any_missing && std::isnan(value)); };
    if (!std::ranges::all_of(set.values, allowed))
      fail("a value is not finite");
    const auto numbers = view<double>(parts.channels);
    if (!std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); }))
      fail("a statistic of a channel is not finite");
    set.channels.mean.assign(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(header.channels));
    set.channels.deviation.assign(numbers.begin() + static_cast<std::ptrdiff_t>(header.channels), numbers.end());
  } else {
    set.symbols = parts.payload;
    const std::size_t most = set.encoding.tokeniser.contents();
    const auto within = [&](auto zero) {
      using Stored = decltype(zero);
      return std::ranges::all_of(view<Stored>(parts.payload), [most](Stored content) { return content < most; });
    };
    const bool all_within = element_size == 1   ? within(std::uint8_t{})
                            : element_size == 2 ? within(std::uint16_t{})
                                                : within(std::uint32_t{});
    if (!all_within)
      fail("a symbol is outside of the vocabulary");
  }

  set.index = view<IndexEntry>(parts.index);
  SetStatistics& statistics = set.statistics;
  const std::uint64_t width = kind == Kind::series ? header.channels : 1;
  const std::uint32_t specials = kind == Kind::series ? 0 : specials_of(set.layout);
  const std::uint32_t second_specials = kind == Kind::pairs ? specials : 0;
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
  for (const IndexEntry& entry : set.index) {
    const std::uint64_t length = std::uint64_t{entry.length} + entry.second_length;
    if (entry.second_length > 0 && kind != Kind::pairs)
      fail("the index has a second sequence where there are no pairs");
    if (entry.length < specials || entry.second_length < second_specials)
      fail("the index has a sequence too short for its CLS and EOS");
    const std::uint64_t stored = length - specials - second_specials;
    if (entry.offset != offset || stored > (header.elements - offset) / width)
      fail("the index is out of order");
    if (entry.label < -1 || entry.label >= static_cast<std::int64_t>(set.encoding.labels.size()))
      fail("the index has label " + std::to_string(entry.label) + " of " + std::to_string(set.encoding.labels.size()));
    offset += stored * width;
    total += length;
    statistics.longest = std::max<std::uint64_t>(statistics.longest, std::max(entry.length, entry.second_length));
    statistics.unlabelled += entry.label < 0 ? 1 : 0;
  }
  if (offset != header.elements)
    fail("the index ends before the elements do");
  if (!set.index.empty())
    statistics.mean_length = static_cast<double>(total) / static_cast<double>(set.index.size());
  statistics.cut = header.cut;
  statistics.empty = header.empty;
  statistics.repairs = {header.missing_values, header.repaired_series, header.empty_channels};
  CachedSet result(std::move(contents));
  result.count_tokens();
  return result;
}

void CachedSet::count_tokens() {
  const Tokeniser& tokeniser = encoding().tokeniser;
  if (!tokeniser.leaves_any_out() || size() == 0)
    return;
  double total = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    const View view = example(i);
    contents_->tokens.push_back(data::count_tokens(tokeniser, view.first) + data::count_tokens(tokeniser, view.second));
    total += static_cast<double>(contents_->tokens.back());
  }
  contents_->statistics.mean_length = total / static_cast<double>(size());
}

std::size_t CachedSet::size() const {
  return contents_->index.size();
}

CachedSet::View CachedSet::example(std::size_t i) const {
  const IndexEntry& entry = contents_->index[i];
  View view{{}, {}, {}, entry.label};
  if (kind() == Kind::series) {
    view.values = contents_->values.subspan(entry.offset, entry.length * contents_->header.channels);
  } else {
    const SymbolLayout& layout = contents_->layout;
    const std::byte* const stored = contents_->symbols.data() + entry.offset * layout.width;
    view.first = SymbolSpan(stored, entry.length, layout);
    if (kind() == Kind::pairs) {
      const std::size_t first_size = (entry.length - specials_of(layout)) * std::size_t{layout.width};
      view.second = SymbolSpan(stored + first_size, entry.second_length, layout);
    }
  }
  return view;
}

const Encoding& CachedSet::encoding() const {
  return contents_->encoding;
}

std::vector<std::int64_t> CachedSet::lengths() const {
  if (!contents_->tokens.empty())
    return contents_->tokens;
  std::vector<std::int64_t> lengths;
  lengths.reserve(size());
  for (const IndexEntry& entry : contents_->index)
    lengths.push_back(std::int64_t{entry.length} + entry.second_length);
  return lengths;
}

std::vector<std::int32_t> CachedSet::labels() const {
  std::vector<std::int32_t> labels;
  labels.reserve(size());
  for (const IndexEntry& entry : contents_->index)
    labels.push_back(entry.label);
  return labels;
}

std::vector<std::int64_t> CachedSet::class_counts() const {
  std::vector<std::int64_t> counts(contents_->encoding.labels.size());
  for (const IndexEntry& entry : contents_->index) {
    if (entry.label >= 0)
      ++counts[static_cast<std::size_t>(entry.label)];
  }
  return counts;
}

const SetStatistics& CachedSet::statistics() const {
  return contents_->statistics;
}

const ChannelStatistics& CachedSet::channel_statistics() const {
  return contents_->channels;
}

std::uint64_t CachedSet::fingerprint() const {
  return contents_->header.fingerprint;
}

std::string CachedSet::digest() const {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, contents_->digest);
  return text;
}

}  // namespace dba::data
