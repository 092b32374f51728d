#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dba/bytes/errors.h"
#include "dba/data/json_text.h"
#include "dba/data/tokeniser.h"
#include "read_text.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::FormatError;
using bytes::ScratchFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::NanSensitiveFloatEq;
using testing::ThrowsMessage;

TEST(Jsonl, EveryContentIsRead) {
  const auto text = read_all("jsonl", R"({"text": "a\tbé\u00e9\ud83d\ude00", "label": "x"})");
  ASSERT_EQ(text.size(), 1u);
  EXPECT_EQ(text[0].content, Content::text);
  EXPECT_EQ(text[0].text, "a\tb\xc3\xa9\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(text[0].label, "x");

  const auto pair = read_all("jsonl", R"({"label": 3, "text2": "b", "text1": "a"})");
  EXPECT_EQ(pair[0].content, Content::pair);
  EXPECT_EQ(pair[0].text, "a");
  EXPECT_EQ(pair[0].second, "b");
  EXPECT_EQ(pair[0].label, "3");

  const auto tokens = read_all("jsonl", R"({"tokens": [0, 7, 2147483647], "label": true})");
  EXPECT_EQ(tokens[0].content, Content::integers);
  EXPECT_THAT(tokens[0].integers, ElementsAre(0, 7, 2147483647));
  EXPECT_EQ(tokens[0].label, "true");

  const auto words = read_all("jsonl", R"({"tokens": ["[MAX", "2", "]"], "label": -1.50})");
  EXPECT_EQ(words[0].content, Content::text);
  EXPECT_EQ(words[0].text, "[MAX 2 ]");
  EXPECT_EQ(words[0].label, "-1.50");

  const auto flat = read_all("jsonl", R"({"series": [1, -2.5, 3e-2], "label": "x"})");
  EXPECT_EQ(flat[0].channels, 1u);
  EXPECT_THAT(flat[0].values, ElementsAre(1.0f, -2.5f, 0.03f));

  const auto nested = read_all("jsonl", R"({"series": [[1, 2], [3, 4], [5, 6]], "label": "x"})");
  EXPECT_EQ(nested[0].content, Content::series);
  EXPECT_EQ(nested[0].channels, 2u);
  EXPECT_THAT(nested[0].values, ElementsAre(1, 2, 3, 4, 5, 6));

  EXPECT_THAT(read_all("jsonl", R"({"pixels": [0, 255, 7], "label": 0})")[0].integers, ElementsAre(0, 255, 7));
  EXPECT_THAT(read_all("jsonl", R"({"pixels": [[[1, 2]], [[3, 4]]], "label": 0})")[0].integers,
              ElementsAre(1, 2, 3, 4));
}

TEST(Jsonl, BlankLinesLineEndsByteOrderMarkAndOtherKeysAreNoMatter) {
  const auto examples =
      read_all("jsonl",
               "\xef\xbb\xbf{\"text\":\"a\",\"label\":\"0\",\"id\":{\"n\":[1,{\"k\":[]},null,NaN]}}\r\n"
               "\r\n  \n{\"text\":\"b\",\"label\":\"1\"}");
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].text, "a");
  EXPECT_EQ(examples[1].text, "b");
}

TEST(Jsonl, BytesAreBytes) {
  const auto raw = read_all("jsonl", "{\"text\":\"a\xff\xc3(\",\"label\":\"\x80\"}");
  EXPECT_EQ(raw[0].text, "a\xff\xc3(");
  EXPECT_EQ(raw[0].label, "\x80");
  EXPECT_EQ(read_all("jsonl", R"({"text":"\udcff\u0000\udc80","label":0})")[0].text, std::string("\xff\0\x80", 3));
}

TEST(Jsonl, QuotedBytesComeBack) {
  std::string all;
  for (int i = 0; i < 256; ++i)
    all += static_cast<char>(i);
  all += "\xc3\xa9\xed\xa0\x80\xf4\x90\x80\x80\xe0\x80\x80\xf0\x9f\x98\x80\xc3";
  const std::string quoted = json_quoted(all);
  EXPECT_EQ(read_all("jsonl", "{\"text\":" + quoted + ",\"label\":0}")[0].text, all);
  EXPECT_TRUE(nlohmann::json::accept(json_quoted("\xc3\xa9\"\\\n\x7f")));
  EXPECT_EQ(json_quoted("\xc3\xa9\xff\""), "\"\xc3\xa9\\udcff\\\"\"");
}

TEST(Jsonl, ErrorsNameFileAndLine) {
  const std::string good = "{\"text\":\"a\",\"label\":0}\n";
  expect_refused("jsonl", good + "\n{\"text\":\"b\",",
                 "file:3: column 13: expected a string, found the end of the text");
  expect_refused("jsonl", good + "[1]\n", "file:2: column 1: expected an object { … }, found an array");
  expect_refused("jsonl", good + "{\"text\":\"b\"}", "file:2: has no label");
  expect_refused("jsonl", good + "{\"text\":\"b\",\"label\":null}", "file:2: has no label");
  expect_refused("jsonl", good + "{\"text\":\"b\",\"label\":\"\"}", "file:2: has no label");
  expect_refused("jsonl", good + "{\"txt\":\"b\",\"label\":0}", "file:2: has none of the keys \"text\", \"text1\"");
  expect_refused("jsonl", good + "{\"text\":\"b\",\"tokens\":[1],\"label\":0}", "has both \"text\" and \"tokens\"");
  expect_refused("jsonl", good + "{\"text\":\"b\",\"text\":\"c\",\"label\":0}", "the key \"text\" comes twice");
  expect_refused("jsonl", good + "{\"text1\":\"b\",\"label\":0}", "has \"text1\" but not \"text2\"");
  expect_refused("jsonl", good + "{\"tokens\":[1],\"label\":0}",
                 "file:2: holds integers, but the records before it hold text");
  expect_refused("jsonl", good + good.substr(0, 22) + " x", "nothing may follow");
  expect_refused("jsonl", R"({"text":"\ud800","label":0})", "the first half of a surrogate pair");
  expect_refused("jsonl", R"({"text":"\udfff","label":0})", "the second half of a surrogate pair");
  expect_refused("jsonl", "{\"text\":\"\x01\",\"label\":0}", "a control character in a string");
  expect_refused("jsonl", R"({"tokens":[-1],"label":0})",
                 "a token must be an integer from 0 to 2147483647, not \"-1\"");
  expect_refused("jsonl", R"({"tokens":[2147483648],"label":0})", "a token must be an integer");
  expect_refused("jsonl", R"({"tokens":[1.0],"label":0})", "a token must be an integer");
  expect_refused("jsonl", R"({"tokens":["a b"],"label":0})", "the token \"a b\" is empty or contains white space");
  expect_refused("jsonl", R"({"pixels":[256],"label":0})", "a pixel must be an integer from 0 to 255, not \"256\"");
  expect_refused("jsonl", R"({"pixels":[[1,2],[3]],"label":0})", "a row of 1 pixel after one of 2");
  expect_refused("jsonl", R"({"series":[],"label":0})", "the series has no time steps");
  expect_refused("jsonl", R"({"series":[[1,2],[3]],"label":0})",
                 "time step 1 of the series has 1 channel, the first 2");
  expect_refused("jsonl", R"({"series":[1e39],"label":0})", "too large for a 32-bit float");
  expect_refused("jsonl", R"({"series":[1e999],"label":0})", "is too large");
  expect_refused("jsonl", R"({"series":[Infinity],"label":0})", "expected a number");
  expect_refused("jsonl", R"({"series":[01],"label":0})", "must not begin with 0");
  expect_refused("jsonl", "{\"series\":[1],\"label\":0}\n{\"series\":[[1,2]],\"label\":0}",
                 "file:2: the series has 2 channels, those before it 1");
  expect_refused("jsonl", R"({"text":"a","label":[1]})", "the label must be a string or a number");
}

TEST(Jsonl, EmptyInputIsRefusedOnce) {
  for (const std::string text : {"", "\n\n"}) {
    const auto reader = read_text("jsonl", text);
    Example example;
    EXPECT_THAT([&] { reader->next(example); }, ThrowsMessage<FormatError>("file: holds no examples"));
    EXPECT_FALSE(reader->next(example));
  }
}

TEST(Jsonl, ReadingGoesOnBehindABadRecord) {
  const std::string text = "{\"text\":\"a\",\"label\":0}\n{broken\n{\"text\":\"b\",\"label\":0}\n";
  const auto reader = read_text("jsonl", text);
  Example example;
  EXPECT_TRUE(reader->next(example));
  EXPECT_THROW(reader->next(example), FormatError);
  EXPECT_TRUE(reader->next(example));
  EXPECT_EQ(example.text, "b");
  EXPECT_EQ(reader->place(), "file:3");
  EXPECT_EQ(reader->count(), 2u);
  EXPECT_FALSE(reader->next(example));
}

TEST(Jsonl, LabelsMayBeAbsentOrIgnored) {
  ReaderOptions options;
  options.labels = LabelUse::optional;
  const std::string text = "{\"text\":\"a\"}\n{\"text\":\"b\",\"label\":1}\n";
  auto examples = read_all("jsonl", text, options);
  EXPECT_EQ(examples[0].label, std::nullopt);
  EXPECT_EQ(examples[1].label, "1");
  options.labels = LabelUse::ignored;
  examples = read_all("jsonl", "{\"text\":\"b\",\"label\":{\"any\":[1]}}\n", options);
  EXPECT_EQ(examples[0].label, std::nullopt);
}

TEST(Jsonl, LongLinesAreReadAndThoseBeyondTheBoundRefused) {
  const std::string text =
      "{\"text\":\"" + std::string(3'000'000, 'x') + "\",\"label\":0}\n{\"text\":\"b\",\"label\":0}";
  const auto examples = read_all("jsonl", text);
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].text.size(), 3'000'000u);
  ReaderOptions options;
  options.longest_record = 1'000'000;
  const auto reader = read_text("jsonl", text, options);
  Example example;
  EXPECT_THAT([&] { reader->next(example); },
              ThrowsMessage<FormatError>(HasSubstr("file:1: a line of more than 1000000 bytes")));
  EXPECT_FALSE(reader->next(example));
}

TEST(Series, MissingValuesAreInterpolatedAndCounted) {
  const std::string text =
      "{\"series\":[[null,1,null],[2,NaN,null],[null,null,null],[8,7,null],[null,8,null]],\"label\":0}\n"
      "{\"series\":[[1,2,3]],\"label\":0}\n";
  const auto reader = read_text("jsonl", text);
  const auto examples = read_all(*reader);
  const auto none = NanSensitiveFloatEq(NAN);  // the third channel has no value
  EXPECT_THAT(examples[0].values, ElementsAre(2, 1, none, 2, 3, none, 5, 5, none, 8, 7, none, 8, 8, none));
  EXPECT_EQ(reader->repairs().missing_values, 10u);
  EXPECT_EQ(reader->repairs().series, 1u);
  EXPECT_EQ(reader->repairs().empty_channels, 1u);
}

TEST(Csv, QuotesLineEndsAndColumnsInAnyOrder) {
  const auto examples = read_all("csv",
                                 "id,label,text\r\n"
                                 "1,a,plain\r\n"
                                 "\r\n"
                                 "2,\"b\",\"a comma, a \"\"quote\"\"\r\nand a line\"\r\n"
                                 "3,c,in\"side\n"
                                 "4,d,");
  ASSERT_EQ(examples.size(), 4u);
  EXPECT_EQ(examples[0].text, "plain");
  EXPECT_EQ(examples[0].label, "a");
  EXPECT_EQ(examples[1].text, "a comma, a \"quote\"\r\nand a line");
  EXPECT_EQ(examples[1].label, "b");
  EXPECT_EQ(examples[2].text, "in\"side");
  EXPECT_EQ(examples[3].text, "");
  EXPECT_EQ(examples[3].label, "d");
}

TEST(Csv, PairsOwnColumnNamesAndTabs) {
  ReaderOptions options;
  options.text1 = "question";
  options.text2 = "sentence";
  options.label = "class";
  const auto pairs = read_all("tsv", "class\tquestion\tsentence\n1\tq, \xff\ts\n", options);
  EXPECT_EQ(pairs[0].content, Content::pair);
  EXPECT_EQ(pairs[0].text, "q, \xff");
  EXPECT_EQ(pairs[0].second, "s");
  EXPECT_EQ(pairs[0].label, "1");

  options = {};
  options.quotes = false;
  EXPECT_EQ(read_all("tsv", "text\tlabel\n\"open\t0\n", options)[0].text, "\"open");
}

TEST(Csv, ErrorsNameFileAndLine) {
  expect_refused("csv", "", "file: is empty; expected a header");
  expect_refused("csv", "text,label\n", "file: holds no examples");
  expect_refused(
      "csv", "body,label\nx,0\n",
      "file:1: the header has no column \"text\", nor both \"text1\" and \"text2\"; the columns are \"body\", "
      "\"label\"");
  expect_refused("csv", "text,y\nx,0\n", "file:1: the header has no column \"label\"; the columns are \"text\", \"y\"");
  expect_refused("csv", "body,label\nx,0\n",
                 "rename the one that holds the text, or name it (data.text_column, or --text");
  expect_refused("csv", "text,y\nx,0\n",
                 "rename the one that holds the label, or name it (data.label_column, or --label");
  expect_refused("csv", "text;label\nx;0\n", "separate the fields by commas, not by semicolons");
  expect_refused("csv", "text\tlabel\nx\t0\n", "fields separated by tabs are of the format tsv");
  expect_refused("csv", std::string(100, '\0'), "file:1: has bytes of 0 where the names of the columns should be");
  expect_refused("csv", "text,label,text\nx,0,y\n", "the header has the column \"text\" twice");
  expect_refused("csv", "text,label\n\"a\nb\",0\nx\n", "file:4: has 1 field, the header 2");
  expect_refused("csv", "text,label\nx,0,1\n", "file:2: has 3 fields, the header 2");
  expect_refused("csv", "text,label\nx,0,1\n", "a field that holds a comma or a line end stands in double quotes");
  expect_refused("listops", "Source\tTarget\n[MAX 1 2 ]\t2\tc\td\n",
                 "file:2: has 4 fields, the header 2; a tab or a line end inside a field must become a space");
  expect_refused("csv", "text,label\na,0\n\"x,0\ny,1\n",
                 "file:3: the quote that opens here is never closed; the file is cut short, or ");
  expect_refused("csv", "text,label\n\"x\"y,0\n", "file:2: after the closing quote of field 1 comes \"y,0\"");
  expect_refused("csv", "text,label\nx,\n", "file:2: has no label");
  ReaderOptions options;
  options.longest_record = 64;
  expect_refused("csv", "text,label\n\"" + std::string(40, 'a') + "\n" + std::string(40, 'b') + "\n\",0\n",
                 "file:2: a quoted field of more than 64 bytes begins here", options);
}

TEST(ListOps, ParenthesesAreDroppedAndTheBracketStandsAlone) {
  const auto examples =
      read_all("listops", "Source\tTarget\r\n( ( ( [MAX 2 ) ( ( ( [SM 3 ) 4 ) ] ) ) ] )\t7\r\n[MIN 1 2]\t1\n");
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].text, "[MAX 2 [SM 3 4 ] ]");
  EXPECT_EQ(examples[0].label, "7");
  EXPECT_EQ(examples[1].text, "[MIN 1 2 ]");
  expect_refused("listops", "text\tlabel\nx\t0\n",
                 "no column \"Source\"; the columns are \"text\", \"label\"; the format has \"Source\" and \"Target\"");
}

TEST(ListOps, WhatIsNoExpressionAndNoDigitIsToldWithItsLine) {
  const auto refused = [](const std::string& row, const std::string& reason) {
    expect_refused("listops", "Source\tTarget\n[MAX 1 2 ]\t2\n" + row + "\n", "file:3: " + reason);
  };
  refused("[MAX 1 2 ]\t12", "the label is \"12\", expected 0 to 9; the file is damaged: fetch it again, or make it");
  refused("[MAX 1 2 ]\tx", "the label is \"x\"");
  const std::string no_expression = "is no expression of digits, [MIN, [MAX, [MED, [SM and ]: ";
  refused("[AVG 1 2 ]\t1", no_expression + "unknown symbol \"[AVG\"; the file is damaged");
  refused("( ( [MAX 1 ) 2 )\t1", no_expression + "an operator is not closed");
  refused("[MAX 1 2 ] ]\t1", no_expression + "something follows the expression: \"]\"");
  refused("[MAX [MIN ] 2 ]\t1", no_expression + "an operator without arguments");
  refused("\t1", no_expression + "it is empty");
  expect_refused("tsv", "( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [MIN 2 ) 9 ) ] )\t2\n",
                 "this is ListOps without its header: put the line Source, tab, Target in front of it");
}

TEST(Formats, AreToldByExtensionAndHeader) {
  const ScratchFolder folder;
  const auto write = [&folder](const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return folder / name;
  };
  EXPECT_EQ(recognise(write("a.tsv", "Source\tTarget\n"))->name, "listops");
  EXPECT_EQ(recognise(write("b.tsv", "text\tlabel\n"))->name, "tsv");
  EXPECT_EQ(recognise(write("c.CSV", ""))->name, "csv");
  EXPECT_EQ(recognise(write("d.jsonl", ""))->name, "jsonl");
  EXPECT_EQ(recognise(write("notes.txt", "")), nullptr);
  EXPECT_THAT(
      [&] { make_reader(folder / "notes.txt"); },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("notes.txt"), HasSubstr("jsonl, "), HasSubstr(", ts"))));
  EXPECT_THAT([&] { make_reader(folder / "missing.csv"); }, ThrowsMessage<bytes::FileError>(HasSubstr("No such file")));
  EXPECT_THAT([&] { find_format("xml"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("got \"xml\"")));
}

TEST(Formats, StandardInputIsJsonl) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = "{\"text\":\"from a pipe\",\"label\":0}\n";
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  const int saved = ::dup(0);
  ::dup2(ends[0], 0);
  const auto examples = read_all(*make_reader("-"));
  ::dup2(saved, 0);
  ::close(saved);
  ::close(ends[0]);
  ASSERT_EQ(examples.size(), 1u);
  EXPECT_EQ(examples[0].text, "from a pipe");
}

}  // namespace
}  // namespace dba::data
