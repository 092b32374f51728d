#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
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
using testing::ThrowsMessage;

class ImdbFolder {
 public:
  ImdbFolder() {
    for (const char* const label : {"pos", "neg"})
      make_folder(folder_ / label);
    write(folder_ / "pos" / "10_9.txt", "ten");
    write(folder_ / "pos" / "2_7.txt", "two<br />lines");
    write(folder_ / "neg" / "2_1.txt", "");
    write(folder_ / "neg" / "notes", "no review");
  }
  const std::filesystem::path& path() const {
    return folder_.path();
  }

 private:
  ScratchFolder folder_;
};

TEST(Imdb, ReviewsComeByNumberTheClassesInTurn) {
  const ImdbFolder folder;
  const auto reviews = read_path(folder.path());
  EXPECT_THAT(labels_of(reviews), ElementsAre("neg", "pos", "pos"));
  EXPECT_EQ(reviews[0].text, "");
  EXPECT_EQ(reviews[1].text, "two<br />lines");
  EXPECT_EQ(reviews[2].text, "ten");
  const auto reader = make_reader(folder.path());
  Example example;
  reader->next(example);
  EXPECT_THAT(reader->place(), testing::EndsWith("neg/2_1.txt"));
  EXPECT_EQ(reader->total(), 3u);
}

TEST(Imdb, WhatIsMissingOrWrongIsNamed) {
  const ImdbFolder folder;
  EXPECT_THAT([&] { make_reader(folder.path().parent_path() / "nowhere"); }, testing::Throws<std::exception>());
  std::filesystem::remove(folder.path() / "neg" / "2_1.txt");
  EXPECT_THAT([&] { make_reader(folder.path()); }, ThrowsMessage<FormatError>(HasSubstr("neg: holds no review")));
  std::filesystem::remove_all(folder.path() / "neg");
  EXPECT_THAT([&] { make_reader(folder.path()); }, ThrowsMessage<FormatError>(HasSubstr("the folder neg is missing")));
  const ScratchFolder outer;
  make_folder(outer / "train");
  make_folder(outer / "train/pos");
  EXPECT_THAT([&] { make_reader(outer.path()); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("name the folder in it"), HasSubstr("/train"))));
  ReaderOptions options;
  options.format = "imdb";
  write(outer / "file.csv", "text,label\n");
  EXPECT_THAT([&] { make_reader(outer / "file.csv", options); },
              ThrowsMessage<FormatError>(HasSubstr("format imdb reads a folder")));
}

TEST(Imdb, ACacheOfAFolderNoticesItsFiles) {
  const ImdbFolder folder;
  const ScratchFolder cache;
  const CacheSource source{folder.path(), {}, {}, {}};
  EXPECT_EQ(open_or_build(source, cache / "c").set.size(), 3u);
  EXPECT_FALSE(open_or_build(source, cache / "c").built);
  write(folder.path() / "neg" / "11_3.txt", "bad");
  const CacheOutcome more = open_or_build(source, cache / "c");
  EXPECT_TRUE(more.built);
  EXPECT_EQ(more.set.size(), 4u);
  EXPECT_THAT(more.set.class_counts(), ElementsAre(2, 2));
}

TEST(Imdb, TheTableWithReviewAndSentimentIsKnown) {
  const auto examples = read_all("csv",
                                 "review,sentiment\n\"One of \"\"the\"\" best,\nin two lines\",positive\n"
                                 "short,negative\n");
  EXPECT_THAT(labels_of(examples), ElementsAre("positive", "negative"));
  EXPECT_EQ(examples[0].text, "One of \"the\" best,\nin two lines");
  EXPECT_EQ(read_all("csv", "text,label\nplain,0\n")[0].text, "plain");
}

TEST(Aan, PairsHaveFiveColumns) {
  const ScratchFolder folder;
  const auto file = folder / "new_aan_pairs.train.tsv";
  write(file, "1.0\tP05-1\tP06-2\tfirst \"text\tsecond\r\n0\ta\tb\t\t\n");
  EXPECT_EQ(recognise(file)->name, "aan");
  const auto pairs = read_path(file);
  EXPECT_THAT(labels_of(pairs), ElementsAre("1", "0"));
  EXPECT_EQ(pairs[0].content, Content::pair);
  EXPECT_EQ(pairs[0].text, "first \"text");
  EXPECT_EQ(pairs[0].second, "second");
  EXPECT_EQ(pairs[1].second, "");
  write(file, "1.0\ta\tb\tc\td\n1.0\ta\tb\tc\n0.0\ta\tb\tc\td\n");
  const auto reader = make_reader(file);
  Example example;
  EXPECT_TRUE(reader->next(example));
  EXPECT_THAT([&] { reader->next(example); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("new_aan_pairs.train.tsv:2: has 4 columns, expected 5"),
                                               HasSubstr("must become a space"))));
  EXPECT_TRUE(reader->next(example));
  EXPECT_EQ(example.label, "0");
  EXPECT_THAT(
      [] { read_all("aan", "1.0\ta\tb\tc\td\n0.0\ta\tb"); },
      ThrowsMessage<FormatError>(HasSubstr("file:2: has 3 columns of 5 and no line end: the file is cut short")));
  for (const std::string wrong : {"2.0", "0.5", "yes", "10", ""})
    EXPECT_THROW(read_all("aan", wrong + "\ta\tb\tc\td\n"), FormatError) << wrong;
}

}  // namespace
}  // namespace dba::data
