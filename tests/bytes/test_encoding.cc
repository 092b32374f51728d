#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dba/bytes/errors.h"
#include "dba/data/encoding.h"
#include "read_text.h"
#include "small_records.h"

/// From labels, texts and numbers to the symbols of a model.
namespace dba::data {
namespace {

using bytes::FormatError;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Encoding learn(const std::string& text, const TokeniserOptions& options) {
  return learn_encoding(*read_text("jsonl", text), options);
}

std::vector<std::int32_t> ids_of(const Tokeniser& tokeniser, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokeniser.encode_text(text, "here", ids);
  return ids;
}

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
  EXPECT_THAT(
      [&] { series.encode(example, "new:1", encoded); },
      ThrowsMessage<FormatError>(HasSubstr("new:1: the series has 3 channels, those of the training part 2; ")));
  example.values = {1, 2};
  example.channels = 2;
  series.encode(example, "new:1", encoded);
  EXPECT_EQ(encoded.label, -1);
  EXPECT_THAT(encoded.values, ElementsAre(1, 2));
  example.label = "7";
  EXPECT_THAT([&] { series.encode(example, "new:1", encoded); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("new:1: the label \"7\""), HasSubstr("\"0\", \"1\""))));
}

}  // namespace
}  // namespace dba::data
