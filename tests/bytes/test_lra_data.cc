#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "dba/data/lra.h"
#include "pixel_bytes.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::make_folder;
using bytes::ScratchFolder;
using bytes::write;
using testing::AllOf;
using testing::HasSubstr;

TEST(Lra, TasksAreFoundInTheirLayouts) {
  const ScratchFolder folder;
  write(folder / "basic_train.tsv", "Source\tTarget\n");
  EXPECT_FALSE(holds_lra(folder.path().string() + "/")) << "one task, which is described file by file";
  std::filesystem::remove(folder / "basic_train.tsv");
  EXPECT_FALSE(holds_lra(folder.path()));
  make_folder(folder / "aclImdb");
  for (const char* const part : {"aclImdb/train", "aclImdb/test"}) {
    make_folder(folder / part);
    make_folder(folder / (std::string(part) + "/pos"));
    make_folder(folder / (std::string(part) + "/neg"));
    write(folder / (std::string(part) + "/pos/0_9.txt"), "good");
    write(folder / (std::string(part) + "/neg/0_2.txt"), "bad");
  }
  std::string records;
  for (char i = 0; i < 10; ++i)
    records += grey_record(static_cast<char>(i % 2), 9);
  write(folder / "pathfinder32.bin", records);
  make_folder(folder / "aan");
  write(folder / "aan/new_aan_pairs.train.tsv", "1.0\ta\tb\tc\td\n0.0\ta\tb\tc\n");
  ASSERT_TRUE(holds_lra(folder.path()));
  const LraReport report = check_lra(folder.path());
  const auto finding = [&](const std::string& task, const std::string& part) {
    return *std::ranges::find_if(
        report.findings, [&](const LraFinding& found) { return found.where.task == task && found.where.part == part; });
  };
  EXPECT_EQ(finding("text", "train").what.records, 2u);
  EXPECT_EQ(finding("text", "test").where.published, 25'000u);
  EXPECT_EQ(finding("pathfinder", "train").what.records, 8u);
  EXPECT_EQ(finding("pathfinder", "validation").what.records, 1u);
  EXPECT_EQ(finding("pathfinder", "test").where.path, (folder / "pathfinder32.bin").string() + "@90-100%");
  EXPECT_EQ(finding("listops", "train").where.path, "");
  EXPECT_EQ(finding("retrieval", "train").what.error_count, 1u);
  EXPECT_EQ(finding("text", "train").what.sha256.size(), 64u);
  EXPECT_NE(finding("text", "train").what.sha256, finding("pathfinder", "train").what.sha256);
  EXPECT_FALSE(report.sound());
  EXPECT_THAT(report.to_text(), AllOf(HasSubstr("8 examples, published: 160000"), HasSubstr("missing; looked for"),
                                      HasSubstr("new_aan_pairs.train.tsv:2: has 4 columns")));
  EXPECT_THAT(report.to_json(), HasSubstr("\"published\": 160000"));
}

TEST(Lra, ReviewsMayBeTables) {
  const ScratchFolder folder;
  make_folder(folder / "imdb");
  for (const char* const part : {"imdb/train.csv", "imdb/test.csv"})
    write(folder / part, "review,sentiment\n\"good, <br />\nand \"\"long\"\"\",positive\nbad,negative\n");
  ASSERT_TRUE(holds_lra(folder.path()));
  const LraReport report = check_lra(folder.path());
  EXPECT_TRUE(report.sound());
  EXPECT_THAT(report.to_text(), AllOf(HasSubstr("2 examples, published: 25000; 1 of \"negative\", 1 of \"positive\""),
                                      HasSubstr("imdb/test.csv, csv\n")));
}

}  // namespace
}  // namespace dba::data
