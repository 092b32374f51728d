#include <cstring>
#include <string>

#include "dba/config/config_file.h"
#include "fuzz.h"

namespace dba::config {
namespace {

using bytes::Bytes;

Bytes bytes_of(const std::string& text) {
  Bytes result(text.size());
  std::memcpy(result.data(), text.data(), text.size());
  return result;
}

std::vector<Bytes> sound_files() {
  TrainConfig other;
  other.data.train = "größe/\x01\x80 \"x\"";
  other.schedule.milestones = {10, 20, 30};
  return {
      bytes_of(to_yaml(other)),
      bytes_of("%YAML 1.2\n--- # one document\nseed: +12\nmodel: {d: 64, \"heads\": 8, form: 'released',\n  d_p: 1}\n"),
      bytes_of("schedule:\n  milestones:\n  - 1\n  - 2\ndata:\n  train: >-\n    folded\n    text\n  test: |\n    kept\n"
               "? seed\n: 3\n...\n"),
      bytes_of(
          "data:\n  train: \"\\u00e9\\x41\\n\"\n  test: 'it''s'\noptimiser: {betas: [0.9, 0.98], lr: 1e-3}\ntrain:\n"),
      // None of the following is accepted; pieces of them are put into those that are.
      bytes_of("a: &a [x, x]\nb: &b [*a, *a, *a]\nc: !!map {<<: *b}\n"),
      bytes_of("{{{{[[[[? - - - ? : : ,,,, ]]]]}}}}\n---\n...\n"),
  };
}

void read_and_check(const Bytes& file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const TrainConfig config = parse_config(text, "fuzzed");
  EXPECT_EQ(parse_config(to_yaml(config), "written again"), config);
  // Whatever the values are, only sentences come of them.
  for (const std::string& sentence : contradictions(config))
    EXPECT_FALSE(sentence.empty());
}

TEST(FuzzConfig, DamagedFilesParseConsistentlyOrThrowFormatError) {
  const bytes::FuzzTarget target{sound_files(), read_and_check, {}};
  for (std::size_t i = 0; i < 4; ++i)
    read_and_check(target.files[i]);
  constexpr std::size_t kIterations = 7'000;
  const bytes::FuzzCounts counts = fuzz(target, /*seed=*/20'241'109, kIterations, /*largest_request=*/1 << 20);
  ASSERT_EQ(counts.accepted + counts.refused, kIterations);
  EXPECT_GT(counts.accepted, kIterations / 50);
  EXPECT_GT(counts.refused, kIterations / 4);
}

}  // namespace
}  // namespace dba::config
