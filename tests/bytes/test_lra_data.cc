#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>

#include "bytes/sha256.h"
#include "data/png.h"
#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "dba/data/cache.h"
#include "dba/data/data_path.h"
#include "dba/data/lra.h"
#include "dba/data/pathfinder.h"
#include "mutation.h"
#include "read_text.h"
#include "scratch_folder.h"

namespace dba::data {
namespace {

using bytes::FormatError;
using bytes::ScratchFolder;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void make_folder(const std::filesystem::path& folder) {
  ASSERT_EQ(::mkdir(folder.c_str(), 0777), 0) << folder;
}

std::vector<Example> read_path(const std::filesystem::path& path) {
  return read_all(*make_reader(path));
}

std::vector<std::string> labels_of(const std::vector<Example>& examples) {
  std::vector<std::string> labels;
  for (const Example& example : examples)
    labels.push_back(example.label.value_or("none"));
  return labels;
}

// A record of one grey value, or of one colour.
std::string grey_record(char label, unsigned char value) {
  return std::string(1, label) + std::string(1024, static_cast<char>(value));
}

std::string colour_record(char label, unsigned char red, unsigned char green, unsigned char blue) {
  return std::string(1, label) + std::string(1024, static_cast<char>(red)) +
         std::string(1024, static_cast<char>(green)) + std::string(1024, static_cast<char>(blue));
}

TEST(DataPath, NamesAPartOfAFile) {
  const ScratchFolder folder;
  const DataPath percent = DataPath::parse("a/b.bin@80-90%");
  EXPECT_EQ(percent.path, "a/b.bin");
  const Part::Range range = percent.part.of(215, "b");
  EXPECT_EQ(range.begin, 172u);
  EXPECT_EQ(range.end, 193u);
  const Part::Range numbers = DataPath::parse("b@3-5").part.of(5, "b");
  EXPECT_EQ(numbers.begin, 3u);
  EXPECT_EQ(numbers.end, 5u);
  for (const char* const whole : {"a@b/c.bin", "b.bin@", "b.bin@1", "b.bin@1-", "b.bin@1-2x", "b.bin@-1-2"})
    EXPECT_TRUE(DataPath::parse(whole).part.whole) << whole;
  for (const char* const wrong : {"b@5-5", "b@9-3", "b@90-101%"})
    EXPECT_THROW(DataPath::parse(wrong), std::invalid_argument) << wrong;
  write(folder / "odd@1-2", "");
  EXPECT_TRUE(DataPath::parse(folder / "odd@1-2").part.whole);
  EXPECT_THAT(
      [] { DataPath::parse("b@3-6").part.of(5, "b"); },
      ThrowsMessage<FormatError>("b: has 5 records; the part 3-6 reaches beyond them; name a part within them"));
  EXPECT_THAT([] { DataPath::parse("b@1-2%").part.of(5, "b"); },
              ThrowsMessage<FormatError>(HasSubstr("holds none of them")));
}

TEST(DataPath, PartsOfARunMustNotShareRecords) {
  config::TrainConfig config;
  config.train.updates = 1000;
  config.data.train = "a.bin@0-80%";
  config.data.validation = "a.bin@80-90%";
  config.data.test = "a.bin@90-100%";
  EXPECT_THAT(config::contradictions(config), testing::IsEmpty());
  config.data.test = "a.bin@75-80%";
  EXPECT_THAT(config::contradictions(config),
              ElementsAre(AllOf(HasSubstr("data.test (a.bin@75-80%) share records"), HasSubstr("data.train"))));
}

TEST(DataPath, PartsOfAnyFormatMakeUpTheWhole) {
  const ScratchFolder folder;
  std::string text = "text,label\n";
  for (int i = 0; i < 7; ++i)
    text += std::to_string(i) + ",0\n";
  write(folder / "set.csv", text);
  std::string joined;
  for (const char* const part : {"@0-30%", "@30-60%", "@60-100%"}) {
    for (const Example& example : read_path((folder / "set.csv").string() + part))
      joined += example.text;
    joined += '|';
  }
  EXPECT_EQ(joined, "01|23|456|");
}

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
  for (const std::string wrong : {"2.0", "0.5", "yes", "10", ""})
    EXPECT_THROW(read_all("aan", wrong + "\ta\tb\tc\td\n"), FormatError) << wrong;
}

TEST(Packed, FilesAreToBeUnpackedFirst) {
  const ScratchFolder folder;
  write(folder / "a.tsv.xz", std::string("\xfd"
                                         "7zXZ\0",
                                         6) +
                                 "rest");
  write(folder / "a.csv", "\x1f\x8b rest");
  write(folder / "a.tar.gz", "\x1f\x8b rest");
  write(folder / "a.bin", std::string(257, 'x') + "ustar" + std::string(300, 'x'));
  const auto expect = [&](const std::string& name, const std::string& command) {
    EXPECT_THAT([&] { make_reader(folder / name); },
                ThrowsMessage<FormatError>(HasSubstr("is packed; unpack it first: " + command)));
  };
  expect("a.tsv.xz", "xz -dk");
  expect("a.csv", "gzip -dk");
  expect("a.tar.gz", "tar xf");
  expect("a.bin", "tar xf");
}

// 30 × 16 grey pixels, a code of its own, all five filters, the data in two chunks.
constexpr const char* kPicture =
    "iVBORw0KGgoAAAANSUhEUgAAAB4AAAAQCAAAAAAkUZAOAAAAA3RFWHRhAGLcSaI7AAAAMklEQVR42nXQrXHDQBDF8aePCdoC"
    "VMCCG6NFQVuACnABAoZbgEu4MRY00Bi5hCvD0OBQ0BVwBZKuO+UAAACfSURBVCRScmzTwHu/+QO0QGfoGwTIGzzDFmCCXcHX"
    "js9RSqHzppT0HqhCnoE5Wd0wlb5GmwvbJjkRB1XoM1BOYhvPxYZqdcVHslPiZZWvF+lFOesjUMlyG8V+p1b87FDcv3LZd44v"
    "+CTIdJg7uKS/ndL7pBpxmIfFJV3487V7xuiSKOfD/A+pZezgklrG3ie1jINPahlHc0ktI3xSy/gNLGSpzw3/gt0AAAAASUVO"
    "RK5CYII=";

std::uint8_t picture_value(std::size_t x, std::size_t y) {
  return static_cast<std::uint8_t>((x * x + 3 * y * y + x * y) % 11 * ((x + y) % 3) * 12);
}

std::vector<std::uint8_t> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == kDigits.npos)
      break;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes.push_back(static_cast<std::uint8_t>(bits >> held));
    }
  }
  return bytes;
}

TEST(Png, PicturesOfOtherProgramsAreRead) {
  const Picture picture = read_png(from_base64(kPicture), "here");
  ASSERT_EQ(picture.width, 30u);
  ASSERT_EQ(picture.height, 16u);
  ASSERT_EQ(picture.channels, 1u);
  for (std::size_t y = 0; y < 16; ++y) {
    for (std::size_t x = 0; x < 30; ++x)
      ASSERT_EQ(picture.pixels[y * 30 + x], picture_value(x, y)) << x << ", " << y;
  }
}

TEST(Png, DamageIsNoticed) {
  const std::vector<std::uint8_t> sound = from_base64(kPicture);
  for (std::size_t i = 0; i < sound.size(); ++i) {
    std::vector<std::uint8_t> damaged = sound;
    damaged[i] ^= 0x04;
    EXPECT_THROW(read_png(damaged, "here"), FormatError) << "byte " << i;
    EXPECT_THROW(read_png(std::span(sound).first(i), "here"), FormatError) << "first " << i;
  }
  EXPECT_THAT([&] { read_png(std::span(sound).first(100), "a.png"); },
              ThrowsMessage<FormatError>("a.png: the PNG image is cut short; fetch it again"));
}

TEST(Png, WhatIsWrittenComesBack) {
  Picture picture{7, 300, 3, {}};
  for (std::size_t i = 0; i < 7 * 300 * 3; ++i)
    picture.pixels.push_back(i % 1000 < 700 ? 5 : static_cast<std::uint8_t>(i * i));
  const auto file = write_png(picture);
  EXPECT_LT(file.size(), picture.pixels.size());
  const Picture again = read_png(file, "here");
  EXPECT_EQ(again.channels, 3u);
  EXPECT_EQ(again.pixels, picture.pixels);
}

// A PNG image of these chunks, whose checksums are right whatever they hold.
std::vector<std::uint8_t> with_checksums(const std::vector<std::pair<std::string, std::string>>& chunks) {
  std::string file = "\x89PNG\r\n\x1a\n";
  const auto append_number = [&](std::uint32_t number) {
    for (const int shift : {24, 16, 8, 0})
      file += static_cast<char>(number >> shift);
  };
  for (const auto& [kind, content] : chunks) {
    append_number(static_cast<std::uint32_t>(content.size()));
    std::uint32_t sum = 0xffffffffu;
    for (const char c : kind + content) {
      sum ^= static_cast<std::uint8_t>(c);
      for (int bit = 0; bit < 8; ++bit)
        sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    }
    file += kind + content;
    append_number(~sum);
  }
  return {file.begin(), file.end()};
}

// The header of an image: its sizes as four bytes each, bits a channel, kind of colour, no interlacing.
std::string png_header(const std::string& sizes, char bits, char colour) {
  return sizes + std::string{bits, colour, 0, 0, 0};
}

TEST(Png, OtherSizesAndDepthsAreRefusedBeforeTheyAreAllocated) {
  const auto expect = [](const std::string& header, const std::string& message) {
    const auto file = with_checksums({{"IHDR", header}, {"IDAT", "x"}, {"IEND", ""}});
    EXPECT_THAT([&] { read_png(file, "a.png"); },
                ThrowsMessage<FormatError>(AllOf(testing::StartsWith("a.png: the PNG image "), HasSubstr(message))));
  };
  expect(png_header({0, 0, 16, 1, 0, 0, 0, 1}, 8, 0), "is 4097 × 1 pixels, expected 1 to 4096 each way");
  expect(png_header({0, 1, 0, 0, 0, 1, 0, 0}, 8, 6), "is 65536 × 65536 pixels");
  expect(png_header({127, -1, -1, -1, 127, -1, -1, -1}, 8, 6), "fetch it again");
  expect(png_header({0, 0, 0, 0, 0, 0, 0, 1}, 8, 0), "fetch it again");
  expect(png_header({0, 0, 0, 1, 0, 0, 0, 1}, 16, 0), "has 16 bits a channel, expected at most 8; convert it");
  EXPECT_THAT([] { read_png(std::vector<std::uint8_t>(100, 'x'), "a.png"); },
              ThrowsMessage<FormatError>(HasSubstr("a.png: is no PNG image")));
}

TEST(Png, APaletteBecomesColours) {
  // Two pixels of four bits, entries 1 and 0, in a stored block of zlib.
  const std::string row{0x78, 0x01, 1, 2, 0, -3, -1, 0, 0x10, 0, 0x12, 0, 0x11};
  const auto file = with_checksums({{"IHDR", png_header({0, 0, 0, 2, 0, 0, 0, 1}, 4, 3)},
                                    {"PLTE", {1, 2, 3, 4, 5, 6}},
                                    {"IDAT", row},
                                    {"IEND", ""}});
  const Picture picture = read_png(file, "here");
  EXPECT_EQ(picture.channels, 3u);
  EXPECT_THAT(picture.pixels, ElementsAre(4, 5, 6, 1, 2, 3));
}

// The checks behind the checksum: damage inside the packed data only.
TEST(Png, UnpackingSurvivesAnyDamage) {
  const std::vector<std::uint8_t> picture = from_base64(kPicture);
  const auto text = [&](std::size_t begin, std::size_t size) {
    const auto from = picture.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::string(from, from + static_cast<std::ptrdiff_t>(size));
  };
  // 8 of the signature, 25 of the header, 15 of a comment, and the data: 50 bytes and 159.
  const std::string header = text(16, 13);
  const std::string packed = text(56, 50) + text(118, 159);
  ASSERT_EQ(read_png(with_checksums({{"IHDR", header}, {"IDAT", packed}, {"IEND", ""}}), "here").pixels.size(), 480u);
  bytes::Bytes sound;
  for (const char c : packed)
    sound.push_back(static_cast<std::byte>(c));
  bytes::Mutator mutator(21);
  std::size_t refused = 0;
  constexpr std::size_t kIterations = 5000;
  for (std::size_t i = 0; i < kIterations; ++i) {
    std::string damaged;
    for (const std::byte byte : mutator.mutate(sound, sound))
      damaged += static_cast<char>(byte);
    try {
      EXPECT_EQ(read_png(with_checksums({{"IHDR", header}, {"IDAT", damaged}, {"IEND", ""}}), "here").pixels.size(),
                480u);
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kIterations * 9 / 10);
}

TEST(Sha256, IsWhatOtherProgramsPrint) {
  bytes::Sha256 empty;
  EXPECT_EQ(empty.finish(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  bytes::Sha256 abc;
  for (const char c : std::string("abc"))
    abc.add(std::as_bytes(std::span(&c, 1)));
  EXPECT_EQ(abc.finish(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string long_text(1'000'000, 'a');
  bytes::Sha256 many;
  many.add(std::as_bytes(std::span(long_text)));
  EXPECT_EQ(many.finish(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Pathfinder, PicturesAreTheSameWhateverTheThreads) {
  const ScratchFolder folder;
  PathfinderOptions options;
  options.count = 700;
  options.threads = 1;
  write_pathfinder_records(folder / "one.bin", options);
  options.threads = 3;
  write_pathfinder_records(folder / "three.bin", options);
  EXPECT_EQ(std::filesystem::file_size(folder / "one.bin"), 700u * 1025);
  const std::string one = contents(folder / "one.bin");
  EXPECT_TRUE(one == contents(folder / "three.bin"));
  options.seed = 1;
  write_pathfinder_records(folder / "other.bin", options);
  EXPECT_FALSE(one == contents(folder / "other.bin"));
  const PathfinderPicture picture = draw_pathfinder({}, 699);
  EXPECT_TRUE(std::ranges::equal(picture.pixels, one.substr(699 * 1025 + 1),
                                 [](std::uint8_t a, char b) { return a == static_cast<std::uint8_t>(b); }));
}

double distance(PixelPlace a, PixelPlace b) {
  return std::hypot(a.row - b.row, a.column - b.column);
}

TEST(Pathfinder, PicturesAreWhatTheArenaSpecifies) {
  constexpr std::uint64_t kPictures = 300;
  int connected = 0;
  std::size_t distractors = 0;
  double bend = 0;
  int bends = 0;
  for (std::uint64_t number = 0; number < kPictures; ++number) {
    SCOPED_TRACE(number);
    const PathfinderPicture picture = draw_pathfinder({}, number);
    connected += picture.connected;
    ASSERT_LE(picture.distractors.size(), 5u);
    distractors += picture.distractors.size();
    for (const auto& distractor : picture.distractors)
      EXPECT_EQ(distractor.size(), 5u) << "both ends of the first of four paddles, one end of the others";
    for (const auto& contour : picture.contours) {
      ASSERT_EQ(contour.size(), 15u) << "fourteen paddles";
      for (std::size_t i = 2; i < contour.size(); ++i) {
        EXPECT_GE(distance(contour[i], contour[i - 1]), 2.0);
        EXPECT_LE(distance(contour[i], contour[i - 1]), 6.5);
      }
      for (std::size_t i = 3; i < contour.size(); ++i) {
        const auto angle = [&](std::size_t k) {
          return std::atan2(contour[k].row - contour[k - 1].row, contour[k].column - contour[k - 1].column);
        };
        const double difference = std::abs(angle(i) - angle(i - 1));
        bend += std::min(difference, 2 * std::acos(-1.0) - difference);
        ++bends;
      }
    }
    EXPECT_NEAR(distance(picture.contours[0][0], picture.contours[1][0]), 7.0, 0.8);
    // One disc where a contour begins, one where a contour ends: the same contour exactly where the label says so.
    bool found = false;
    for (const std::size_t one : {std::size_t{0}, std::size_t{1}}) {
      const std::size_t other = picture.connected ? one : 1 - one;
      found = found ||
              (picture.discs[0] == picture.contours[one].front() && picture.discs[1] == picture.contours[other].back());
    }
    EXPECT_TRUE(found);
    for (const PixelPlace disc : picture.discs)
      EXPECT_GE(picture.pixels[static_cast<std::size_t>(disc.row * 32 + disc.column)], 120);
    EXPECT_EQ(*std::ranges::max_element(picture.pixels), 255);
    EXPECT_EQ(*std::ranges::min_element(picture.pixels), 0);
  }
  // Three standard deviations of a fair coin.
  EXPECT_NEAR(connected, kPictures / 2.0, 3 * std::sqrt(kPictures / 4.0));
  EXPECT_GT(static_cast<double>(distractors) / kPictures, 4.0);
  EXPECT_LT(bend / bends, 0.8) << "contours bend gently";
}

TEST(Pathfinder, EasierSetsHaveShorterContoursAndMoreDistractors) {
  PathfinderOptions options;
  options.contour_length = 6;
  const PathfinderPicture easy = draw_pathfinder(options, 0);
  EXPECT_EQ(easy.contours[0].size(), 7u);
  EXPECT_GT(easy.distractors.size(), 5u);
  EXPECT_EQ(easy.distractors[0].size(), 3u);
  options.contour_length = 15;
  EXPECT_THROW(draw_pathfinder(options, 0), std::invalid_argument);
  options.count = 0;
  EXPECT_THROW(write_pathfinder_records("nowhere/a.bin", options), std::invalid_argument);
}

class PathfinderFolder : public testing::Test {
 protected:
  PathfinderFolder() {
    options_.count = 1003;
    options_.contour_length = 6;
    options_.threads = 2;
    write_pathfinder_folder(folder_.path(), options_);
  }
  PathfinderOptions options_;
  ScratchFolder folder_;
};

TEST_F(PathfinderFolder, ReadsAsTheRecordsDo) {
  EXPECT_EQ(recognise(folder_.path())->name, "pathfinder");
  write_pathfinder_records(folder_ / "same.bin", options_);
  const auto images = read_path(folder_.path());
  const auto records = read_path(folder_ / "same.bin");
  ASSERT_EQ(images.size(), 1003u);
  EXPECT_EQ(labels_of(images), labels_of(records));
  EXPECT_TRUE(std::ranges::equal(images, records, {}, &Example::integers, &Example::integers));
  EXPECT_EQ(read_path(folder_.path().string() + "@90-100%").front().integers, records[902].integers);
  write_pathfinder_sheet(folder_ / "sheet.png", options_, 2, 3);
  const std::string sheet = contents(folder_ / "sheet.png");
  const Picture picture = read_png({reinterpret_cast<const std::uint8_t*>(sheet.data()), sheet.size()}, "sheet");
  EXPECT_EQ(picture.width, 3 * 106u + 6);
  EXPECT_EQ(picture.height, 2 * 106u + 6);
}

TEST_F(PathfinderFolder, WhatIsWrongIsNamedByFileAndLine) {
  const auto first = folder_ / "imgs/0/sample_1.png";
  const std::string image = contents(first);
  const auto expect = [&](const std::string& message) {
    EXPECT_THAT([&] { read_path(folder_.path()); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  };
  write(first, "");
  expect("metadata/0.npy:2: ");
  expect("sample_1.png: the file is empty");
  write(first, image.substr(0, image.size() / 2));
  expect("sample_1.png: the PNG image is cut short");
  const auto large = write_png({64, 64, 1, std::vector<std::uint8_t>(64 * 64)});
  write(first, {large.begin(), large.end()});
  expect("is 64 × 64 pixels, the images before it 32 × 32");
  std::filesystem::remove(first);
  expect("sample_1.png, which is missing; unpack the archive again");
  write(folder_ / "metadata/1.npy", "imgs/1 sample_0.png 0 1\nimgs/1 sample_1.png 1\n");
  expect("metadata/1.npy:2: the fourth field is \"\", expected the label 0 or 1");
  write(folder_ / "metadata/1.npy", "\x93NUMPY\x01");
  expect("1.npy: is an array of NumPy");
  std::filesystem::remove_all(folder_ / "imgs");
  expect("the folder imgs is missing");
}

TEST_F(PathfinderFolder, SurvivesDamagedMetadata) {
  std::filesystem::remove(folder_ / "metadata/0.npy");
  bytes::Bytes sound;
  for (const char c : contents(folder_ / "metadata/1.npy"))
    sound.push_back(static_cast<std::byte>(c));
  bytes::Mutator mutator(5);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const bytes::Bytes damaged = mutator.mutate(sound, sound);
    write(folder_ / "metadata/1.npy", {reinterpret_cast<const char*>(damaged.data()), damaged.size()});
    try {
      read_path(folder_.path());
    } catch (const FormatError&) {
      ++refused;
    } catch (const bytes::FileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 30);
  EXPECT_LT(refused, 300);
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

TEST(Lra, TasksAreFoundInTheirLayouts) {
  const ScratchFolder folder;
  write(folder / "basic_train.tsv", "Source\tTarget\n");
  EXPECT_FALSE(holds_lra(folder.path().string() + "/")) << "one task, which is described file by file";
  std::filesystem::remove(folder / "basic_train.tsv");
  EXPECT_FALSE(holds_lra(folder.path()));
  make_folder(folder / "aclImdb");
  for (const char* const part : {"aclImdb/train", "aclImdb/test"}) {
    make_folder(folder / part);
    make_folder(folder / (std::string(part) + "/pos"));
    make_folder(folder / (std::string(part) + "/neg"));
    write(folder / (std::string(part) + "/pos/0_9.txt"), "good");
    write(folder / (std::string(part) + "/neg/0_2.txt"), "bad");
  }
  std::string records;
  for (char i = 0; i < 10; ++i)
    records += grey_record(static_cast<char>(i % 2), 9);
  write(folder / "pathfinder32.bin", records);
  make_folder(folder / "aan");
  write(folder / "aan/new_aan_pairs.train.tsv", "1.0\ta\tb\tc\td\n0.0\ta\tb\tc\n");
  ASSERT_TRUE(holds_lra(folder.path()));
  const LraReport report = check_lra(folder.path());
  const auto finding = [&](const std::string& task, const std::string& part) {
    return *std::ranges::find_if(
        report.findings, [&](const LraFinding& found) { return found.where.task == task && found.where.part == part; });
  };
  EXPECT_EQ(finding("text", "train").what.records, 2u);
  EXPECT_EQ(finding("text", "test").where.published, 25'000u);
  EXPECT_EQ(finding("pathfinder", "train").what.records, 8u);
  EXPECT_EQ(finding("pathfinder", "validation").what.records, 1u);
  EXPECT_EQ(finding("pathfinder", "test").where.path, (folder / "pathfinder32.bin").string() + "@90-100%");
  EXPECT_EQ(finding("listops", "train").where.path, "");
  EXPECT_EQ(finding("retrieval", "train").what.error_count, 1u);
  EXPECT_EQ(finding("text", "train").what.sha256.size(), 64u);
  EXPECT_NE(finding("text", "train").what.sha256, finding("pathfinder", "train").what.sha256);
  EXPECT_FALSE(report.sound());
  EXPECT_THAT(report.to_text(), AllOf(HasSubstr("8 examples, published: 160000"), HasSubstr("missing; looked for"),
                                      HasSubstr("new_aan_pairs.train.tsv:2: has 4 columns")));
  EXPECT_THAT(report.to_json(), HasSubstr("\"published\": 160000"));
}

}  // namespace
}  // namespace dba::data
