#include "dba/bytes/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "dba/bytes/errors.h"
#include "scratch_folder.h"

namespace dba::bytes {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::byte> numbered_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(i * 37 + 11);
  return bytes;
}

// A file with this header, its length stated truthfully, and so many bytes of data.
std::vector<std::byte> file_with(const std::string& header, std::size_t data_size) {
  std::vector<std::byte> bytes;
  for (int shift = 0; shift < 64; shift += 8)
    bytes.push_back(static_cast<std::byte>(header.size() >> shift));
  for (const char c : header)
    bytes.push_back(static_cast<std::byte>(c));
  const auto data = numbered_bytes(data_size);
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

void expect_refused(const std::vector<std::byte>& bytes, const std::string& reason) {
  EXPECT_THAT([&] { SafetensorsFile::parse(bytes, "evil.safetensors"); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("evil.safetensors: "), HasSubstr(reason))));
}

void expect_equal(const TensorView& actual, const TensorView& expected) {
  EXPECT_EQ(actual.name, expected.name);
  EXPECT_EQ(actual.dtype, expected.dtype);
  EXPECT_EQ(actual.shape, expected.shape);
  EXPECT_TRUE(std::ranges::equal(actual.data, expected.data)) << expected.name;
}

TEST(Safetensors, EveryDTypeComesBack) {
  const auto data = numbered_bytes(6 * 8);
  std::vector<TensorView> tensors;
  for (const DType dtype : kAllDTypes) {
    tensors.push_back({std::string(name_of(dtype)), dtype, {2, 3}, std::span(data).first(6 * size_of(dtype))});
  }
  const ScratchFolder folder;
  write_safetensors(folder / "all.safetensors", tensors);
  const auto file = SafetensorsFile::open(folder / "all.safetensors");
  ASSERT_EQ(file.tensors().size(), kAllDTypes.size());
  for (const auto& expected : tensors) {
    const TensorView* const actual = file.find(expected.name);
    ASSERT_NE(actual, nullptr) << expected.name;
    expect_equal(*actual, expected);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(actual->data.data()) % size_of(expected.dtype), 0u) << expected.name;
  }
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(Safetensors, DTypeNamesComeBack) {
  for (const DType dtype : kAllDTypes)
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  EXPECT_EQ(parse_dtype("f32"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(Safetensors, ScalarsEmptyTensorsUnicodeAndMetadataComeBack) {
  const auto data = numbered_bytes(12);
  const std::vector<TensorView> tensors = {
      {"scalar", DType::f32, {}, std::span(data).first(4)},
      {"empty", DType::f64, {3, 0, 5}, {}},
      {"größe.注意.🙂", DType::i16, {1, 2}, std::span(data).first(4)},
      {"quote\" backslash\\ newline\n zero" + std::string(1, '\0'), DType::u8, {12}, data},
  };
  const Metadata metadata = {{"format", "pt"}, {"", "empty key"}, {"Überschrift", "line\nbreak \"quoted\""}};
  const auto bytes = encode_safetensors(tensors, metadata);
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& expected : tensors) {
    ASSERT_NE(file.find(expected.name), nullptr) << expected.name;
    expect_equal(*file.find(expected.name), expected);
  }
  EXPECT_EQ(file.metadata(), metadata);
}

TEST(Safetensors, FileWithoutTensorsComesBack) {
  const auto bytes = encode_safetensors({});
  EXPECT_EQ(bytes.size(), 16u);
  EXPECT_TRUE(SafetensorsFile::parse(bytes).tensors().empty());
}

TEST(Safetensors, TheSameTensorsGiveTheSameFileWhateverTheirOrder) {
  const auto data = numbered_bytes(8);
  std::vector<TensorView> tensors = {{"b", DType::u8, {3}, std::span(data).first(3)},
                                     {"c", DType::f64, {1}, data},
                                     {"a", DType::f32, {1}, std::span(data).first(4)}};
  const auto bytes = encode_safetensors(tensors);
  std::reverse(tensors.begin(), tensors.end());
  EXPECT_EQ(encode_safetensors(tensors), bytes);
  std::vector<std::string> names;
  const auto file = SafetensorsFile::parse(bytes);
  for (const auto& tensor : file.tensors())
    names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("c", "a", "b"));
}

TEST(Safetensors, TensorsAreListedInTheOrderOfTheirDataNotOfTheHeader) {
  const auto bytes = file_with(R"({"late":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
                               R"("early":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("none":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                               3);
  const auto file = SafetensorsFile::parse(bytes);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "early");
  EXPECT_EQ(file.tensors()[1].name, "none");
  EXPECT_EQ(file.tensors()[2].name, "late");
  EXPECT_EQ(file.tensors()[2].data[1], numbered_bytes(3)[2]);
}

TEST(Safetensors, MovedFileKeepsItsBytes) {
  const ScratchFolder folder;
  const auto data = numbered_bytes(5);
  const std::vector<TensorView> tensors = {{"w", DType::u8, {5}, data}};
  write_safetensors(folder / "w", tensors);
  auto first = SafetensorsFile::open(folder / "w");
  const SafetensorsFile second = std::move(first);
  ASSERT_NE(second.find("w"), nullptr);
  expect_equal(*second.find("w"), tensors[0]);
}

struct Malformed {
  const char* name;
  std::string header;
  std::size_t data_size;
  std::string reason;
};

std::ostream& operator<<(std::ostream& stream, const Malformed& malformed) {
  return stream << malformed.name;
}

class MalformedHeader : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedHeader, IsRefusedWithTheReason) {
  expect_refused(file_with(GetParam().header, GetParam().data_size), GetParam().reason);
}

// The tensor "w", with this text for its fields.
std::string w(const std::string& fields) {
  return "{\"w\":{" + fields + "}}";
}

std::string w(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return w("\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
}

std::string two(const std::string& first_offsets, const std::string& second_offsets) {
  return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first_offsets +
         R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second_offsets + "}}";
}

std::string many_dimensions() {
  std::string shape = "[1";
  for (std::size_t i = 0; i < kMostDimensions; ++i)
    shape += ",1";
  return shape + "]";
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, MalformedHeader,
    testing::Values(
        Malformed{"NoObject", "[]", 0, "does not start with '{'"},
        Malformed{"LeadingSpace", " {}", 0, "does not start with '{'"},
        Malformed{"NoHeader", "", 0, "does not start with '{'"},
        Malformed{"UnfinishedJson", "{\"w\":", 0, "the header is not valid JSON at byte "},
        Malformed{"TextAfterObject", "{} x", 0, "the header is not valid JSON at byte "},
        Malformed{"SecondObject", "{}{}", 0, "the header is not valid JSON at byte "},
        Malformed{"ZeroByteAfterObject", std::string("{}\0{", 4), 0, "not valid JSON at byte 2: zero byte"},
        Malformed{"BadUtf8", "{\"\xff\":1}", 0, "the header is not valid JSON at byte "},
        Malformed{"LoneSurrogate", R"({"\ud800":1})", 0, "the header is not valid JSON at byte "},
        Malformed{"HugeNumber", w("U8", "[1e999]", "[0,1]"), 1, "the header is not valid JSON at byte "},
        Malformed{"TensorIsNumber", R"({"w":1})", 0, "the value of \"w\" must be an object, found a number"},
        Malformed{"TensorIsArray", R"({"w":[]})", 0, "the value of \"w\" must be an object, found an array"},
        Malformed{"TensorIsNull", R"({"w":null})", 0, "the value of \"w\" must be an object, found null"},
        Malformed{"EmptyName", R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "empty name"},
        Malformed{"DuplicateName",
                  R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                  2, "the name \"w\" occurs twice"},
        Malformed{"DuplicateField", w(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1,
                  "tensor \"w\": has dtype twice"},
        Malformed{"UnknownField", w(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1])"), 1,
                  "tensor \"w\": unknown key \"strides\""},
        Malformed{"NoDType", w(R"("shape":[1],"data_offsets":[0,1])"), 1, "tensor \"w\": has no dtype"},
        Malformed{"NoShape", w(R"("dtype":"U8","data_offsets":[0,1])"), 1, "tensor \"w\": has no shape"},
        Malformed{"NoOffsets", w(R"("dtype":"U8","shape":[1])"), 1, "tensor \"w\": has no data_offsets"},
        Malformed{"UnknownDType", w("F31", "[1]", "[0,4]"), 4, "tensor \"w\": unknown dtype \"F31\""},
        Malformed{"DTypeIsNumber", w(R"("dtype":3)"), 0, "tensor \"w\": dtype must be a string, found a number"},
        Malformed{"DTypeIsArray", w(R"("dtype":["U8"])"), 0, "tensor \"w\": dtype must be a string, found an array"},
        Malformed{"ShapeIsString", w(R"("shape":"1")"), 0,
                  "tensor \"w\": shape must be an array of integers, found a string"},
        Malformed{"ShapeIsObject", w(R"("shape":{})"), 0,
                  "tensor \"w\": shape must be an array of integers, found an object"},
        Malformed{"NestedShape", w("U8", "[[1]]", "[0,1]"), 1,
                  "tensor \"w\": dimension 0 must be an integer, found an array"},
        Malformed{"NegativeDimension", w("U8", "[2,-3]", "[0,6]"), 6, "tensor \"w\": dimension 1 is negative: -3"},
        Malformed{"FractionalDimension", w("U8", "[1.0]", "[0,1]"), 1,
                  "tensor \"w\": dimension 0 must be an integer, found the number \"1.0\""},
        Malformed{"BooleanDimension", w("U8", "[true]", "[0,1]"), 1,
                  "tensor \"w\": dimension 0 must be an integer, found true or false"},
        Malformed{"DimensionBeyondInt64", w("U8", "[9223372036854775808]", "[0,1]"), 1,
                  "tensor \"w\": dimension 0 is too large: 9223372036854775808"},
        Malformed{"DimensionBeyondUint64", w("U8", "[18446744073709551616]", "[0,1]"), 1,
                  "tensor \"w\": dimension 0 must be an integer, found the number"},
        Malformed{"TooManyDimensions", w("U8", many_dimensions(), "[0,1]"), 1,
                  "tensor \"w\": the shape has more than 64 dimensions"},
        Malformed{"OverflowingShape", w("F32", "[1099511627776,1099511627776]", "[0,4]"), 4,
                  "tensor \"w\": the size of shape [1099511627776, 1099511627776] overflows"},
        Malformed{"OverflowHiddenByZero", w("F32", "[1099511627776,1099511627776,0]", "[0,0]"), 0,
                  "tensor \"w\": the size of shape [1099511627776, 1099511627776, 0] overflows"},
        Malformed{"OverflowByElementSize", w("F64", "[2305843009213693952]", "[0,8]"), 8, "overflows"},
        Malformed{"ShapeTooSmall", w("F32", "[1]", "[0,8]"), 8,
                  "tensor \"w\": data_offsets [0, 8) span 8 bytes, but shape [1] of F32 takes 4"},
        Malformed{"ShapeTooLarge", w("F32", "[3]", "[0,8]"), 8,
                  "tensor \"w\": data_offsets [0, 8) span 8 bytes, but shape [3] of F32 takes 12"},
        Malformed{"OneOffset", w("U8", "[1]", "[0]"), 1, "tensor \"w\": data_offsets must be two numbers, not 1"},
        Malformed{"ThreeOffsets", w("U8", "[1]", "[0,1,2]"), 1, "tensor \"w\": data_offsets has more than 2 numbers"},
        Malformed{"NegativeOffset", w("U8", "[1]", "[-1,0]"), 1, "tensor \"w\": data_offsets[0] is negative: -1"},
        Malformed{"StringOffset", w("U8", "[1]", "[0,\"1\"]"), 1,
                  "tensor \"w\": data_offsets[1] must be an integer, found a string"},
        Malformed{"OffsetsOutOfOrder", w("U8", "[1]", "[1,0]"), 1,
                  "tensor \"w\": data_offsets [1, 0) are not in order"},
        Malformed{"OffsetsBeyondFile", w("U8", "[4]", "[0,4]"), 3,
                  "tensor \"w\": data_offsets [0, 4) reach beyond the 3 bytes of data"},
        Malformed{"HugeOffsets", w("U8", "[1]", "[18446744073709551614,18446744073709551615]"), 1,
                  "tensor \"w\": data_offsets [18446744073709551614, 18446744073709551615) reach beyond"},
        Malformed{"DataAfterTensors", w("U8", "[4]", "[0,4]"), 5,
                  "the tensors end at byte 4 of the data, the file at 5"},
        Malformed{"DataWithoutTensors", "{}", 1, "the tensors end at byte 0 of the data, the file at 1"},
        Malformed{"HoleAtStart", w("U8", "[1]", "[1,2]"), 2, "tensor \"w\": data_offsets [1, 2) leave a hole"},
        Malformed{"HoleBetween", two("[0,2]", "[3,5]"), 5, "tensor \"b\": data_offsets [3, 5) leave a hole"},
        Malformed{"Overlap", two("[0,2]", "[1,3]"), 3, "tensor \"b\": data_offsets [1, 3) overlap"},
        Malformed{"SameData", two("[0,2]", "[0,2]"), 2, "tensor \"b\": data_offsets [0, 2) overlap"},
        Malformed{"MetadataIsString", R"({"__metadata__":"x"})", 0,
                  "the value of \"__metadata__\" must be an object, found a string"},
        Malformed{"MetadataNumber", R"({"__metadata__":{"epoch":3}})", 0,
                  "__metadata__ must map strings to strings; the value of \"epoch\" is a number"},
        Malformed{"MetadataNested", R"({"__metadata__":{"config":{}}})", 0,
                  "__metadata__ must map strings to strings; the value of \"config\" is an object"},
        Malformed{"MetadataDuplicateKey", R"({"__metadata__":{"a":"1","a":"2"}})", 0,
                  "the key \"a\" occurs twice in __metadata__"},
        Malformed{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0,
                  "the name \"__metadata__\" occurs twice"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(Safetensors, TruncationAtEveryByteIsRefused) {
  const auto data = numbered_bytes(8);
  const std::vector<TensorView> tensors = {{"a", DType::f32, {2}, data},
                                           {"b", DType::u8, {3}, std::span(data).first(3)}};
  const auto whole = encode_safetensors(tensors, {{"key", "value"}});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    // A copy of exactly this length, so that the address sanitiser sees reading beyond it.
    const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THROW(SafetensorsFile::parse(part), FormatError) << length;
  }
  EXPECT_EQ(SafetensorsFile::parse(whole).tensors().size(), 2u);
}

TEST(Safetensors, StatedHeaderLengthIsCheckedBeforeUse) {
  auto bytes = file_with("{}      ", 0);
  bytes[0] = std::byte{9};
  expect_refused(bytes, "the header is stated to have 9 bytes, but only 8 follow");
  bytes[3] = std::byte{5};  // 83,886,089
  expect_refused(bytes, "the header is stated to have 83886089 bytes, but only 8 follow");
  bytes[7] = std::byte{0x80};
  expect_refused(bytes, "more than the 100000000 allowed");
  std::fill_n(bytes.begin(), 8, std::byte{0xff});
  expect_refused(bytes, "the header is stated to have 18446744073709551615 bytes, more than the 100000000 allowed");
}

TEST(Safetensors, DeepNestingIsRefusedWithoutRecursion) {
  constexpr std::size_t kDepth = 1'000'000;
  expect_refused(file_with("{\"w\":" + std::string(kDepth, '['), 0), "the value of \"w\" must be an object");
  expect_refused(file_with(R"({"w":{"shape":)" + std::string(kDepth, '['), 0), "dimension 0 must be an integer");
  std::string objects = "{";
  for (std::size_t i = 0; i < kDepth; ++i)
    objects += R"("w":{)";
  expect_refused(file_with(objects, 0), "tensor \"w\": unknown key \"w\"");
}

TEST(Safetensors, MessagesStayShortAndPrintable) {
  try {
    SafetensorsFile::parse(file_with("{\"" + std::string(100'000, 'n') + "\\u0007\":7}", 0));
    FAIL() << "parsed";
  } catch (const FormatError& error) {
    EXPECT_LT(std::string(error.what()).size(), 300u);
  }
  expect_refused(file_with(R"({"bell\u0007":7})", 0), R"("bell\x07")");
  expect_refused(file_with("{\"" + std::string(100'000, 'n') + "\x01\":7}", 0), "…");
}

TEST(Safetensors, UnreadableFilesAreNamed) {
  const ScratchFolder folder;
  EXPECT_THAT([&] { SafetensorsFile::open(folder / "missing"); },
              ThrowsMessage<FileError>(AllOf(HasSubstr("cannot open "), HasSubstr((folder / "missing").string()),
                                             HasSubstr("No such file or directory"))));
  EXPECT_THAT([&] { SafetensorsFile::open(folder.path()); },
              ThrowsMessage<FileError>(AllOf(HasSubstr(folder.path().string()), HasSubstr("Is a directory"))));
  std::ofstream(folder / "empty").close();
  EXPECT_THAT([&] { SafetensorsFile::open(folder / "empty"); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr((folder / "empty").string()), HasSubstr("is empty"))));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { SafetensorsFile::open(folder / "pipe"); },
              ThrowsMessage<FileError>(HasSubstr("not a regular file")));
}

void expect_not_written(const std::vector<TensorView>& tensors, const Metadata& metadata, const std::string& reason) {
  const ScratchFolder folder;
  EXPECT_THAT([&] { write_safetensors(folder / "file", tensors, metadata); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(reason)));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, WriterRefusesWhatTheReaderWould) {
  const auto data = numbered_bytes(4);
  const auto one = [&data](const std::string& name, std::vector<std::int64_t> shape) {
    return TensorView{name, DType::u8, std::move(shape), data};
  };
  expect_not_written({one("", {4})}, {}, "a tensor has an empty name");
  expect_not_written({one("__metadata__", {4})}, {}, "the format reserves this name");
  expect_not_written({one("w", {4}), one("v", {4}), one("w", {4})}, {}, "the name \"w\" occurs twice");
  expect_not_written({one("w", {5})}, {}, "tensor \"w\": expected 5 bytes of data for its shape, got 4");
  expect_not_written({one("w", {-4})}, {}, "tensor \"w\": the shape has a negative dimension");
  expect_not_written({one("w", {std::int64_t{1} << 40, std::int64_t{1} << 40})}, {}, "its size overflows");
  expect_not_written({one("w", std::vector<std::int64_t>(65, 1))}, {}, "at most 64 dimensions, got 65");
  expect_not_written({one("\xc3", {4})}, {}, "the tensor name \"\xc3\" is not UTF-8");
  expect_not_written({}, {{"\xc3", ""}}, "the metadata key \"\xc3\" is not UTF-8");
  expect_not_written({}, {{"k", "\xc3"}}, "the metadata value \"\xc3\" is not UTF-8");
  expect_not_written({}, {{"k", std::string(kLongestHeader, 'x')}}, "write fewer tensors or less metadata");
}

}  // namespace
}  // namespace dba::bytes
