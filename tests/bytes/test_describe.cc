#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "dba/bytes/errors.h"
#include "dba/data/describe.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::ScratchFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Describe, FolderWithErrorsAndUnknownLabels) {
  const ScratchFolder folder;
  std::ofstream(folder / "train.jsonl") << "{\"text\":\"a b\",\"label\":\"x\"}\n{\"text\":\"abcdef\",\"label\":\"y\"}\n"
                                        << "{bad\n{bad\n{bad\n{\"text\":\"\"}\n";
  std::ofstream(folder / "my_test.csv") << "text,label\nq,z\n";
  std::ofstream(folder / "README.md") << "notes";
  const Description description = describe_folder(folder.path(), {}, 2);
  ASSERT_EQ(description.files.size(), 3u);
  EXPECT_EQ(description.files[0].format, "");
  EXPECT_EQ(description.files[1].part, "test");
  const FileDescription& train = description.files[2];
  EXPECT_EQ(train.part, "train");
  EXPECT_EQ(train.format, "jsonl");
  EXPECT_EQ(train.records, 3u);
  EXPECT_EQ(train.unlabelled, 1u);
  EXPECT_EQ(train.classes, (std::map<std::string, std::uint64_t>{{"x", 1}, {"y", 1}}));
  EXPECT_EQ(train.error_count, 3u);
  EXPECT_EQ(train.errors.size(), 2u);
  ASSERT_EQ(train.lengths.size(), 2u);
  EXPECT_EQ(train.lengths[0].longest, 6u);
  EXPECT_EQ(train.lengths[0].shortest, 0u);
  EXPECT_DOUBLE_EQ(train.lengths[0].mean, 3.0);
  EXPECT_EQ(train.lengths[1].longest, 2u);
  EXPECT_THAT(description.missing, ElementsAre(HasSubstr("a validation part")));
  EXPECT_THAT(description.remarks, ElementsAre(HasSubstr("my_test.csv has the label \"z\""),
                                               HasSubstr("train.jsonl has 1 record without a label")));
  EXPECT_FALSE(description.sound());
  EXPECT_THAT(description.to_text(),
              AllOf(HasSubstr("errors: 3"), HasSubstr("… and 1 more"), HasSubstr("train.jsonl:3: ")));
  const auto json = nlohmann::json::parse(description.to_json());
  EXPECT_EQ(json["files"][2]["classes"]["x"], 1);
  EXPECT_EQ(json["sound"], false);
}

TEST(Describe, LabelsThatTrainingRefusesOrThatLookTheSame) {
  const ScratchFolder folder;
  std::ofstream(folder / "train.csv") << "text,label\na,good\nb, Good\nc,bad\nd,\ne,\n";
  std::ofstream(folder / "test.csv") << "text,label\na,good\n";
  const Description description = describe_folder(folder.path());
  EXPECT_THAT(description.remarks,
              ElementsAre("train.csv has 2 records without a label, which training and evaluation refuse; give them "
                          "one or leave them out",
                          "train.csv has the labels \" Good\" (1) and \"good\" (1), which differ in case or spaces "
                          "alone; write them alike if they are one class"));
  EXPECT_FALSE(description.sound());
  std::ofstream(folder / "train.csv") << "text\na\nb\n";
  EXPECT_THAT(describe_folder(folder / "train.csv").remarks,
              ElementsAre("train.csv has no labels; a classifier cannot be trained on it"));
  std::ofstream(folder / "new.csv") << "text\na\nb\n";
  EXPECT_TRUE(describe_folder(folder / "new.csv").sound()) << "as for prediction";
}

TEST(Describe, TextsThatAreNotUtf8AreCounted) {
  const ScratchFolder folder;
  std::ofstream(folder / "a.csv") << "text,label\ncaf\xc3\xa9,0\ncaf\xe9,1\n\xc3,1\n";
  const Description description = describe_folder(folder / "a.csv");
  EXPECT_TRUE(description.sound());
  EXPECT_EQ(description.files[0].not_utf8, 2u);
  EXPECT_THAT(description.to_text(),
              HasSubstr("not UTF-8: 2 texts, the first at " + (folder / "a.csv").string() + ":3"));
}

TEST(Describe, OneOfAThingIsNotCalledByItsPlural) {
  const ScratchFolder folder;
  std::ofstream(folder / "a.jsonl") << "{\"series\":[[1],[2]],\"label\":\"x\"}\n";
  EXPECT_THAT(describe_folder(folder / "a.jsonl").to_text(),
              AllOf(HasSubstr("jsonl: 1 record (a series, 1 channel)\n"), HasSubstr("1 class: \"x\" 1\n")));
  std::ofstream(folder / "notes.txt") << "words";
  EXPECT_THAT(describe_folder(folder / "notes.txt").to_text(), HasSubstr("name it with --format"));
}

TEST(Describe, SingleFileAndOneClassOnly) {
  const ScratchFolder folder;
  std::ofstream(folder / "a.jsonl") << "{\"series\":[[1,2],[3,null]],\"label\":\"\xff\"}\n";
  const Description one = describe_folder(folder / "a.jsonl");
  EXPECT_EQ(one.files[0].channels, 2u);
  EXPECT_EQ(one.files[0].repairs.missing_values, 1u);
  EXPECT_THAT(one.missing, IsEmpty());
  EXPECT_THAT(one.remarks, ElementsAre(HasSubstr("one class only")));
  EXPECT_TRUE(nlohmann::json::accept(one.to_json()));
  EXPECT_THROW(describe_folder(folder / "missing"), bytes::FileError);
  std::ofstream(folder / "a.jsonl") << "{\"text\":\"a\",\"label\":0}\n{\"text\":\"b\",\"label\":1}\n";
  EXPECT_TRUE(describe_folder(folder / "a.jsonl").sound());
}

}  // namespace
}  // namespace dba::data
