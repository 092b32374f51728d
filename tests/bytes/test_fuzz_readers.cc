#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "data/cache_file.h"
#include "data/checksum.h"
#include "dba/data/cache.h"
#include "dba/data/formats.h"
#include "dba/data/listops.h"
#include "fuzz.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::Bytes;
using bytes::FormatError;
using bytes::FuzzCounts;
using bytes::FuzzTarget;

constexpr std::size_t kLargestRequest = std::size_t{1} << 20;

Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Every record up to the end, bad ones passed over: a reader may neither stand still nor hand out what breaks its
// promises. The file counts as refused if it had a bad record.
void read_and_check(const std::string& format, const Bytes& file) {
  ReaderOptions options;
  options.format = format;
  options.labels = LabelUse::optional;
  const auto reader = make_reader(memory_source(file), "fuzzed", options);
  Example example;
  std::optional<Content> content;
  std::size_t channels = 0;
  std::optional<FormatError> first_error;
  for (std::size_t calls = 0;; ++calls) {
    ASSERT_LE(calls, file.size() + 2) << "the reader stands still";
    try {
      if (!reader->next(example))
        break;
    } catch (const FormatError& error) {
      EXPECT_LT(std::strlen(error.what()), 800u);
      if (!first_error)
        first_error = error;
      continue;
    }
    EXPECT_EQ(content.value_or(example.content), example.content);
    content = example.content;
    EXPECT_LE(example.text.size() + example.second.size(), file.size());
    EXPECT_LE(example.values.size(), file.size());
    EXPECT_TRUE(std::ranges::all_of(example.integers, [](std::int32_t number) { return number >= 0; }));
    if (example.content == Content::series) {
      ASSERT_GT(example.channels, 0u);
      EXPECT_EQ(example.values.size() % example.channels, 0u);
      EXPECT_TRUE(channels == 0 || channels == example.channels);
      channels = example.channels;
      for (std::size_t i = 0; i < example.values.size(); ++i) {
        // A channel without any value is NaN from its first step on, others have no NaN.
        const bool known = std::isfinite(example.values[i % example.channels]);
        ASSERT_TRUE(known ? std::isfinite(example.values[i]) : std::isnan(example.values[i]));
      }
    }
    EXPECT_TRUE(format != "listops" || example.text.find_first_of("()") == std::string::npos);
    EXPECT_TRUE(!example.label || !example.label->empty());
  }
  if (first_error)
    throw *first_error;
}

void fuzz_format(const std::string& format, const std::vector<std::string>& texts, std::uint64_t seed,
                 std::size_t iterations = 20'000) {
  FuzzTarget target;
  for (const std::string& text : texts)
    target.files.push_back(bytes_of(text));
  target.read = [&format](const Bytes& file) { read_and_check(format, file); };
  for (const Bytes& file : target.files)
    read_and_check(format, file);
  const FuzzCounts counts = fuzz(target, seed, iterations, kLargestRequest);
  ASSERT_EQ(counts.accepted + counts.refused, iterations);
  EXPECT_GT(counts.accepted, iterations / 50);
  EXPECT_GT(counts.refused, iterations / 10);
}

TEST(FuzzReaders, Jsonl) {
  fuzz_format(
      "jsonl",
      {"{\"text\":\"a \\\"b\\\" \\u00e9\\ud83d\\ude00\\udcff\",\"label\":\"x\"}\n{\"text\":\"\xff\",\"label\":2}\n",
       "{\"text1\":\"one\",\"text2\":\"two\",\"label\":true,\"id\":{\"deep\":[[1,2],{\"k\":null}]}}\r\n",
       "{\"tokens\":[1,20,300],\"label\":0}\n\n{\"tokens\":[],\"label\":1}\n",
       "{\"tokens\":[\"[MAX\",\"2\",\"]\"],\"label\":0}\n",
       "{\"series\":[[1,2.5],[null,-3e-2],[NaN,4]],\"label\":-1.5}\n{\"series\":[[5,6]],\"label\":0}\n",
       "{\"series\":[1,null,3],\"label\":0}\n", "{\"pixels\":[[[1,2],[3,255]]],\"label\":9}\n"},
      11);
}

TEST(FuzzReaders, Csv) {
  fuzz_format("csv",
              {"id,text,label\r\n1,\"a, \"\"b\"\"\r\nc\",0\r\n2,plain,1\r\n3,,2\r\n",
               "label,text1,text2\n0,one,\"two\"\n1,\"\",three\n", "text,label\nfirst,0\nsecond,1\n\nthird,2\n"},
              12);
}

TEST(FuzzReaders, CsvLong) {
  fuzz_format("csv_long",
              {"case,time,x,y,label\r\n1,0,1.5,-2,a\r\n1,1,,NaN,a\r\n2,0,3,4e-1,b\r\n",
               "label,time,case,x\n0,1,one,1\n0,2,one,?\n1,1,\"two\",2\n", "time,x,case\n1,2,3\n2,2,3\n1,7,4\n"},
              16);
}

TEST(FuzzReaders, Ts) {
  fuzz_format("ts",
              {"# about\r\n@problemName Two\r\n@timeStamps false\r\n@missing true\r\n@univariate false\r\n"
               "@dimensions 2\r\n@equalLength true\r\n@seriesLength 3\r\n@classLabel true a b\r\n@data\r\n"
               "1,2.5,-3:4e-1,?,6:a\r\n\r\n7,8,NaN:1,1,1:b\r\n",
               "@univariate true\n@equalLength false\n@classLabel true 1 2\n@data\n1,2,3:1\n4:2\n% note\n5,6:?\n",
               "@data\n1,2:3,4\n5:6\n", "@dimension 3\n@classLabel true\n@data\n1:2:3:x\n4:5:6\n"},
              17);
}

TEST(FuzzReaders, Aan) {
  fuzz_format("aan", {"1.0\tP05-1\tP06-2\tfirst text\tsecond\r\n0.0\ta\tb\t\t\n", "0\ta\tb\tc\td\n\n1\ta\tb\t\"c\td\n"},
              18, 7'000);
}

TEST(FuzzReaders, Pixels) {
  std::string grey;
  std::string colour;
  for (char label = 0; label < 3; ++label) {
    grey += label + std::string(1024, static_cast<char>(40 * label));
    colour += label + std::string(3072, static_cast<char>(80 * label));
  }
  fuzz_format("grey", {grey, grey.substr(0, 2050)}, 19, 2'000);
  fuzz_format("cifar10", {colour, colour.substr(0, 3073)}, 20, 2'000);
}

TEST(FuzzReaders, ListOpsAndItsExpressions) {
  fuzz_format("listops",
              {"Source\tTarget\r\n( ( ( [MAX 2 ) ( ( ( [SM 3 ) 4 ) ] ) ) ] )\t7\r\n( ( ( [MIN 1 ) 9 ) ] )\t1\r\n",
               "Source\tTarget\n[MED 1 2 3]\t2\n"},
              13);
  FuzzTarget expressions;
  expressions.files = {bytes_of("( ( ( [MAX 2 ) ( ( ( [SM 3 ) 4 ) ] ) ) ] )"), bytes_of("[MED 1 [MIN 4 5 ] 3 ]")};
  expressions.read = [](const Bytes& file) {
    const int value = evaluate_listops({reinterpret_cast<const char*>(file.data()), file.size()});
    EXPECT_GE(value, 0);
    EXPECT_LE(value, 9);
  };
  const FuzzCounts counts = fuzz(expressions, 14, 10'000, kLargestRequest);
  EXPECT_GT(counts.accepted, 200u);
  EXPECT_GT(counts.refused, 1000u);
}

Bytes cache_of(const std::string& text, const TokeniserOptions& options) {
  const bytes::ScratchFolder folder;
  std::ofstream(folder / "set.jsonl", std::ios::binary) << text;
  build_cache({folder / "set.jsonl", {}, options, {}}, folder / "cache");
  std::ifstream file(folder / "cache", std::ios::binary);
  return bytes_of({std::istreambuf_iterator<char>(file), {}});
}

// The checksum of the damaged file, so that the damage reaches the checks behind it.
void repair_checksum(const Bytes&, Bytes& damaged) {
  if (damaged.size() < sizeof(CacheHeader))
    return;
  CacheHeader header;
  std::memcpy(&header, damaged.data(), sizeof header);
  header.checksum = 0;
  Checksum checksum;
  checksum.add(std::span(damaged).subspan(sizeof header));
  checksum.add(std::as_bytes(std::span(&header, 1)));
  header.checksum = checksum.value();
  std::memcpy(damaged.data(), &header, sizeof header);
}

void open_and_check(const Bytes& file) {
  const CachedSet set = CachedSet::parse(file, "fuzzed");
  const std::size_t symbols = set.encoding().tokeniser.vocabulary_size();
  const auto lengths = set.lengths();
  for (std::size_t i = 0; i < set.size(); ++i) {
    const CachedSet::View view = set.example(i);
    for (const auto sequence : {view.first, view.second}) {
      for (const std::int32_t id : sequence)
        ASSERT_LT(static_cast<std::size_t>(id), symbols);
    }
    for (const float value : view.values)
      ASSERT_TRUE(std::isfinite(value));
    ASSERT_LT(view.label, static_cast<std::int32_t>(set.encoding().labels.size()));
    const std::size_t width = set.kind() == Kind::series ? set.encoding().channels : 1;
    ASSERT_EQ(view.first.size() + view.second.size() + view.values.size(),
              static_cast<std::size_t>(lengths[i]) * width);
  }
  EXPECT_LE(set.class_counts().size(), file.size());
  EXPECT_EQ(set.channel_statistics().mean.size(), set.encoding().channels);
}

TEST(FuzzReaders, Cache) {
  TokeniserOptions words;
  words.scheme = Scheme::whitespace;
  words.cls = words.eos = true;
  const FuzzTarget target{
      {cache_of("{\"text\":\"abc\",\"label\":\"x\"}\n{\"text\":\"\",\"label\":\"y\"}\n", {}),
       cache_of("{\"text\":\"a b a\",\"label\":0}\n{\"text\":\"c\",\"label\":1}\n", words),
       cache_of("{\"text1\":\"ab\",\"text2\":\"c\",\"label\":0}\n{\"text1\":\"\",\"text2\":\"d\",\"label\":1}\n", {}),
       cache_of("{\"series\":[[1,2],[3,null]],\"label\":0}\n{\"series\":[[5,6]],\"label\":1}\n", {})},
      open_and_check,
      repair_checksum};
  for (const Bytes& file : target.files)
    open_and_check(file);
  constexpr std::size_t kIterations = 30'000;
  const FuzzCounts counts = fuzz(target, 15, kIterations, kLargestRequest);
  ASSERT_EQ(counts.accepted + counts.refused, kIterations);
  EXPECT_GT(counts.accepted, kIterations / 50);
  EXPECT_GT(counts.refused, kIterations / 2);
}

}  // namespace
}  // namespace dba::data
