#include "packed_file.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

#include "folder_listing.h"

namespace dba::data {
namespace {

using namespace std::string_view_literals;

struct Packing {
  std::string_view begins;
  const char* command;
  std::string_view ends = {};  // somewhere in the last `tail` bytes of a whole file; empty: they cannot tell
  std::size_t tail = 0;
};

constexpr std::array<Packing, 5> kPackings = {{{"\xfd"
                                                "7zXZ\0"sv,
                                                "xz -dk", "YZ"sv, 2},
                                               {"\x1f\x8b"sv, "gzip -dk"},
                                               {"BZh"sv, "bzip2 -dk"},
                                               {"PK\x03\x04"sv, "unzip", "PK\x05\x06"sv, 22 + 65535},
                                               {"\x28\xb5\x2f\xfd"sv, "zstd -d"}}};
constexpr Packing kTar = {"", "tar xf"};

std::string bytes_of(const std::filesystem::path& file, std::uint64_t from, std::size_t most) {
  std::string bytes(most, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(from));
  stream.read(bytes.data(), static_cast<std::streamsize>(most));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, stream.gcount())));
  return bytes;
}

const Packing* packing_of(std::string_view beginning) {
  if (beginning.size() >= 262 && beginning.substr(257, 5) == "ustar")
    return &kTar;
  const auto found =
      std::ranges::find_if(kPackings, [&](const Packing& packing) { return beginning.starts_with(packing.begins); });
  return found == kPackings.end() ? nullptr : &*found;
}

bool cut_short(const std::filesystem::path& file, const Packing& packing) {
  if (packing.ends.empty())
    return false;
  const std::uint64_t size = size_of(file);
  const std::uint64_t tail = std::min<std::uint64_t>(size, packing.tail);
  return bytes_of(file, size - tail, static_cast<std::size_t>(tail)).find(packing.ends) == std::string::npos;
}

}  // namespace

std::string packed_fault(const std::filesystem::path& file) {
  const Packing* const packing = packing_of(bytes_of(file, 0, 512));
  if (!packing)
    return "";
  const bool tar = file.stem().extension() == ".tar" || file.extension() == ".tgz" || file.extension() == ".txz";
  std::string fault =
      "is packed; unpack it first: " + std::string(tar ? kTar.command : packing->command) + " " + file.string();
  if (cut_short(file, *packing))
    fault += "; but its end is missing: fetch it again before";
  return fault;
}

}  // namespace dba::data
