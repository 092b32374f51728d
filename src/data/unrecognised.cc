#include "unrecognised.h"

#include <array>

#include "dba/data/byte_source.h"
#include "folder_listing.h"
#include "packed_file.h"
#include "readers.h"

namespace dba::data {
namespace {

// Of a file that is neither grey nor CIFAR-10: what speaks against either.
std::string no_records(const std::filesystem::path& file) {
  const std::uint64_t size = size_of(file);
  std::string fault;
  if (size % kGreyRecord != 0 && size % kCifarRecord != 0) {
    fault = "has " + std::to_string(size) +
            " bytes, which is no whole number of records of 1,025 bytes (grey) or 3,073 (CIFAR-10)";
  } else {
    const std::size_t record = size % kGreyRecord == 0 ? kGreyRecord : kCifarRecord;
    std::array<char, 4096> buffer;
    const std::size_t count = open_source(file)->read(buffer);
    for (std::size_t place = 0; place < count && fault.empty(); place += record) {
      const auto label = static_cast<unsigned char>(buffer[place]);
      if (label >= kCifarClasses)
        fault = "has the label " + std::to_string(label) + " in record " + std::to_string(place / record + 1) +
                ", expected 0 to 9";
    }
  }
  return fault.empty() ? "" : fault + "; fetch or generate it again, or name its format (data.format, or --format)";
}

}  // namespace

std::string unrecognised_reason(const std::filesystem::path& file) {
  if (!is_file(file))
    return "";
  if (const std::string fault = packed_fault(file); !fault.empty())
    return fault;
  const bool cache = file.extension() == ".cache";
  if (!cache && file.extension() != ".bin")
    return "";
  if (size_of(file) == 0)
    return "is empty; fetch or make it again";
  return cache ? "is no cache of this program, or its beginning is damaged; make it anew with dba data cache"
               : no_records(file);
}

}  // namespace dba::data
