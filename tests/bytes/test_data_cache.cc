#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>

#include "allocation_watch.h"
#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
#include "scratch_folder.h"
#include "small_records.h"

namespace dba::data {
namespace {

using bytes::contents;
using bytes::FormatError;
using bytes::ScratchFolder;
using bytes::write;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

TEST(Cache, TokensComeBack) {
  const ScratchFolder folder;
  write(folder / "train.jsonl", kWords);
  CacheSource source{folder / "train.jsonl", {}, {}, {}};
  source.tokeniser.scheme = Scheme::whitespace;
  source.tokeniser.max_length = 3;
  const CacheOutcome outcome = open_or_build(source, folder / "cache");
  EXPECT_TRUE(outcome.built);
  EXPECT_EQ(outcome.reason, "there was no cache");
  const CachedSet& set = outcome.set;
  ASSERT_EQ(set.size(), 3u);
  EXPECT_THAT(set.example(0).first, ElementsAre(4, 3, 5));
  EXPECT_THAT(set.example(1).first, ElementsAre(3, 4, 6));
  EXPECT_THAT(set.example(2).first, IsEmpty());
  EXPECT_EQ(set.example(1).label, 1);
  EXPECT_THAT(set.lengths(), ElementsAre(3, 3, 0));
  EXPECT_THAT(set.labels(), ElementsAre(0, 1, 0));
  EXPECT_THAT(set.class_counts(), ElementsAre(2, 1));
  EXPECT_EQ(set.statistics().longest, 3u);
  EXPECT_DOUBLE_EQ(set.statistics().mean_length, 2.0);
  EXPECT_EQ(set.statistics().cut, 1u);
  EXPECT_EQ(set.statistics().empty, 1u);
  EXPECT_EQ(set.kind(), Kind::tokens);

  write(folder / "val.jsonl", "{\"text\":\"d new\",\"label\":\"y\"}\n{\"text\":\"a\"}\n");
  CacheSource validation{folder / "val.jsonl", {}, {}, set.encoding()};
  validation.reader.labels = LabelUse::optional;
  const CachedSet other = open_or_build(validation, folder / "cache-val").set;
  EXPECT_THAT(other.example(0).first, ElementsAre(6, 2));
  EXPECT_THAT(other.labels(), ElementsAre(1, -1));
  EXPECT_EQ(other.statistics().unlabelled, 1u);
  write(folder / "val.jsonl", "{\"text\":\"d\",\"label\":\"y\"}\n{\"text\":\"a\",\"label\":\"z\"}\n");
  EXPECT_THAT([&] { open_or_build(validation, folder / "cache-val"); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("val.jsonl:2: the label \"z\""), HasSubstr("\"x\", \"y\""))));
}

TEST(Cache, TheDigestIsOfTheDataAndNotOfWhereTheyLie) {
  const ScratchFolder folder;
  const auto digest_of = [&](const std::string& name, const std::string& text) {
    write(folder / (name + ".jsonl"), text);
    CacheSource source{folder / (name + ".jsonl"), {}, {}, {}};
    source.tokeniser.scheme = Scheme::whitespace;
    return open_or_build(source, folder / (name + ".cache")).set.digest();
  };
  const auto record = [](const char* text, const char* label) {
    return std::string(R"({"text":")") + text + R"(","label":")" + label + "\"}\n";
  };
  const std::string data = record("a b", "x") + record("b", "y");
  const std::string digest = digest_of("one", data);
  EXPECT_EQ(digest.size(), 16u);
  EXPECT_EQ(digest_of("two", data), digest);
  const CacheSource ready{folder / "one.cache", {}, {}, CachedSet::open(folder / "one.cache").encoding()};
  EXPECT_EQ(open_or_build(ready, folder / "unused").set.digest(), digest) << "a cache that was made elsewhere";
  EXPECT_NE(digest_of("symbol", record("a b", "x") + record("a", "y")), digest);
  EXPECT_NE(digest_of("length", record("a", "x") + record("b b", "y")), digest);
  EXPECT_NE(digest_of("label", record("a b", "y") + record("b", "x")), digest);
  EXPECT_NE(digest_of("words", record("c b", "x") + record("b", "y")), digest);
  EXPECT_NE(digest_of("classes", record("a b", "x") + record("b", "z")), digest);
}

TEST(Cache, PairsComeBack) {
  const ScratchFolder folder;
  write(folder / "pairs.csv", "text1,text2,label\nAB,C,0\n,DEFG,1\n");
  CacheSource source{folder / "pairs.csv", {}, {}, {}};
  source.tokeniser.max_length = 3;
  const CachedSet set = open_or_build(source, folder / "cache").set;
  EXPECT_EQ(set.kind(), Kind::pairs);
  EXPECT_THAT(set.example(0).first, ElementsAre(67, 68));
  EXPECT_THAT(set.example(0).second, ElementsAre(69));
  EXPECT_THAT(set.example(1).first, IsEmpty());
  EXPECT_THAT(set.example(1).second, ElementsAre(70, 71, 72));
  EXPECT_THAT(set.lengths(), ElementsAre(3, 3));
  EXPECT_EQ(set.statistics().cut, 1u);
  EXPECT_EQ(set.statistics().empty, 1u);
}

TEST(Cache, SymbolsTakeAsFewBytesAsTheVocabularyAllows) {
  const ScratchFolder folder;
  TokeniserOptions options;
  options.scheme = Scheme::integer;
  options.cls = options.eos = true;
  const auto size_with = [&](std::size_t integers) {
    options.integers = integers;
    std::string text;
    const std::int32_t last = static_cast<std::int32_t>(integers) - 1;
    for (const char* const label : {"0", "1"}) {
      text += "{\"tokens\":[" + std::to_string(last);
      for (int i = 0; i < 799; ++i)
        text += ",7";
      text += std::string("],\"label\":") + label + "}\n";
    }
    write(folder / "train.jsonl", text);
    const CachedSet set = open_or_build({folder / "train.jsonl", {}, options, {}}, folder / "cache").set;
    const SymbolSpan symbols = set.example(1).first;
    EXPECT_EQ(symbols.size(), 802u);
    EXPECT_THAT((std::vector<std::int32_t>{symbols[0], symbols[1], symbols[2], symbols[800], symbols[801]}),
                ElementsAre(last + 1, last, 7, 7, last + 2));
    std::vector<std::int64_t> copied(802);
    EXPECT_EQ(symbols.copy(copied.data()), copied.data() + copied.size());
    EXPECT_TRUE(std::ranges::equal(copied, std::vector<std::int64_t>(symbols.begin(), symbols.end())));
    return std::filesystem::file_size(folder / "cache");
  };
  const auto one = size_with(256);
  const auto two = size_with(65'536);
  const auto four = size_with(65'537);
  EXPECT_NEAR(static_cast<double>(two - one), 1600.0, 8.0);
  EXPECT_NEAR(static_cast<double>(four - two), 3200.0, 8.0);
}

TEST(Cache, EmptySequencesKeepTheirClsAndEos) {
  const ScratchFolder folder;
  write(folder / "pairs.csv", "text1,text2,label\nAB,,0\n,D,1\n");
  CacheSource source{folder / "pairs.csv", {}, {}, {}};
  source.tokeniser.cls = source.tokeniser.eos = true;
  const CachedSet set = open_or_build(source, folder / "cache").set;
  EXPECT_THAT(set.example(0).first, ElementsAre(0, 67, 68, 1));
  EXPECT_THAT(set.example(0).second, ElementsAre(0, 1));
  EXPECT_THAT(set.example(1).first, ElementsAre(0, 1));
  EXPECT_THAT(set.example(1).second, ElementsAre(0, 70, 1));
  EXPECT_THAT(set.lengths(), ElementsAre(6, 5));
  EXPECT_EQ(set.statistics().empty, 2u);
}

TEST(Cache, SeriesCarryTheStatisticsOfTheirChannels) {
  const ScratchFolder folder;
  write(folder / "train.jsonl", kSeries);
  const CachedSet set = open_or_build({folder / "train.jsonl", {}, {}, {}}, folder / "cache").set;
  EXPECT_THAT(set.example(0).values, ElementsAre(1, 10, 2, 20, 3, 30));
  EXPECT_THAT(set.example(1).values, ElementsAre(6, 20));
  EXPECT_THAT(set.lengths(), ElementsAre(3, 1));
  EXPECT_EQ(set.statistics().repairs.missing_values, 1u);
  EXPECT_EQ(set.statistics().repairs.series, 1u);
  // 1, 2, 3, 6 and 10, 20, 30, 20: squared differences 14 and 200, three degrees of freedom.
  EXPECT_THAT(set.channel_statistics().mean, ElementsAre(3.0, 20.0));
  EXPECT_THAT(set.channel_statistics().deviation, ElementsAre(testing::DoubleNear(std::sqrt(14.0 / 3), 1e-14),
                                                              testing::DoubleNear(std::sqrt(200.0 / 3), 1e-14)));
}

TEST(Cache, AChannelWithoutAValueInASeriesCountsForNothing) {
  const ScratchFolder folder;
  write(folder / "train.jsonl",
        "{\"series\":[[1000,null,null],[1002,null,1]],\"label\":0}\n{\"series\":[[null,null,5]],\"label\":1}\n");
  const CachedSet set = open_or_build({folder / "train.jsonl", {}, {}, {}}, folder / "cache").set;
  EXPECT_EQ(set.statistics().repairs.empty_channels, 3u);
  EXPECT_TRUE(std::isnan(set.example(1).values[0]));
  EXPECT_THAT(set.channel_statistics().mean, ElementsAre(1001.0, 0.0, testing::DoubleNear(7.0 / 3, 1e-14)));
  EXPECT_DOUBLE_EQ(set.channel_statistics().deviation[0], std::sqrt(2.0));
  EXPECT_THAT(set.channel_statistics().constant(), ElementsAre(2));
}

TEST(Cache, IsBuiltAnewWhenSourceOrOptionsChangeAndOnlyThen) {
  const ScratchFolder folder;
  write(folder / "train.jsonl", kWords);
  CacheSource source{folder / "train.jsonl", {}, {}, {}};
  EXPECT_TRUE(open_or_build(source, folder / "cache").built);
  EXPECT_FALSE(open_or_build(source, folder / "cache").built);
  source.tokeniser.eos = true;
  const CacheOutcome changed_option = open_or_build(source, folder / "cache");
  EXPECT_TRUE(changed_option.built);
  EXPECT_EQ(changed_option.reason, "the source or an option changed");
  source.reader.quotes = false;
  EXPECT_TRUE(open_or_build(source, folder / "cache").built);
  EXPECT_FALSE(open_or_build(source, folder / "cache").built);

  // Same size, another time of change.
  std::string text = kWords;
  text.replace(text.find("b a c"), 5, "q q q");
  write(folder / "train.jsonl", text);
  const std::array<timespec, 2> times = {{{0, UTIME_OMIT}, {1'700'000'000, 5}}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder / "train.jsonl").c_str(), times.data(), 0), 0);
  const CacheOutcome changed_source = open_or_build(source, folder / "cache");
  EXPECT_TRUE(changed_source.built);
  EXPECT_EQ(changed_source.set.example(0).first[0], 'q' + 2);

  Encoding encoding = changed_source.set.encoding();
  source.encoding = encoding;
  EXPECT_TRUE(open_or_build(source, folder / "cache").built);
  EXPECT_FALSE(open_or_build(source, folder / "cache").built);
  encoding.labels = LabelSet({"x", "y", "z"});
  source.encoding = encoding;
  EXPECT_TRUE(open_or_build(source, folder / "cache").built);
}

TEST(Cache, DamageIsNoticedAndRepaired) {
  const ScratchFolder folder;
  write(folder / "train.jsonl", kWords);
  const CacheSource source{folder / "train.jsonl", {}, {}, {}};
  open_or_build(source, folder / "cache");
  const std::string sound = contents(folder / "cache");
  for (std::size_t i = 0; i < sound.size(); ++i) {
    std::string damaged = sound;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    write(folder / "cache", damaged);
    EXPECT_THROW(CachedSet::open(folder / "cache"), FormatError) << "byte " << i;
    write(folder / "cache", sound.substr(0, i));
    EXPECT_THROW(CachedSet::open(folder / "cache"), FormatError) << "first " << i << " bytes";
  }
  const CacheOutcome outcome = open_or_build(source, folder / "cache");
  EXPECT_TRUE(outcome.built);
  EXPECT_THAT(outcome.reason, HasSubstr("damaged: "));
  EXPECT_EQ(contents(folder / "cache"), sound);
}

TEST(Cache, FailuresLeaveNoCacheBehind) {
  const ScratchFolder folder;
  write(folder / "train.jsonl", std::string(kWords) + "{broken");
  CacheSource source{folder / "train.jsonl", {}, {}, {}};
  EXPECT_THAT([&] { open_or_build(source, folder / "cache"); },
              ThrowsMessage<FormatError>(HasSubstr("train.jsonl:4: ")));
  EXPECT_FALSE(std::filesystem::exists(folder / "cache"));
  source.file = folder / "missing.jsonl";
  EXPECT_THROW(open_or_build(source, folder / "cache"), bytes::FileError);
  source.file = folder.path();
  EXPECT_THAT([&] { open_or_build(source, folder / "cache"); },
              ThrowsMessage<FormatError>(HasSubstr("is a folder of data files, which are named one by one")));
}

TEST(Cache, LargeSourcesStreamThroughSmallMemory) {
  const ScratchFolder folder;
  constexpr std::size_t kExamples = 4000;
  {
    std::ofstream file(folder / "train.jsonl", std::ios::binary);
    for (std::size_t i = 0; i < kExamples; ++i)
      file << "{\"text\":\"" << std::string(8000, static_cast<char>('a' + i % 26)) << "\",\"label\":" << i % 2 << "}\n";
  }
  bytes::largest_allocation = 0;
  const CachedSet set = open_or_build({folder / "train.jsonl", {}, {}, {}}, folder / "cache").set;
  // 32 MB of text and as much of symbols; the write buffer is the largest piece.
  EXPECT_LE(bytes::largest_allocation.load(), std::size_t{1} << 20);
  EXPECT_EQ(set.size(), kExamples);
  EXPECT_EQ(set.example(kExamples - 1).first.size(), 8000u);
  EXPECT_EQ(set.example(27).first[7999], 'b' + 2);
}

}  // namespace
}  // namespace dba::data
