#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <map>
#include <set>

#include "dba/bytes/errors.h"
#include "dba/data/formats.h"
#include "dba/data/listops.h"
#include "dba/data/random.h"
#include "dba/data/tokeniser.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::contents;
using bytes::FormatError;
using bytes::ScratchFolder;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::array kFiles = {"basic_train.tsv", "basic_val.tsv", "basic_test.tsv"};

ListOpsOptions small_set() {
  ListOpsOptions options;
  options.seed = 7;
  options.min_length = 20;
  options.max_length = 60;
  options.max_depth = 5;
  options.max_args = 4;
  options.train = 3000;
  options.validation = 200;
  options.test = 100;
  return options;
}

TEST(ListOpsValue, OperatorsFollowLongRangeArena) {
  EXPECT_EQ(evaluate_listops("7"), 7);
  EXPECT_EQ(evaluate_listops("[MIN 4 2 9 ]"), 2);
  EXPECT_EQ(evaluate_listops("[MAX 4 2 9 ]"), 9);
  EXPECT_EQ(evaluate_listops("[MED 9 1 5 ]"), 5);
  EXPECT_EQ(evaluate_listops("[MED 1 4 ]"), 2);      // 2.5, rounded down
  EXPECT_EQ(evaluate_listops("[MED 8 3 9 0 ]"), 5);  // 5.5
  EXPECT_EQ(evaluate_listops("[SM 9 8 7 ]"), 4);
  EXPECT_EQ(evaluate_listops("[SM 5 5 ]"), 0);
  EXPECT_EQ(evaluate_listops("( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )"), 9);
  EXPECT_EQ(evaluate_listops("[MAX 2 9 [MIN 4 7 ] 0 ]"), 9);
  EXPECT_EQ(evaluate_listops("[MIN 8 [MAX 3 [SM 6 7 ] ] [MED 9 5 5 ] ]"), 3);
}

TEST(ListOpsValue, BrokenExpressionsAreRefused) {
  for (const char* const text :
       {"", "()", "[MIN ]", "[MIN 1", "1 2", "]", "[AVG 1 2 ]", "[MIN 12 ]", "[MIN 1 ] ]", "[MIN -1 ]"})
    EXPECT_THROW(evaluate_listops(text), FormatError) << text;
  std::string deep;
  for (int i = 0; i < 200'000; ++i)
    deep += "[MAX 1 ";
  EXPECT_THROW(evaluate_listops(deep), FormatError);
}

TEST(ListOpsGenerator, FilesAreTheSameWhateverTheNumberOfThreads) {
  const ScratchFolder one;
  const ScratchFolder three;
  const ScratchFolder other_seed;
  ListOpsOptions options = small_set();
  options.threads = 1;
  generate_listops(one.path(), options);
  options.threads = 3;
  generate_listops(three.path(), options);
  options.seed = 8;
  generate_listops(other_seed.path(), options);
  for (const char* const name : kFiles) {
    EXPECT_EQ(contents(one / name), contents(three / name)) << name;
    EXPECT_NE(contents(one / name), contents(other_seed / name)) << name;
  }
}

TEST(ListOpsGenerator, ReaderGivesBackExpressionsWithinBoundsAndNoneTwice) {
  const ScratchFolder folder;
  const ListOpsOptions options = small_set();
  std::size_t last = 0;
  generate_listops(folder.path(), options, [&](std::size_t done, std::size_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 3300u);
    last = done;
  });
  EXPECT_EQ(last, 3300u);
  std::set<std::string> expressions;
  std::set<std::string> tokens;
  std::map<std::string, std::size_t> classes;
  const std::array<std::size_t, 3> counts = {options.train, options.validation, options.test};
  for (std::size_t file = 0; file < kFiles.size(); ++file) {
    const auto reader = make_reader(folder / kFiles[file]);
    Example example;
    while (reader->next(example)) {
      EXPECT_TRUE(expressions.insert(example.text).second) << "twice: " << example.text;
      EXPECT_EQ(std::to_string(evaluate_listops(example.text)), example.label);
      ++classes[*example.label];
      std::size_t length = 0;
      std::size_t depth = 0;
      std::size_t deepest = 0;
      std::vector<std::size_t> arguments = {0};
      std::string_view rest = example.text;
      for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
        ++length;
        tokens.emplace(word);
        if (word == "]") {
          EXPECT_GE(arguments.back(), 2u);
          EXPECT_LE(arguments.back(), options.max_args);
          arguments.pop_back();
          --depth;
        } else {
          ++arguments.back();
          deepest = std::max(deepest, depth + 1);
          if (word.starts_with('[')) {
            arguments.push_back(0);
            ++depth;
          }
        }
      }
      EXPECT_GT(length, options.min_length);
      EXPECT_LT(length, options.max_length);
      EXPECT_LE(deepest, options.max_depth);
    }
    EXPECT_EQ(reader->count(), counts[file]);
  }
  EXPECT_EQ(tokens.size(), 15u);
  EXPECT_EQ(classes.size(), 10u);
}

TEST(ListOpsGenerator, SpellingIsABinaryTreeAndNoneComesTwice) {
  const ScratchFolder folder;
  ListOpsOptions options = small_set();
  options.min_length = 3;
  options.max_length = 5;  // one operator of two digits: 400 expressions
  options.max_depth = 2;
  options.train = 300;
  options.validation = 0;
  options.test = 1;
  generate_listops(folder.path(), options);
  std::ifstream file(folder / "basic_train.tsv", std::ios::binary);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "Source\tTarget\r");
  std::set<std::string> rows;
  while (std::getline(file, line)) {
    EXPECT_THAT(line, testing::MatchesRegex("\\( \\( \\( \\[(MIN|MAX|MED|SM) [0-9] \\) [0-9] \\) \\] \\)\t[0-9]\r"));
    EXPECT_TRUE(rows.insert(line).second) << line;
  }
  EXPECT_EQ(rows.size(), options.train);
  EXPECT_EQ(contents(folder / "basic_val.tsv"), "Source\tTarget\r\n");
}

TEST(ListOpsGenerator, ValuesBoundTheDigits) {
  const ScratchFolder folder;
  ListOpsOptions options = small_set();
  options.values = 3;
  options.train = 50;
  options.validation = options.test = 1;
  generate_listops(folder.path(), options);
  const auto reader = make_reader(folder / "basic_train.tsv");
  Example example;
  while (reader->next(example))
    EXPECT_EQ(example.text.find_first_of("3456789"), std::string::npos) << example.text;
}

TEST(ListOpsGenerator, ImpossibleOptionsEndInASentence) {
  const ScratchFolder folder;
  ListOpsOptions options = small_set();
  options.min_length = 3;
  options.max_length = 5;
  options.max_depth = 2;
  options.values = 2;
  options.max_args = 2;  // 4 operators, 2 × 2 digits: 16 expressions
  options.train = 10;
  options.validation = 6;
  options.test = 1;
  EXPECT_THAT([&] { generate_listops(folder.path(), options); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("gave no new expression")));
  EXPECT_TRUE(std::filesystem::exists(folder / "basic_val.tsv"));
  EXPECT_FALSE(std::filesystem::exists(folder / "basic_test.tsv"));
  options.max_args = 1;
  EXPECT_THAT([&] { generate_listops(folder.path(), options); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("max_args: expected 2 to 100, got 1")));
  EXPECT_THROW(generate_listops(folder / "missing", small_set()), bytes::FileError);
}

TEST(CounterRandom, DrawsAreFixedAndUniform) {
  CounterRandom random(1, 2);
  const std::uint64_t first = random.next();
  EXPECT_EQ(CounterRandom(1, 2).next(), first);
  EXPECT_NE(CounterRandom(1, 3).next(), first);
  EXPECT_NE(CounterRandom(2, 1).next(), first);
  // The numbers themselves must never change: data sets and splits hang on them.
  EXPECT_EQ(CounterRandom(0).next(), 17752355083829084751u);
  EXPECT_EQ(first, 12946100963197439482u);
  constexpr int kDraws = 70'000;
  std::array<int, 7> counts{};
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[random.below(7)];
    sum += random.uniform();
  }
  for (const int count : counts)
    EXPECT_NEAR(count, kDraws / 7, 400);  // four standard deviations are 370
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
}

}  // namespace
}  // namespace dba::data
