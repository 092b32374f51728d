#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>

#include "allocation_watch.h"
#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
#include "dba/data/split.h"
#include "read_text.h"
#include "scratch_folder.h"

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

Encoding learn(const std::string& text, const TokeniserOptions& options) {
  return learn_encoding(*read_text("jsonl", text), options);
}

std::vector<std::int32_t> ids_of(const Tokeniser& tokeniser, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokeniser.encode_text(text, "here", ids);
  return ids;
}

const char* const kWords =
    "{\"text\":\"b a c a\",\"label\":\"x\"}\n{\"text\":\"a b d\",\"label\":\"y\"}\n{\"text\":\"\",\"label\":\"x\"}\n";
const char* const kSeries = "{\"series\":[[1,10],[2,null],[3,30]],\"label\":0}\n{\"series\":[[6,20]],\"label\":1}\n";

TEST(LabelSet, NumbersByValueWhereAllAreIntegersOtherwiseByBytes) {
  EXPECT_THAT(LabelSet({"10", "9", "-1", "9"}).names(), ElementsAre("-1", "9", "10"));
  EXPECT_THAT(LabelSet({"10", "9", "b"}).names(), ElementsAre("10", "9", "b"));
  EXPECT_THAT(LabelSet({"1", "01"}).names(), ElementsAre("01", "1"));
  const LabelSet odd({"\xff", "a\"b", ""});
  EXPECT_EQ(LabelSet::from_json(odd.to_json(), "memory"), odd);
  EXPECT_EQ(odd.number_of("a\"b", "here"), 1);
  EXPECT_THAT([&] { odd.number_of("c", "data.csv:12"); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("data.csv:12: the label \"c\""), HasSubstr("\"a\\\"b\""))));
  EXPECT_THROW(LabelSet::from_json("[\"b\",\"a\"]", "memory"), FormatError);
  EXPECT_THROW(LabelSet::from_json("[\"a\",\"a\"]", "memory"), FormatError);
  EXPECT_THROW(LabelSet::from_json("{}", "memory"), FormatError);
}

TEST(Tokeniser, BytesLeaveRoomForTheSpecialSymbols) {
  TokeniserOptions options;
  EXPECT_THAT(ids_of(Tokeniser(options), std::string_view("\0A\xff", 3)), ElementsAre(2, 67, 257));
  EXPECT_EQ(Tokeniser(options).vocabulary_size(), 258u);
  options.cls = options.eos = true;
  EXPECT_THAT(ids_of(Tokeniser(options), ""), ElementsAre(0, 1));
  options.max_length = 4;
  EXPECT_THAT(ids_of(Tokeniser(options), "ABC"), ElementsAre(0, 67, 68, 1));
  EXPECT_THAT(ids_of(Tokeniser(options), "AB"), ElementsAre(0, 67, 68, 1));
  options.too_long = TooLong::refuse;
  EXPECT_THAT([&] { ids_of(Tokeniser(options), "ABC"); },
              ThrowsMessage<FormatError>(HasSubstr("here: a sequence of 5 symbols, more than max_length 4")));
  EXPECT_EQ(Tokeniser(options).symbol(67), "A");
  options.max_length = 2;
  EXPECT_THROW(Tokeniser{options}, std::invalid_argument);
}

TEST(Tokeniser, WordsAreNumberedByCount) {
  TokeniserOptions options;
  options.scheme = Scheme::whitespace;
  const Tokeniser all = learn(kWords, options).tokeniser;
  EXPECT_THAT(all.vocabulary().words(), ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(all.vocabulary_size(), 7u);
  EXPECT_THAT(ids_of(all, " d\ta zzz\n"), ElementsAre(6, 3, 2));
  options.min_count = 2;
  EXPECT_THAT(learn(kWords, options).tokeniser.vocabulary().words(), ElementsAre("a", "b"));
  options.max_words = 1;
  options.eos = true;
  const Tokeniser one = learn(kWords, options).tokeniser;
  EXPECT_THAT(ids_of(one, "a b"), ElementsAre(3, 2, 1));
  EXPECT_EQ(one.symbol(2), "<unk>");
  EXPECT_EQ(one.symbol(3), "a");
}

TEST(Tokeniser, IntegersStayAsTheyAre) {
  const std::string text = "{\"tokens\":[5,0,9],\"label\":0}\n{\"tokens\":[],\"label\":1}\n";
  TokeniserOptions options;
  options.scheme = Scheme::integer;
  EXPECT_EQ(learn(text, options).tokeniser.vocabulary_size(), 10u);
  options.cls = options.eos = true;
  const Tokeniser tokeniser = learn(text, options).tokeniser;
  EXPECT_EQ(tokeniser.vocabulary_size(), 12u);
  EXPECT_THAT(ids_of(tokeniser, "3 9"), ElementsAre(10, 3, 9, 11));
  EXPECT_THAT([&] { ids_of(tokeniser, "10"); }, ThrowsMessage<FormatError>(HasSubstr("the number 10 is not below 10")));
  EXPECT_THAT([&] { ids_of(tokeniser, "1 x"); }, ThrowsMessage<FormatError>(HasSubstr("\"x\" is no integer")));
  options.integers = 256;
  EXPECT_EQ(learn(text, options).tokeniser.vocabulary_size(), 258u);
  options.scheme = Scheme::byte;
  EXPECT_THAT([&] { learn(text, options); },
              ThrowsMessage<FormatError>(HasSubstr("file:1: holds integers, which scheme byte cannot read")));
}

TEST(Encoding, ComesBackFromJson) {
  TokeniserOptions options;
  options.scheme = Scheme::whitespace;
  options.cls = true;
  options.max_length = 3;
  const Encoding encoding =
      learn("{\"text\":\"\xff \\\" é\",\"label\":\"\xfe\"}\n{\"text\":\"\",\"label\":2}\n", options);
  const Encoding again = Encoding::from_json(encoding.to_json(), "memory");
  EXPECT_EQ(again.to_json(), encoding.to_json());
  EXPECT_EQ(again.labels, encoding.labels);
  EXPECT_EQ(again.tokeniser.vocabulary(), encoding.tokeniser.vocabulary());
  EXPECT_EQ(Vocabulary::from_json(encoding.tokeniser.vocabulary().to_json(), "v"), encoding.tokeniser.vocabulary());
  EXPECT_EQ(Tokeniser::from_json(encoding.tokeniser.to_json(), "t").to_json(), encoding.tokeniser.to_json());
  EXPECT_THAT([] { Encoding::from_json("{\"kind\":\"tokens\"}", "model/encoding.json"); },
              ThrowsMessage<FormatError>("model/encoding.json: encoding: has no channels"));
  EXPECT_THROW(Tokeniser::from_json("{\"integers\":4294967296}", "t"), FormatError);
  EXPECT_THROW(Vocabulary::from_json("[\"a\",\"a\"]", "v"), FormatError);
}

TEST(Encoding, WhatDoesNotFitTheTrainingPartIsRefused) {
  EXPECT_THAT(
      [] { learn("{\"text\":\"a\",\"label\":0}\n{\"text\":\"b\",\"label\":0}\n", {}); },
      ThrowsMessage<FormatError>("file: all 2 examples have the label \"0\"; a classifier needs at least two classes"));
  const Encoding series = learn(kSeries, {});
  Example example;
  Encoded encoded;
  example.text = "a";
  EXPECT_THAT([&] { series.encode(example, "new:1", encoded); },
              ThrowsMessage<FormatError>("new:1: holds text, but the training part is of kind series"));
  example.content = Content::series;
  example.values = {1, 2, 3};
  example.channels = 3;
  EXPECT_THAT([&] { series.encode(example, "new:1", encoded); },
              ThrowsMessage<FormatError>("new:1: the series has 3 channels, those of the training part 2"));
  example.values = {1, 2};
  example.channels = 2;
  series.encode(example, "new:1", encoded);
  EXPECT_EQ(encoded.label, -1);
  EXPECT_THAT(encoded.values, ElementsAre(1, 2));
  example.label = "7";
  EXPECT_THAT([&] { series.encode(example, "new:1", encoded); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("new:1: the label \"7\""), HasSubstr("\"0\", \"1\""))));
}

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
              ThrowsMessage<FormatError>(HasSubstr("is a folder of no known layout")));
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

TEST(HoldOut, IsStratifiedAndReproducible) {
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 1000; ++i)
    labels.push_back(i % 10 == 0 ? 2 : i % 2);
  labels.push_back(5);  // a class of one
  labels.insert(labels.end(), 2, 7);
  const Split split = hold_out(labels, 0.1, 3);
  std::map<std::int32_t, int> held;
  for (const std::size_t i : split.held_out)
    ++held[labels[i]];
  EXPECT_EQ(held, (std::map<std::int32_t, int>{{0, 40}, {1, 50}, {2, 10}, {7, 1}}));
  EXPECT_TRUE(std::ranges::is_sorted(split.held_out));
  std::vector<std::size_t> all = split.kept;
  all.insert(all.end(), split.held_out.begin(), split.held_out.end());
  std::ranges::sort(all);
  std::vector<std::size_t> expected(labels.size());
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  EXPECT_EQ(all, expected);
  EXPECT_EQ(hold_out(labels, 0.1, 3).held_out, split.held_out);
  EXPECT_NE(hold_out(labels, 0.1, 4).held_out, split.held_out);
}

TEST(HoldOut, RemaindersBringTheTotalNearTheFraction) {
  const std::vector<std::int32_t> labels = {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2};
  // Shares 1.75, 1.75, 1.5 of 5.
  const Split split = hold_out(labels, 0.25, 0);
  EXPECT_EQ(split.held_out.size(), 5u);
  const std::vector<std::int32_t> two = {0, 0, 1, 1};
  EXPECT_EQ(hold_out(two, 0.99, 0).kept.size(), 2u);
  EXPECT_EQ(hold_out(two, 0.01, 0).held_out.size(), 2u);
  EXPECT_THAT(hold_out({}, 0.5, 0).kept, IsEmpty());
  EXPECT_THROW(hold_out(two, 0.0, 0), std::invalid_argument);
  EXPECT_THROW(hold_out(two, 1.0, 0), std::invalid_argument);
  EXPECT_THROW(hold_out(std::vector<std::int32_t>{0, -1}, 0.5, 0), std::invalid_argument);
}

}  // namespace
}  // namespace dba::data
