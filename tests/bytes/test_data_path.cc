#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "dba/data/data_path.h"
#include "dba/data/describe.h"
#include "dba/data/lra.h"
#include "read_text.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::FormatError;
using bytes::make_folder;
using bytes::ScratchFolder;
using bytes::write;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

TEST(DataPath, NamesAPartOfAFile) {
  const ScratchFolder folder;
  const DataPath percent = DataPath::parse("a/b.bin@80-90%");
  EXPECT_EQ(percent.path, "a/b.bin");
  const Part::Range range = percent.part.of(215, "b");
  EXPECT_EQ(range.begin, 172u);
  EXPECT_EQ(range.end, 193u);
  const Part::Range numbers = DataPath::parse("b@3-5").part.of(5, "b");
  EXPECT_EQ(numbers.begin, 3u);
  EXPECT_EQ(numbers.end, 5u);
  for (const char* const whole : {"a@b/c.bin", "b.bin@", "b.bin@1", "b.bin@1-", "b.bin@1-2x", "b.bin@-1-2"})
    EXPECT_TRUE(DataPath::parse(whole).part.whole) << whole;
  for (const char* const wrong : {"b@5-5", "b@9-3", "b@90-101%"})
    EXPECT_THROW(DataPath::parse(wrong), std::invalid_argument) << wrong;
  write(folder / "odd@1-2", "");
  EXPECT_TRUE(DataPath::parse(folder / "odd@1-2").part.whole);
  EXPECT_THAT(
      [] { DataPath::parse("b@3-6").part.of(5, "b"); },
      ThrowsMessage<FormatError>("b: has 5 records; the part 3-6 reaches beyond them; name a part within them"));
  EXPECT_THAT([] { DataPath::parse("b@1-2%").part.of(5, "b"); },
              ThrowsMessage<FormatError>(HasSubstr("holds none of them")));
}

TEST(DataPath, PartsOfARunMustNotShareRecords) {
  config::TrainConfig config;
  config.train.updates = 1000;
  config.data.train = "a.bin@0-80%";
  config.data.validation = "a.bin@80-90%";
  config.data.test = "a.bin@90-100%";
  EXPECT_THAT(config::contradictions(config), testing::IsEmpty());
  config.data.test = "a.bin@75-80%";
  EXPECT_THAT(config::contradictions(config),
              ElementsAre(AllOf(HasSubstr("data.test (a.bin@75-80%) share records"), HasSubstr("data.train"))));
}

TEST(DataPath, PartsOfAnyFormatMakeUpTheWhole) {
  const ScratchFolder folder;
  std::string text = "text,label\n";
  for (int i = 0; i < 7; ++i)
    text += std::to_string(i) + ",0\n";
  write(folder / "set.csv", text);
  std::string joined;
  for (const char* const part : {"@0-30%", "@30-60%", "@60-100%"}) {
    for (const Example& example : read_path((folder / "set.csv").string() + part))
      joined += example.text;
    joined += '|';
  }
  EXPECT_EQ(joined, "01|23|456|");
}

TEST(Packed, FilesAreToBeUnpackedFirst) {
  const ScratchFolder folder;
  write(folder / "a.tsv.xz", std::string("\xfd"
                                         "7zXZ\0",
                                         6) +
                                 "rest");
  write(folder / "a.csv", "\x1f\x8b rest");
  write(folder / "a.tar.gz", "\x1f\x8b rest");
  write(folder / "a.bin", std::string(257, 'x') + "ustar" + std::string(300, 'x'));
  const auto expect = [&](const std::string& name, const std::string& command) {
    EXPECT_THAT([&] { make_reader(folder / name); },
                ThrowsMessage<FormatError>(HasSubstr("is packed; unpack it first: " + command)));
  };
  expect("a.tsv.xz", "xz -dk");
  expect("a.csv", "gzip -dk");
  expect("a.tar.gz", "tar xf");
  expect("a.bin", "tar xf");
}

TEST(Packed, AnArchiveWithoutItsEndIsToBeFetchedAgain) {
  const ScratchFolder folder;
  const std::string xz(
      "\xfd"
      "7zXZ\0",
      6);
  const std::string zip = "PK\x03\x04 files ";
  const std::string directory = "PK\x05\x06" + std::string(18, '\0');
  write(folder / "cut.tar.xz", xz + "half");
  write(folder / "whole.tar.xz", xz + "all of it YZ");
  write(folder / "cut.zip", zip);
  write(folder / "whole.zip", zip + directory + "a remark");
  const auto reason = [&](const std::string& name) { return describe_folder(folder / name).files.at(0).reason; };
  EXPECT_THAT(reason("cut.tar.xz"), AllOf(HasSubstr("tar xf"), HasSubstr("its end is missing: fetch it again")));
  EXPECT_THAT(reason("cut.zip"), AllOf(HasSubstr("unzip"), HasSubstr("its end is missing: fetch it again")));
  EXPECT_THAT(reason("whole.tar.xz"), AllOf(HasSubstr("tar xf"), Not(HasSubstr("missing"))));
  EXPECT_THAT(reason("whole.zip"), AllOf(HasSubstr("unzip"), Not(HasSubstr("missing"))));
  const Description all = describe_folder(folder.path());
  EXPECT_FALSE(all.sound());
  EXPECT_THAT(all.to_text(), HasSubstr("whole.tar.xz\n  not recognised; it is packed; unpack it first: tar xf "));
}

TEST(Packed, ArchivesAreNamedWhereATaskOfTheArenaIsMissing) {
  const ScratchFolder folder;
  make_folder(folder / "aan");
  write(folder / "aan" / "new_aan_pairs.train.tsv", "1.0\ta\tb\tone\ttwo\n");
  write(folder / "aclImdb_v1.tar.gz", "\x1f\x8b rest");
  EXPECT_THAT(check_lra(folder.path()).to_text(), HasSubstr("aclImdb_v1.tar.gz: is packed; unpack it first: tar xf "));
}

TEST(DataCheck, AFolderOfDataSetsNamesTheFirstOfThem) {
  const ScratchFolder folder;
  make_folder(folder / "Gestures");
  write(folder / "Gestures" / "Gestures_TRAIN.ts", "@classLabel true a\n@data\n1,2:a\n");
  EXPECT_THAT(describe_folder(folder.path()).remarks,
              ElementsAre(HasSubstr("dba data check " + (folder / "Gestures").string())));
  EXPECT_THAT(describe_folder(folder / "Gestures").to_text(), HasSubstr("ts, train part: 1 record"));
}

}  // namespace
}  // namespace dba::data
