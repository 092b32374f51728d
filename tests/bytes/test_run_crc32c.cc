#include <gtest/gtest.h>

#include <string>

#include "run/crc32c.h"
#include "small_checkpoints.h"

namespace dba::run {
namespace {

TEST(Crc32c, AgreesWithPublishedValues) {
  const auto of = [](const std::string& text) { return crc32c(std::as_bytes(std::span(text))); };
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(of("123456789"), 0xe3069283u);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(of(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(of(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32c, OfPiecesIsThatOfTheWhole) {
  const bytes::Bytes bytes = content(1, 1, 100);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::span all(bytes);
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all));
  }
}

}  // namespace
}  // namespace dba::run
