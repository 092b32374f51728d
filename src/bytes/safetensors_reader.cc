#include <algorithm>
#include <limits>
#include <utility>

#include "dba/bytes/errors.h"
#include "dba/bytes/safetensors.h"
#include "safetensors_header.h"

namespace dba::bytes {
namespace {

constexpr std::size_t kPrefix = 8;

std::uint64_t read_little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

// The JSON text, after everything that can be said about it without reading it.
std::string_view find_header(std::span<const std::byte> bytes, const std::string& source) {
  if (bytes.size() < kPrefix) {
    throw FormatError(source + ": " + (bytes.empty() ? "the file is empty" : "the file is truncated") +
                      ": a safetensors file has at least 8 bytes, this one " + std::to_string(bytes.size()));
  }
  const std::uint64_t length = read_little_endian(bytes.first(kPrefix));
  const std::string stated = source + ": the header is stated to have " + std::to_string(length) + " bytes, ";
  if (length > kLongestHeader) {
    throw FormatError(stated + "more than the " + std::to_string(kLongestHeader) +
                      " allowed: damaged or no safetensors file");
  }
  if (length > bytes.size() - kPrefix) {
    throw FormatError(stated + "but only " + std::to_string(bytes.size() - kPrefix) +
                      " follow: the file is truncated or damaged");
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kPrefix,
                                static_cast<std::size_t>(length));
  if (!header.starts_with('{'))
    throw FormatError(source + ": the header does not start with '{'");
  return header;
}

std::string to_string(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const auto size : shape)
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string range(const HeaderEntry& entry) {
  return "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
}

// The offsets of a tensor against its shape and the size of the data.
void check_entry(const HeaderEntry& entry, std::size_t data_size, const std::string& source) {
  const std::string tensor = source + ": tensor " + in_quotes(entry.name) + ": ";
  const auto expected = byte_count(entry.dtype, entry.shape);
  if (!expected)
    throw FormatError(tensor + "the size of shape " + to_string(entry.shape) + " overflows");
  if (entry.begin > entry.end)
    throw FormatError(tensor + "data_offsets " + range(entry) + " are not in order");
  if (entry.end - entry.begin != *expected) {
    throw FormatError(tensor + "data_offsets " + range(entry) + " span " + std::to_string(entry.end - entry.begin) +
                      " bytes, but shape " + to_string(entry.shape) + " of " + std::string(name_of(entry.dtype)) +
                      " takes " + std::to_string(*expected));
  }
  if (entry.end > data_size) {
    throw FormatError(tensor + "data_offsets " + range(entry) + " reach beyond the " + std::to_string(data_size) +
                      " bytes of data: the file is truncated or damaged");
  }
}

}  // namespace

std::optional<std::uint64_t> byte_count(DType dtype, std::span<const std::int64_t> shape) {
  bool empty = false;
  std::int64_t count = static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t size : shape) {
    if (size < 0)
      return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(count, size, &count)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(count);
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  MappedFile file(path);
  SafetensorsFile result = parse(file.bytes(), path.string());
  result.file_ = std::move(file);
  return result;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& source) {
  const std::string_view json = find_header(bytes, source);
  const auto data = bytes.subspan(kPrefix + json.size());
  Header header = parse_header(json, source);
  auto& entries = header.entries;
  for (const auto& entry : entries)
    check_entry(entry, data.size(), source);
  std::stable_sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  SafetensorsFile result;
  result.metadata_ = std::move(header.metadata);
  result.tensors_.reserve(entries.size());
  std::uint64_t position = 0;
  for (auto& entry : entries) {
    if (entry.begin != position) {
      throw FormatError(source + ": tensor " + in_quotes(entry.name) + ": data_offsets " + range(entry) +
                        (entry.begin < position ? " overlap the tensor before, which ends at "
                                                : " leave a hole after the tensor before, which ends at ") +
                        std::to_string(position));
    }
    position = entry.end;
    const auto begin = static_cast<std::size_t>(entry.begin);
    result.tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                               data.subspan(begin, static_cast<std::size_t>(entry.end) - begin)});
  }
  if (position != data.size()) {
    throw FormatError(source + ": the tensors end at byte " + std::to_string(position) + " of the data, the file at " +
                      std::to_string(data.size()));
  }
  for (std::size_t i = 0; i < result.tensors_.size(); ++i)
    result.by_name_.emplace(result.tensors_[i].name, i);
  return result;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace dba::bytes
