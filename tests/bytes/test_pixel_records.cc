#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
#include "dba/data/describe.h"
#include "pixel_bytes.h"
#include "read_text.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::FormatError;
using bytes::ScratchFolder;
using bytes::write;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(PixelRecords, GreyOnesAreReadAndDivided) {
  const ScratchFolder folder;
  const auto file = folder / "set.bin";
  write(file, grey_record(3, 7) + grey_record(0, 255) + grey_record(9, 0) + grey_record(1, 1));
  const auto all = read_path(file);
  EXPECT_THAT(labels_of(all), ElementsAre("3", "0", "9", "1"));
  EXPECT_EQ(all[0].content, Content::integers);
  EXPECT_EQ(all[0].integers.size(), 1024u);
  EXPECT_THAT(all[1].integers, Each(255));
  EXPECT_THAT(labels_of(read_path(file.string() + "@25-75%")), ElementsAre("0", "9"));
}

TEST(PixelRecords, ColourBecomesGreyAsInTheArena) {
  const ScratchFolder folder;
  const auto file = folder / "data.bin";
  write(file, colour_record(0, 255, 255, 255) + colour_record(1, 255, 0, 0) + colour_record(2, 0, 255, 0) +
                  colour_record(3, 0, 0, 255) + colour_record(4, 10, 20, 30));
  EXPECT_EQ(recognise(file)->name, "cifar10");
  std::vector<int> grey;
  for (const Example& example : read_path(file))
    grey.push_back(example.integers[500]);
  // 255.5 · 0.9999, 255.5 · 0.2989, 255.5 · 0.587, 255.5 · 0.114 and 255.5 · 18.149 / 255, cut.
  EXPECT_THAT(grey, ElementsAre(255, 76, 149, 29, 18));
}

TEST(PixelRecords, CutShortOrDamagedFilesAreRefused) {
  const ScratchFolder folder;
  const auto file = folder / "set.bin";
  write(file, (grey_record(3, 7) + grey_record(0, 255)).substr(0, 1500));
  EXPECT_THAT(
      [&] { read_path(file); },
      ThrowsMessage<FormatError>(AllOf(HasSubstr("set.bin:2: the file ends after 475 of the 1025 bytes of record 2"),
                                       HasSubstr("fetch it again"))));
  write(file, colour_record(3, 99, 99, 99) + colour_record(10, 99, 99, 99));
  ReaderOptions options;
  options.format = "cifar10";
  EXPECT_THAT([&] { read_all(*make_reader(file, options)); },
              ThrowsMessage<FormatError>(HasSubstr("set.bin:2: record 2 has the label 10, expected 0 to 9")));
}

TEST(PixelRecords, TheFolderOfCifarIsItsTrainingPart) {
  const ScratchFolder folder;
  for (char batch = 1; batch <= 5; ++batch)
    write(folder / ("data_batch_" + std::to_string(batch) + ".bin"), colour_record(batch, 1, 2, 3));
  write(folder / "test_batch.bin", colour_record(9, 1, 2, 3));
  EXPECT_THAT(labels_of(read_path(folder.path())), ElementsAre("1", "2", "3", "4", "5"));
  EXPECT_THAT(labels_of(read_path(folder.path().string() + "@80-100%")), ElementsAre("5"));
  write(folder / "data_batch_2.bin", colour_record(2, 1, 2, 3).substr(0, 3000));
  EXPECT_THAT([&] { read_path(folder.path()); }, ThrowsMessage<FormatError>(HasSubstr("data_batch_2.bin:1: the file")));
  std::filesystem::remove(folder / "data_batch_4.bin");
  EXPECT_THAT([&] { read_path(folder.path()); }, ThrowsMessage<FormatError>(HasSubstr("data_batch_4.bin is missing")));
}

TEST(ReadyCache, IsOpenedInsteadOfItsSource) {
  const ScratchFolder folder;
  write(folder / "set.bin", grey_record(0, 7) + grey_record(1, 255));
  CacheSource source{folder / "set.bin", {}, {}, {}};
  source.tokeniser.scheme = Scheme::integer;
  source.tokeniser.integers = 256;
  source.tokeniser.cls = true;
  source.tokeniser.max_length = 1024;
  build_cache(source, folder / "train.cache");
  std::filesystem::remove(folder / "set.bin");
  EXPECT_LT(std::filesystem::file_size(folder / "train.cache"), 2 * 1023u + 700);
  source.file = folder / "train.cache";
  const CacheOutcome outcome = open_or_build(source, folder / "none.cache");
  EXPECT_FALSE(outcome.built);
  EXPECT_FALSE(std::filesystem::exists(folder / "none.cache"));
  // CLS and 1,023 pixels: the last one is cut.
  EXPECT_EQ(outcome.set.example(1).first.size(), 1024u);
  EXPECT_EQ(outcome.set.example(1).first[0], 256);
  EXPECT_EQ(outcome.set.example(1).first[1023], 255);
  EXPECT_EQ(outcome.set.statistics().cut, 2u);
  const FileDescription described = describe_source(folder / "train.cache");
  EXPECT_EQ(described.format, "cache");
  EXPECT_EQ(described.records, 2u);

  EXPECT_THAT([&] { make_reader(folder.path() / "train.cache@0-50%"); },
              ThrowsMessage<FormatError>(HasSubstr("train.cache: is a cache of this program, which is read whole")));

  source.tokeniser.cls = false;
  EXPECT_THAT([&] { open_or_build(source, folder / "none.cache"); },
              ThrowsMessage<FormatError>(
                  AllOf(HasSubstr("was made with cls true, the options say false"), HasSubstr("dba data cache"))));
  source.encoding = outcome.set.encoding();
  EXPECT_FALSE(open_or_build(source, folder / "none.cache").built);
  TokeniserOptions other = outcome.set.encoding().tokeniser.options();
  other.max_length = 900;
  source.encoding->tokeniser = Tokeniser(other);
  EXPECT_THROW(open_or_build(source, folder / "none.cache"), FormatError) << "its sequences are longer";
  source.encoding = outcome.set.encoding();
  source.encoding->labels = LabelSet({"0", "1", "2"});
  EXPECT_THAT([&] { open_or_build(source, folder / "none.cache"); },
              ThrowsMessage<FormatError>(HasSubstr("other classes or other options than the training part")));
}

}  // namespace
}  // namespace dba::data
