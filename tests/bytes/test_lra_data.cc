#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "dba/data/cache.h"
#include "dba/data/lra.h"
#include "dba/data/pathfinder.h"
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

class ListOpsBelow {
 public:
  ListOpsBelow() {
    make_folder(folder_ / "listops");
    for (const char* const part : {"train", "val", "test"})
      put(part, {"0", "1"});
  }
  /// A row for each label.
  void put(const std::string& part, const std::vector<std::string>& labels) const {
    std::string text = "Source\tTarget\n";
    for (const std::string& label : labels)
      text += "[MAX 1 0 ]\t" + label + "\n";
    write(folder_ / ("listops/basic_" + part + ".tsv"), text);
  }
  /// As `dba data cache` does: of the training part first, whose encoding the others take.
  void cache(const std::string& part, const std::string& name) const {
    CacheSource source{folder_ / ("listops/basic_" + part + ".tsv"), {}, {}, {}};
    source.tokeniser.scheme = Scheme::whitespace;
    if (part != "train")
      source.encoding = CachedSet::open(folder_ / "listops/train.cache").encoding();
    build_cache(source, folder_ / ("listops/" + name + ".cache"));
  }
  LraReport check() const {
    return check_lra(folder_.path());
  }
  std::filesystem::path operator/(const std::string& name) const {
    return folder_ / name;
  }

 private:
  ScratchFolder folder_;
};

TEST(Lra, PartsWithoutLabelsOrWithOtherClassesAreTold) {
  const ListOpsBelow folder;
  EXPECT_TRUE(folder.check().sound()) << folder.check().to_text();
  folder.put("test", {"", ""});
  EXPECT_FALSE(folder.check().sound());
  EXPECT_THAT(folder.check().to_text(), AllOf(HasSubstr("2 examples, published: 2000; 2 without a label"),
                                              HasSubstr("note: listops: basic_test.tsv has no labels")));
  folder.put("test", {"0", "7"});
  EXPECT_THAT(folder.check().to_text(),
              HasSubstr("listops: basic_test.tsv has the label \"7\", which the training part lacks"));
  folder.put("test", {"0"});
  EXPECT_TRUE(folder.check().sound()) << "a few examples may lack a class";
  folder.put("test", std::vector<std::string>(100, "0"));
  EXPECT_THAT(folder.check().to_text(),
              HasSubstr("basic_test.tsv has no example of \"1\", which the training part has"));
  EXPECT_THAT(folder.check().to_json(), HasSubstr("\"sound\": false"));
}

TEST(Lra, CachesAreWhatRunsTake) {
  const ListOpsBelow folder;
  folder.cache("train", "train");
  folder.cache("val", "validation");
  folder.cache("test", "test");
  const std::string digest = CachedSet::open(folder / "listops/train.cache").digest();
  EXPECT_TRUE(folder.check().sound());
  EXPECT_THAT(folder.check().to_text(), AllOf(HasSubstr("listops/train.cache, cache\n    data digest " + digest),
                                              HasSubstr("basic_train.tsv, listops")));
  EXPECT_THAT(folder.check().to_json(), HasSubstr("\"digest\": \"" + digest));
  folder.put("val", {"0", "0"});
  folder.cache("val", "validation");
  EXPECT_TRUE(folder.check().sound()) << "a class that a part lacks: " << folder.check().to_text();
  folder.put("test", std::vector<std::string>(100, "0"));
  folder.cache("test", "test");
  EXPECT_THAT(folder.check().to_text(), HasSubstr("test.cache has no example of \"1\", which the training part has"));
  folder.put("test", {"0", "1"});
  folder.cache("test", "test");
  folder.put("train", {"0", "1", "1"});
  EXPECT_FALSE(folder.check().sound());
  EXPECT_THAT(folder.check().to_text(), AllOf(HasSubstr("train: 2 examples"), HasSubstr("train.cache, which runs take"),
                                              HasSubstr("2 examples and 3"), HasSubstr("dba data cache")));
  for (const char* const part : {"train", "val", "test"})
    std::filesystem::remove(folder / ("listops/basic_" + std::string(part) + ".tsv"));
  EXPECT_TRUE(holds_lra(folder / "")) << "caches alone";
  EXPECT_TRUE(folder.check().sound()) << folder.check().to_text();
  const std::string whole = bytes::contents(folder / "listops/test.cache");
  write(folder / "listops/test.cache", whole.substr(0, whole.size() / 2));
  EXPECT_FALSE(folder.check().sound());
  EXPECT_THAT(folder.check().to_text(), HasSubstr("make it anew with dba data cache"));
  std::filesystem::remove(folder / "listops/test.cache");
  EXPECT_THAT(folder.check().to_text(), HasSubstr("  test: missing; looked for listops/basic_test.tsv"));
}

TEST(Lra, ACifarFolderThatLacksABatchIsTold) {
  const ScratchFolder folder;
  make_folder(folder / "cifar-10-batches-bin");
  write(folder / "cifar-10-batches-bin/data_batch_2.bin", std::string(3073, '\1'));
  ASSERT_TRUE(holds_lra(folder.path()));
  EXPECT_FALSE(check_lra(folder.path()).sound());
  EXPECT_THAT(check_lra(folder.path()).to_text(), HasSubstr("data_batch_1.bin is missing"));
}

TEST(Lra, PicturesThatNoMetadataNameAreTold) {
  const ScratchFolder folder;
  PathfinderOptions options;
  options.count = 20;
  options.contour_length = 6;
  make_folder(folder / "pathfinder32");
  write_pathfinder_folder(folder / "pathfinder32", options);
  EXPECT_TRUE(check_lra(folder.path()).sound()) << check_lra(folder.path()).to_text();
  // The generator writes the metadata of a thousand pictures behind them.
  make_folder(folder / "pathfinder32/imgs/1");
  write(folder / "pathfinder32/imgs/1/sample_0.png", bytes::contents(folder / "pathfinder32/imgs/0/sample_0.png"));
  const std::string told = "has 21 pictures, of which the metadata name 20";
  EXPECT_FALSE(check_lra(folder.path()).sound());
  EXPECT_THAT(check_lra(folder.path()).remarks, testing::ElementsAre(HasSubstr("pathfinder32 " + told))) << "once";
  const Description alone = describe_folder(folder / "pathfinder32");
  EXPECT_FALSE(alone.sound());
  EXPECT_THAT(alone.to_text(), HasSubstr(told));
}

}  // namespace
}  // namespace dba::data
