#include "dba/run/event_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>

#include "crc32c.h"
#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "folders.h"

namespace dba::run {
namespace {

using bytes::FileError;

constexpr std::string_view kPrefix = "events.out.tfevents.";

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Protocol buffers: a field is its number and wire type in one varint, then its value.

enum Wire : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <typename T>
void put_little_endian(std::string& out, T bits) {
  for (std::size_t i = 0; i < sizeof bits; ++i)
    out += static_cast<char>(bits >> 8 * i);
}

void put_key(std::string& out, unsigned field, Wire wire) {
  put_varint(out, field << 3 | wire);
}

void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//                 SessionLog session_log = 7; }
std::string event(double wall_time, std::int64_t step) {
  std::string out;
  put_key(out, 1, kFixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(wall_time));
  put_key(out, 2, kVarint);
  put_varint(out, static_cast<std::uint64_t>(step));
  return out;
}

// message Summary { repeated Value value = 1; }  message Value { string tag = 1; float simple_value = 2; }
std::string summary(std::span<const Scalar> scalars) {
  std::string out;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_key(value, 2, kFixed32);
    put_little_endian(value, std::bit_cast<std::uint32_t>(scalar.value));
    put_bytes(out, 1, value);
  }
  return out;
}

// message SessionLog { enum Status { START = 1; } Status status = 1; }
std::string session_start() {
  std::string out;
  put_key(out, 1, kVarint);
  put_varint(out, 1);
  return out;
}

// TFRecord keeps checksums of checksums apart from those of data by turning and shifting them.
std::uint32_t masked_checksum(std::string_view bytes) {
  const std::uint32_t checksum = crc32c(std::as_bytes(std::span(bytes)));
  return std::rotr(checksum, 15) + 0xa282ead8u;
}

// Readers take the files of a folder in the order of their names, which begin with the seconds since 1970.
long long next_second(const std::filesystem::path& folder) {
  auto second = static_cast<long long>(now());
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(kPrefix))
      continue;
    long long taken = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), taken);
    second = std::max(second, taken + 1);
  }
  return second;
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& folder, std::int64_t resumed_after) {
  make_folders(folder);
  path_ = folder / (std::string(kPrefix) + std::to_string(next_second(folder)) + ".dba");
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw FileError("create", path_, errno);
  std::string version = event(now(), 0);
  put_bytes(version, 3, "brain.Event:2");
  append(version);
  if (resumed_after >= 0) {
    // Readers drop what they have of this step and later ones.
    std::string start = event(now(), resumed_after + 1);
    put_bytes(start, 7, session_start());
    append(start);
  }
}

EventWriter::~EventWriter() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

void EventWriter::write(std::int64_t step, std::span<const Scalar> scalars) {
  write(step, scalars, now());
}

void EventWriter::write(std::int64_t step, std::span<const Scalar> scalars, double wall_time) {
  std::string record = event(wall_time, step);
  put_bytes(record, 5, summary(scalars));
  append(record);
}

// TFRecord: length, its masked checksum, the record, its masked checksum. All in one write, so that a reader rarely
// meets half a record.
void EventWriter::append(const std::string& record) {
  std::string length;
  put_little_endian(length, static_cast<std::uint64_t>(record.size()));
  std::string frame = length;
  put_little_endian(frame, masked_checksum(length));
  frame += record;
  put_little_endian(frame, masked_checksum(record));
  bytes::OutputFile(descriptor_, path_).write(std::as_bytes(std::span(frame)));
}

}  // namespace dba::run
