#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
#include "read_text.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::ThrowsMessage;

// Three pictures of four pixels; the second one is black.
const char* const kPictures =
    "{\"pixels\":[0,7,0,255],\"label\":0}\n{\"pixels\":[0,0,0,0],\"label\":1}\n{\"pixels\":[1,2,3,4],\"label\":1}\n";

TokeniserOptions without_black() {
  TokeniserOptions options;
  options.scheme = Scheme::integer;
  options.integers = 256;
  options.cls = options.eos = true;
  options.leave_out = {0};
  return options;
}

template <class Symbols>
std::vector<std::pair<std::int32_t, std::int64_t>> tokens_of(const Tokeniser& tokeniser, const Symbols& symbols) {
  std::vector<std::pair<std::int32_t, std::int64_t>> tokens;
  each_token(tokeniser, symbols, [&](std::int32_t symbol, std::int64_t at) { tokens.emplace_back(symbol, at); });
  EXPECT_EQ(count_tokens(tokeniser, symbols), std::ssize(tokens));
  return tokens;
}

TEST(LeftOutSymbols, LeaveTheOthersInTheirPlaces) {
  const bytes::ScratchFolder folder;
  bytes::write(folder / "train.jsonl", kPictures);
  const CachedSet set = open_or_build({folder / "train.jsonl", {}, without_black(), {}}, folder / "cache").set;
  const Tokeniser& tokeniser = set.encoding().tokeniser;
  EXPECT_THAT(set.example(0).first, ElementsAre(256, 0, 7, 0, 255, 257));
  EXPECT_THAT(tokens_of(tokeniser, set.example(0).first),
              ElementsAre(Pair(256, 0), Pair(7, 2), Pair(255, 4), Pair(257, 5)));
  EXPECT_THAT(tokens_of(tokeniser, set.example(1).first), ElementsAre(Pair(256, 0), Pair(257, 5)));
  EXPECT_THAT(set.lengths(), ElementsAre(4, 2, 6));
  // Positions are learned for the whole.
  EXPECT_EQ(set.statistics().longest, 6u);
  EXPECT_EQ(set.statistics().mean_length, 4.0);
}

TEST(LeftOutSymbols, AreBytesOfTextsAndOfPairs) {
  const bytes::ScratchFolder folder;
  bytes::write(folder / "pairs.csv", "text1,text2,label\na b,  c,0\n  ,d,1\n");
  CacheSource source{folder / "pairs.csv", {}, {}, {}};
  source.tokeniser.leave_out = {' '};
  const CachedSet set = open_or_build(source, folder / "cache").set;
  const Tokeniser& tokeniser = set.encoding().tokeniser;
  EXPECT_THAT(tokens_of(tokeniser, set.example(0).first), ElementsAre(Pair('a' + 2, 0), Pair('b' + 2, 2)));
  EXPECT_THAT(tokens_of(tokeniser, set.example(0).second), ElementsAre(Pair('c' + 2, 2)));
  EXPECT_THAT(tokens_of(tokeniser, set.example(1).first), IsEmpty());
  EXPECT_THAT(set.lengths(), ElementsAre(3, 1));
}

TEST(LeftOutSymbols, ComeBackFromJsonAndFromACache) {
  const Tokeniser tokeniser(without_black());
  const Tokeniser again = Tokeniser::from_json(tokeniser.to_json(), "t");
  EXPECT_EQ(again.to_json(), tokeniser.to_json());
  EXPECT_TRUE(again.leaves_out(0));
  EXPECT_FALSE(again.leaves_out(1) || again.leaves_out(256) || again.leaves_out(257));
  // Files of models that leave out nothing stay readable where the option is not known.
  EXPECT_THAT(Tokeniser().to_json(), testing::Not(HasSubstr("leave_out")));
  EXPECT_FALSE(Tokeniser::from_json("{\"leave_out\":[]}", "t").leaves_any_out());

  const bytes::ScratchFolder folder;
  bytes::write(folder / "train.jsonl", kPictures);
  CacheSource source{folder / "train.jsonl", {}, without_black(), {}};
  EXPECT_TRUE(open_or_build(source, folder / "cache").built);
  EXPECT_FALSE(open_or_build(source, folder / "cache").built);
  source.tokeniser.leave_out = {0, 7};
  const CacheOutcome other = open_or_build(source, folder / "cache");
  EXPECT_TRUE(other.built);
  EXPECT_THAT(other.set.lengths(), ElementsAre(3, 2, 6));
  source.file = folder / "cache";
  EXPECT_FALSE(open_or_build(source, folder / "unused").built);
  source.tokeniser.leave_out.clear();
  EXPECT_THAT([&] { open_or_build(source, folder / "unused"); },
              ThrowsMessage<bytes::FormatError>(
                  AllOf(HasSubstr("was made with leave_out [0, 7], the options say []"), HasSubstr("dba data cache"))));
}

TEST(LeftOutSymbols, MustBeSymbols) {
  TokeniserOptions options = without_black();
  options.leave_out = {0, 256};
  EXPECT_THAT([&] { Tokeniser{options}; }, ThrowsMessage<std::invalid_argument>(AllOf(
                                               HasSubstr("leave_out"), HasSubstr("below 256"), HasSubstr("got 256"))));
  // The numbers of the training part are known only after it was read.
  options.integers = 0;
  EXPECT_THAT([&] { learn_encoding(*read_text("jsonl", kPictures), options); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("below 256")));
  options.leave_out = {255};
  EXPECT_TRUE(learn_encoding(*read_text("jsonl", kPictures), options).tokeniser.leaves_out(255));
  options.leave_out = {-1};
  EXPECT_THROW(Tokeniser{options}, std::invalid_argument);
  options.scheme = Scheme::whitespace;
  EXPECT_THAT([&] { Tokeniser{options}; }, ThrowsMessage<std::invalid_argument>(HasSubstr("words")));
  options.scheme = Scheme::byte;
  options.leave_out = {0};
  const char* const series = "{\"series\":[[1],[2]],\"label\":0}\n{\"series\":[[6]],\"label\":1}\n";
  EXPECT_THAT(
      [&] { learn_encoding(*read_text("jsonl", series), options); },
      ThrowsMessage<bytes::FormatError>(AllOf(HasSubstr("file:1"), HasSubstr("series"), HasSubstr("leave_out"))));
  EXPECT_THROW(Tokeniser::from_json("{\"leave_out\":[0", "t"), bytes::FormatError);
}

}  // namespace
}  // namespace dba::data
