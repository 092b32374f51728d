#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
#include "dba/data/describe.h"
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

const std::string kHeader =
    "@problemName Gestures\n@timeStamps false\n@missing false\n@univariate false\n@dimensions 2\n@equalLength true\n"
    "@seriesLength 3\n@classLabel true up down\n@data\n";
const std::string kOne = "@univariate true\n@classLabel true a b\n@data\n";

std::vector<Example> read_ts(const std::string& text, LabelUse labels = LabelUse::required) {
  ReaderOptions options;
  options.labels = labels;
  return read_all("ts", text, options);
}

TEST(Ts, DimensionsStandSideBySideAtEveryStep) {
  const auto examples = read_ts(kHeader + "1,2,3:10,20,30:up\n-1.5,2e-1,+3: .5, 6E0 ,-7 : down\n");
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].content, Content::series);
  EXPECT_EQ(examples[0].channels, 2u);
  EXPECT_THAT(examples[0].values, ElementsAre(1, 10, 2, 20, 3, 30));
  EXPECT_EQ(examples[0].label, "up");
  EXPECT_THAT(examples[1].values, ElementsAre(-1.5f, 0.5f, 0.2f, 6.0f, 3.0f, -7.0f));
  EXPECT_EQ(examples[1].label, "down");
}

TEST(Ts, TagsInAnyCaseCommentsBlankLinesLineEndsAndByteOrderMark) {
  const auto examples = read_ts(
      "\xef\xbb\xbf# about the set: it has a colon, 1,2,3\r\n%more\r\n\r\n@PROBLEMNAME Two Words\r\n@Dimension\t1\r\n"
      "@MISSING TRUE\r\n@somethingElse 7\r\n@EqualLength False\r\n@serieslength 9\r\n@ClassLabel True yes no\r\n"
      "  @DATA  \r\n\r\n# between rows\r\n1,2:yes\r\n  % too\r\n3:NO\r\n4,5,6 : no");
  ASSERT_EQ(examples.size(), 3u);
  EXPECT_THAT(examples[0].values, ElementsAre(1, 2));
  EXPECT_THAT(examples[1].values, ElementsAre(3));
  EXPECT_EQ(examples[1].label, "no") << "spelled as the header does";
  EXPECT_THAT(examples[2].values, ElementsAre(4, 5, 6));
}

TEST(Ts, LabelsThatDifferInCaseAloneAreTwoClasses) {
  const auto examples = read_ts("@classLabel true a A\n@data\n1:A\n2:a\n");
  EXPECT_EQ(examples[0].label, "A");
  EXPECT_EQ(examples[1].label, "a");
}

TEST(Ts, MissingValuesAreInterpolatedAndCounted) {
  const std::string text = kHeader + "?,2,nan:NaN,?,?:up\n1, ? ,5:1,1,1:down\n";
  const auto reader = read_text("ts", text);
  const auto examples = read_all(*reader);
  const auto none = NanSensitiveFloatEq(NAN);  // the second channel has no value
  EXPECT_THAT(examples[0].values, ElementsAre(2, none, 2, none, 2, none));
  EXPECT_THAT(examples[1].values, ElementsAre(1, 1, 3, 1, 5, 1));
  EXPECT_EQ(reader->repairs().missing_values, 6u);
  EXPECT_EQ(reader->repairs().series, 2u);
  EXPECT_EQ(reader->repairs().empty_channels, 1u);
}

TEST(Ts, RowsWithoutALabelAreReadWhereNoneIsNeeded) {
  const std::string rows = "1,2,3:4,5,6\n7,8,9:1,2,3:?\n1,1,1:2,2,2:\n1,1,1:2,2,2:up\n";
  const auto examples = read_ts(kHeader + rows, LabelUse::optional);
  ASSERT_EQ(examples.size(), 4u);
  EXPECT_THAT(examples[0].values, ElementsAre(1, 4, 2, 5, 3, 6));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(examples[static_cast<std::size_t>(i)].label, std::nullopt);
  EXPECT_EQ(examples[3].label, "up");
  expect_refused("ts", kHeader + rows, "file:10: has no label");
  EXPECT_EQ(read_ts(kHeader + "1,1,1:2,2,2:never declared\n", LabelUse::ignored)[0].label, std::nullopt);
  for (const std::string denied : {"@classLabel false\n", ""}) {
    const auto plain = read_ts("@univariate false\n" + denied + "@data\n1,2:3,4:5,6\n", LabelUse::ignored);
    EXPECT_EQ(plain[0].channels, 3u);
  }
  EXPECT_EQ(read_ts(kOne + "1,2,3\n", LabelUse::optional)[0].channels, 1u);
  // Several values are no label.
  expect_refused("ts", kOne + "1,2:3,4\n",
                 "file:4: column 4: the row has 2 dimensions, the header promises 1; mend the row, or");
  for (const LabelUse labels : {LabelUse::optional, LabelUse::ignored}) {
    EXPECT_THROW(read_ts(kOne + "1,2:3,4\n", labels), FormatError);
    EXPECT_THROW(read_ts(kOne + "1,2:3 , ? ,5\n", labels), FormatError);
    EXPECT_THROW(read_ts(kHeader + "1,2,3:4,5,6:7,8,9\n", labels), FormatError);
    EXPECT_EQ(read_ts("@classLabel true a b\n@data\n1,2:3,4\n", labels)[0].channels, 2u);
    EXPECT_EQ(read_ts("@classLabel true 3,4 5,6\n@data\n1,2:3,4\n", labels)[0].channels, 1u);
    EXPECT_EQ(read_ts("@classLabel true\n@data\n1,2:3,b\n", labels)[0].channels, 1u);
  }
  // Labels that are numbers: the last field is one where it completes no dimension.
  const std::string digits = "@dimensions 2\n@classLabel true 1 2\n@data\n";
  EXPECT_EQ(read_ts(digits + "5,6:7,8:1\n")[0].label, "1");
  EXPECT_THAT(read_ts(digits + "5:1\n", LabelUse::optional)[0].values, ElementsAre(5, 1));
  expect_refused("ts", digits + "5,6:1\n", "file:4: column 4: the row has 1 dimension, the header promises 2");
}

TEST(Ts, RowsAgainstTheHeaderAreRefusedWithLineAndColumn) {
  expect_refused("ts", kHeader + "1,2,3:4,5,6:up\n1,2,3:up\n",
                 "file:11: column 6: the row has 1 dimension, the header promises 2");
  expect_refused("ts", kHeader + "1,2,3:4,5,6:7,8,9:up\n",
                 "file:10: column 18: the row has 3 dimensions, the header promises 2");
  expect_refused("ts", kHeader + "1,2,3:4,5:up\n", "file:10: column 7: dimension 2 has 2 values, the first 3");
  expect_refused("ts", kHeader + "1,2:3,4:up\n",
                 "file:10: column 1: the series has 2 values, @seriesLength promises 3");
  expect_refused("ts", kHeader + "1,2,3:4,5,6:left\n",
                 "file:10: column 13: the label \"left\" is none of the 2 classes of the header");
  expect_refused("ts", "@dimensions 1\n@classLabel false\n@data\n1,2:a\n", "file:4: column 5: expected a number");
  expect_refused("ts", "@dimensions 1\n@classLabel false\n@data\n1:2\n", "@classLabel false is wrong");
  expect_refused("ts", "@dimensions 1\n@classLabel false\n@data\n1,2:a\n", "found \"a\"; if the last field is a label");
  expect_refused("ts", kHeader + "1,2,3:4,5,6:up:\n",
                 "column 13: expected a number, found \"up\"; the label stands behind the last colon");
  expect_refused("ts", kHeader + "1,2,3:up\n", "promises 2; mend the row or @dimensions");
  expect_refused("ts", "@dimensions 1\n@data\n1:2\n", "put @classLabel true and the classes into the header");
  expect_refused("ts", "@equalLength true\n@classLabel true a\n@data\n1,2:a\n1,2,3:a\n",
                 "file:5: column 1: the series has 3 values, those before it 2");
  expect_refused("ts", "@classLabel true a\n@data\n1,2:3,4:a\n1,2:3,4:5,6:a\n",
                 "file:4: column 12: the row has 3 dimensions, those before it 2");
  expect_refused("ts", kOne + ":a\n", "file:4: column 1: a dimension without values; leave empty series out");
  expect_refused("ts", kHeader + "1,2,3: :up\n", "file:10: column 7: a dimension without values");
  expect_refused("ts", kOne + "1,2:3,4:a\n",
                 "the header promises 1; mend the row, or write @univariate false and @dimensions 2");
  expect_refused(
      "ts", "@classLabel true a,b\n@data\n1,2:a\n",
      "the label \"a\" is not \"a,b\", the only class of the header; @classLabel separates classes by spaces");
  expect_refused("ts", "@classLabel true a, b\n@data\n1,2:a\n", "not by commas as in \"a,\"");
  expect_refused("ts", "@classLabel true a\n@data\n1,2:b\n", "the only class of the header; add it to @classLabel");
  expect_refused("ts", kHeader, "file: holds no examples");
}

TEST(Ts, BadValuesAreRefusedWithLineAndColumn) {
  expect_refused("ts", kOne + "1,2:a\n1,x2,3:a\n",
                 "file:5: column 3: expected a number, found \"x2\"; write one, or ?");
  expect_refused("ts", kOne + "1,2 3:a\n",
                 "column 3: expected a number, found \"2 3\"; values are separated by commas, not by spaces");
  expect_refused("ts", kOne + "1;2;3:a\n", "found \"1;2;3\"; values are separated by commas and dimensions by colons");
  expect_refused("ts", kOne + "1,2,3,a\n", "column 7: expected a number, found \"a\"; if it is the label, put a colon");
  expect_refused("ts", kHeader + "1,2,3:1,2,3,up\n", "found \"up\"; if it is the label, put a colon before it");
  expect_refused("ts", "@univariate true\n@data\n1,2,a\n", "and @classLabel true and the classes into the header");
  expect_refused("ts", kOne + "1,2, \n", "column 5: there is no value; a missing one is written as ?");
  expect_refused("ts", kOne + "1,,3:a\n", "column 3: there is no value; a missing one is written as ?");
  expect_refused("ts", kOne + "1,2,:a\n", "column 5: there is no value");
  expect_refused("ts", kOne + "1,0x10:a\n", "column 3: expected a number");
  expect_refused("ts", kOne + "1,+-2:a\n", "column 3: expected a number");
  expect_refused("ts", kOne + "1,1e39:a\n",
                 "column 3: the value \"1e39\" is too large for a 32-bit float; scale the channel");
  expect_refused("ts", kOne + "1,-1e999:a\n", "column 3: the value \"-1e999\" is too large");
  expect_refused("ts", kOne + "1,-inf:a\n", "column 3: the value \"-inf\" is infinite");
  expect_refused("ts", kOne + "(0,1.5),(1,2.5):a\n", "column 1: time stamps such as \"(0\" are not read; bring");
  EXPECT_THAT(read_ts(kOne + "1e-60,-1e-999,3.4e38,1e-40:a\n")[0].values, ElementsAre(0, 0, 3.4e38f, 1e-40f));
}

TEST(Ts, BadHeadersAreRefusedWithLineAndColumn) {
  expect_refused("ts", "", "file: has no line @data");
  expect_refused("ts", "@problemName x\n", "file: has no line @data");
  expect_refused("ts", "", "it is empty: fetch it again");
  expect_refused("ts", "@problemName x\r@data\r1,2:a\r", "its lines do not end in line feeds");
  expect_refused("ts", "@univariate true\r@classLabel true a b\r@data\r1,2:a\r",
                 "file:1: column 17: a carriage return stands inside the line, so its lines do not end in line feeds");
  expect_refused("ts", "# only a comment\r@data\r", "its lines do not end in line feeds");
  expect_refused("ts", "@classLabel true going up going down\n@data\n", "a class is one word there");
  expect_refused("ts", std::string("\xff\xfe@\0p\0", 6), "file:1: the text is UTF-16; save it as UTF-8");
  expect_refused("ts", "1,2,3:a\n",
                 "file:1: column 1: expected a tag such as @problemName, or @data, found \"1,2,3:a\"");
  expect_refused("ts", "@timeStamps true\n@data\n", "file:1: column 1: series with time stamps are not read; bring");
  expect_refused("ts", "@missing maybe\n@data\n", "file:1: column 10: @missing must be true or false, not \"maybe\"");
  expect_refused("ts", "@missing\n@data\n", "file:1: column 9: @missing must be true or false, not \"\"");
  expect_refused("ts", "\n@dimensions 0\n@data\n", "file:2: column 13: @dimensions must be a whole number above 0");
  expect_refused("ts", "@seriesLength 12a\n@data\n", "@seriesLength must be a whole number above 0, not \"12a\"");
  expect_refused("ts", "@seriesLength 12 13\n@data\n", "column 18: \"13\" follows the value of @seriesLength");
  expect_refused("ts", "@univariate true\n@dimensions 3\n@data\n", "@univariate true promises one dimension");
  expect_refused("ts", "@dimensions 3\n@univariate true\n@data\n", "@univariate true promises one dimension");
  expect_refused("ts", "@dimension 3\n@dimensions 3\n@data\n", "file:2: column 1: the tag @dimensions comes twice");
  expect_refused("ts", "@classLabel true a b a\n@data\n", "column 22: @classLabel lists the class \"a\" twice");
  expect_refused("ts", "@classLabel false a\n@data\n", "column 19: \"a\" follows the value of @classLabel");
  expect_refused("ts", "@data 1,2\n", "column 7: \"1,2\" follows the value of @data");
  const std::string regression = "@targetLabel true\n@data\n1,2:0.5\n";
  expect_refused("ts", regression, "file:1: column 1: the last field of the rows is a number to be estimated");
  EXPECT_THAT(read_ts(regression, LabelUse::ignored)[0].values, ElementsAre(1, 2));
}

TEST(Ts, ReadingGoesOnBehindABadRow) {
  const std::string text = kHeader + "x\n1,2,3:4,5,6:up\n1:2:3\n1,2,3:4,5,6:down\n";
  const auto reader = read_text("ts", text);
  Example example;
  EXPECT_THROW(reader->next(example), FormatError);
  EXPECT_TRUE(reader->next(example));
  EXPECT_THROW(reader->next(example), FormatError);
  EXPECT_TRUE(reader->next(example));
  EXPECT_EQ(example.label, "down");
  EXPECT_EQ(reader->place(), "file:13");
  EXPECT_FALSE(reader->next(example));
}

TEST(Ts, VeryLongRowsAreReadAndThoseBeyondTheBoundRefused) {
  constexpr std::size_t kSteps = 400'000;
  std::string row;
  for (std::size_t i = 0; i < kSteps; ++i)
    row += std::to_string(i % 1000) + ",";
  row.pop_back();
  const std::string text = "@univariate false\n@dimensions 2\n@classLabel true a\n@data\n" + row + ":" + row + ":a\n";
  const auto examples = read_ts(text);
  ASSERT_EQ(examples[0].values.size(), 2 * kSteps);
  EXPECT_EQ(examples[0].values[2 * 1999], 999);
  EXPECT_EQ(examples[0].values[2 * kSteps - 1], 999);
  ReaderOptions options;
  options.longest_record = 1'000'000;
  expect_refused("ts", text, "file:5: a line of more than 1000000 bytes", options);
}

const std::string kSteps =
    "case,time,x,y,label\r\nfirst,0,1,10,a\r\nfirst,0.5,,NaN,a\r\nfirst,7,3,?,a\r\n\"second\",-1,4,40,b\r\n";

TEST(CsvLong, RowsOfACaseBecomeASeries) {
  const auto reader = read_text("csv_long", kSteps);
  const auto examples = read_all(*reader);
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].channels, 2u);
  EXPECT_THAT(examples[0].values, ElementsAre(1, 10, 2, 10, 3, 10));
  EXPECT_EQ(examples[0].label, "a");
  EXPECT_THAT(examples[1].values, ElementsAre(4, 40));
  EXPECT_EQ(examples[1].label, "b");
  EXPECT_EQ(reader->place(), "file:5");
  EXPECT_EQ(reader->repairs().missing_values, 3u);
}

TEST(CsvLong, ColumnsInAnyOrderUnderAnyNameAndWithoutLabels) {
  ReaderOptions options;
  options.case_column = "patient";
  options.time_column = "hour";
  options.label = "outcome";
  const std::string text = "y,outcome,hour,patient,x\n1,ill,1,p,2\n3,ill,2,p,NA\n";
  const auto examples = read_all("csv_long", text, options);
  EXPECT_THAT(examples[0].values, ElementsAre(1, 2, 3, 2));
  EXPECT_EQ(examples[0].label, "ill");
  options.labels = LabelUse::ignored;
  EXPECT_THAT(read_all("csv_long", text, options)[0].values, ElementsAre(1, 2, 3, 2)) << "a label is no channel";
  EXPECT_THAT(read_all("csv_long", "patient,hour,x\np,1,5\n", options)[0].values, ElementsAre(5));
}

TEST(CsvLong, ErrorsNameLineAndColumn) {
  const std::string header = "case,time,x,label\n";
  expect_refused("csv_long", "", "file: is empty; expected a header");
  expect_refused("csv_long", "id,time,x,label\n", "file:1: the header has no column \"case\"; the columns are \"id\"");
  expect_refused("csv_long", "case,t,x,label\n", "name the right one with data.time_column (--time of dba data check)");
  expect_refused("csv_long", "case,time,x\na,1,2\n", "file:1: the header has no column \"label\"");
  expect_refused("csv_long", "case,time,label\n", "file:1: the header names no channel");
  expect_refused("csv_long", "case,time,x,time,label\n", "the header has the column \"time\" twice");
  expect_refused("csv_long", header + "a,1,2,u\na,2,3\n", "file:3: has 3 fields, the header 4");
  expect_refused("csv_long", header + "a,1,2,u\na,1,2,u\n",
                 "file:3: column \"time\": the time \"1\" does not come after");
  expect_refused("csv_long", header + "a,nan,2,u\n", "file:2: column \"time\": the time \"nan\" does not come after");
  expect_refused("csv_long", header + "a,May,2,u\n", "file:2: column \"time\": expected a number, found \"May\"");
  expect_refused("csv_long", header + "a,1,two,u\n", "file:2: column \"x\": expected a number, found \"two\"");
  expect_refused("csv_long", header + "a,1,1e40,u\n", "file:2: column \"x\": the value \"1e40\" is too large");
  expect_refused("csv_long", header + "a,1,2,u\na,2,3,v\n", "file:3: column \"label\": the label \"v\", but the case");
  expect_refused("csv_long", header + "a,1,2,u\nb,1,2,u\na,2,3,u\n",
                 "file:4: the case \"a\" was complete before; the rows of a case stand together");
  expect_refused("csv_long", header + "a,1,2,\n", "file:2: has no label");
  expect_refused("csv_long", header, "file: holds no examples");
}

TEST(CsvLong, TablesUnderOtherNamesAreToldOfTheFormat) {
  const std::string steps = "id,t,x,label\n1,0,5,a\n";
  expect_refused("csv", steps, "if the rows are the time steps of series, set data.format=csv_long");
  expect_refused("csv", steps, "data.case_column and data.time_column");
  EXPECT_THAT([] { read_all("csv", "words,label\nx,a\n", {}); },
              ThrowsMessage<FormatError>(testing::Not(HasSubstr("csv_long"))));
}

TEST(CsvLong, TheRestOfABadCaseIsPassedOver) {
  const std::string text =
      "case,time,x,label\na,1,2,u\na,2,bad,u\na,3,bad,u\nb,1,2,v\nb,2\nb,3,4,v\nc,1,9,u\na,1,1,u\na,2,1,u\nd,1,7,v\n";
  const auto reader = read_text("csv_long", text);
  std::vector<std::string> errors;
  std::vector<float> values;
  Example example;
  for (bool more = true; more;) {
    try {
      more = reader->next(example);
      if (more)
        values.insert(values.end(), example.values.begin(), example.values.end());
    } catch (const FormatError& error) {
      errors.emplace_back(error.what());
    }
  }
  EXPECT_THAT(values, ElementsAre(9, 7));
  EXPECT_THAT(errors, ElementsAre(HasSubstr("file:3:"), HasSubstr("file:6:"), HasSubstr("file:9:")));
}

TEST(SeriesFormats, AreToldByExtensionAndHeader) {
  const ScratchFolder folder;
  const auto write = [&folder](const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return folder / name;
  };
  EXPECT_EQ(recognise(write("A_TRAIN.ts", kHeader))->name, "ts");
  EXPECT_EQ(recognise(write("long.csv", kSteps))->name, "csv_long");
  EXPECT_EQ(recognise(write("quoted.csv", "\xef\xbb\xbfx,\"time\",\"case\"\r\n"))->name, "csv_long");
  EXPECT_EQ(recognise(write("text.csv", "case,time,text,label\n"))->name, "csv");
  EXPECT_EQ(recognise(write("plain.csv", "text,label\n"))->name, "csv");
}

TEST(SeriesFormats, OfAFolderTheFilesInItAreNamed) {
  const ScratchFolder folder;
  for (const char* name : {"L_TEST.ts", "L_TRAIN.ts", "notes"})
    std::ofstream(folder / name) << kOne << "1:a\n2:b\n";
  EXPECT_THAT([&] { read_path(folder.path()); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("is a folder of data files, which are named one by one"),
                                               HasSubstr(": \"" + (folder / "L_TEST.ts").string() + "\", \"" +
                                                         (folder / "L_TRAIN.ts").string() + "\""))));
}

TEST(SeriesSets, DescriptionCountsChannelsLengthsClassesAndRepairs) {
  const ScratchFolder folder;
  const std::string header = "@dimensions 3\n@equalLength false\n@classLabel true a b c\n@data\n";
  std::ofstream(folder / "S_TRAIN.ts") << header << "1,2:5,5:?,?:a\n1,?,4:5,5,5:?,?,?:b\n";
  std::ofstream(folder / "S_TEST.ts") << header << "1,2:5,6:1,2:a\n1,2:5,5:0,1:c\n";
  const Description description = describe_folder(folder.path());
  ASSERT_EQ(description.files.size(), 2u);
  const FileDescription& train = description.files[1];
  EXPECT_EQ(train.part, "train");
  EXPECT_EQ(train.format, "ts");
  EXPECT_EQ(train.channels, 3u);
  EXPECT_EQ(train.lengths[0].shortest, 2u);
  EXPECT_EQ(train.lengths[0].longest, 3u);
  EXPECT_THAT(train.constant_channels, ElementsAre(2, 3));
  EXPECT_EQ(train.repairs.missing_values, 6u);
  EXPECT_EQ(train.repairs.empty_channels, 2u);
  EXPECT_TRUE(description.files[0].constant_channels.empty());
  EXPECT_THAT(description.remarks,
              ElementsAre(HasSubstr("S_TEST.ts has the label \"c\", which the training part lacks"),
                          HasSubstr("S_TRAIN.ts has no example of the class \"c\", which its")));
  EXPECT_THAT(description.to_text(), AllOf(HasSubstr("constant channels, which standardising brings to 0: 2, 3\n"),
                                           HasSubstr("2 classes: \"a\" 1, \"b\" 1")));
  EXPECT_EQ(nlohmann::json::parse(description.to_json())["files"][1]["constant_channels"], nlohmann::json({2, 3}));
}

TEST(SeriesSets, ClassesThatATrainingFileListsWithoutAnExampleAreRemarkedOn) {
  const ScratchFolder folder;
  const auto remarks_on = [&folder](const std::string& name, const std::string& rows) {
    std::ofstream(folder / name) << "@univariate true\n@classLabel true a b C d\n@data\n" << rows;
    return describe_folder(folder / name).remarks;
  };
  EXPECT_THAT(remarks_on("mine.ts", "1:a\n2:b\n"),
              ElementsAre(AllOf(HasSubstr("mine.ts has no example of the classes \"C\", \"d\", which its header lists"),
                                HasSubstr("leave them out of the header"))));
  EXPECT_THAT(remarks_on("mine.ts", "1:a\n2:b\n3:c\n4:d\n"), ElementsAre());
  EXPECT_THAT(remarks_on("mine.ts", "1:a\n2:b\n3:c\nx:d\n"), ElementsAre()) << "the bad row may be of that class";
  EXPECT_THAT(remarks_on("new.ts", "1\n2\n"), ElementsAre()) << "without labels";
  EXPECT_THAT(remarks_on("Mine_TEST.ts", "1:a\n2:b\n"), ElementsAre());
}

TEST(SeriesSets, PartsOfOtherChannelsThanTheTrainingPartAreRemarkedOn) {
  const ScratchFolder folder;
  std::ofstream(folder / "S_TRAIN.ts") << "@classLabel true a b\n@data\n1,2:a\n1,3:b\n";
  std::ofstream(folder / "S_TEST.ts") << "@dimensions 2\n@classLabel true a b\n@data\n1,2:1,2:a\n";
  const Description description = describe_folder(folder.path());
  EXPECT_FALSE(description.sound());
  EXPECT_THAT(description.remarks,
              ElementsAre(HasSubstr("S_TEST.ts has series of 2 channels, the training part of 1")));
}

TEST(SeriesSets, ATrainingFileWithoutAnyValueIsRefused) {
  const ScratchFolder folder;
  std::ofstream(folder / "empty.ts") << "@dimensions 2\n@classLabel true a b\n@data\n?,?:?,?:a\n?:NaN:b\n";
  EXPECT_THAT(
      [&] {
        build_cache({folder / "empty.ts", {}, {}, {}}, folder / "no.cache");
      },
      ThrowsMessage<FormatError>(HasSubstr("empty.ts: every value of every series is missing (6 in all)")));
  EXPECT_THAT(describe_folder(folder / "empty.ts").remarks, ElementsAre(HasSubstr("has series without any value")));
  std::ofstream(folder / "one.ts") << "@dimensions 2\n@classLabel true a b\n@data\n?,?:?,?:a\n?:1:b\n";
  build_cache({folder / "one.ts", {}, {}, {}}, folder / "one.cache");
  EXPECT_TRUE(describe_folder(folder / "one.ts").remarks.empty());
}

TEST(SeriesSets, SeriesOfOtherChannelsAreRefusedWithARemedy) {
  Encoding encoding;
  encoding.kind = Kind::series;
  encoding.channels = 2;
  Example example;
  example.content = Content::series;
  Encoded encoded;
  for (const auto& [channels, remedy] : {std::pair(3, "leave out those that"), {1, "add those that are missing"}}) {
    example.channels = static_cast<std::size_t>(channels);
    example.values.assign(example.channels, 0);
    EXPECT_THAT([&] { encoding.encode(example, "new.ts:7", encoded); },
                ThrowsMessage<FormatError>(AllOf(HasSubstr("new.ts:7: the series has " + std::to_string(channels)),
                                                 HasSubstr("a dimension of a .ts row"), HasSubstr(remedy))));
  }
}

TEST(SeriesSets, TestSeriesAreCutAtTheBoundAndCountedAndUnseenClassesRefused) {
  const ScratchFolder folder;
  const std::string header = "@univariate true\n@classLabel true a b c\n@data\n";
  std::ofstream(folder / "train.ts") << header << "1,2,3:a\n4,5:b\n";
  std::ofstream(folder / "test.ts") << header << "1,2,3,4,5:a\n1,2,3:b\n1,2,3,4:b\n";
  std::ofstream(folder / "unseen.ts") << header << "1,2,3:a\n1,2:c\n";
  build_cache({folder / "train.ts", {}, {}, {}}, folder / "train.cache");
  const CachedSet train = CachedSet::open(folder / "train.cache");
  EXPECT_THAT(train.encoding().labels.names(), ElementsAre("a", "b"));
  EXPECT_DOUBLE_EQ(train.channel_statistics().mean[0], 3.0);
  EXPECT_TRUE(train.channel_statistics().constant().empty());
  Encoding encoding = train.encoding();
  TokeniserOptions options;
  options.max_length = train.statistics().longest;
  encoding.tokeniser = Tokeniser(options);
  build_cache({folder / "test.ts", {}, {}, encoding}, folder / "test.cache");
  const CachedSet test = CachedSet::open(folder / "test.cache");
  EXPECT_EQ(test.statistics().cut, 2u);
  EXPECT_EQ(test.statistics().longest, 3u);
  EXPECT_THAT(
      [&] {
        build_cache({folder / "unseen.ts", {}, {}, encoding}, folder / "no.cache");
      },
      ThrowsMessage<FormatError>(AllOf(HasSubstr("unseen.ts:5: "), HasSubstr("\"c\""))));
}

}  // namespace
}  // namespace dba::data
