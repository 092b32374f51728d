#include <algorithm>
#include <string>
#include <vector>

#include "dba/bytes/safetensors.h"
#include "fuzz.h"

namespace dba::bytes {
namespace {

constexpr std::size_t kPrefix = 8;

std::size_t stated_header_length(const Bytes& file) {
  std::size_t length = 0;
  for (std::size_t i = kPrefix; i-- > 0;)
    length = length << 8 | std::to_integer<std::size_t>(file[i]);
  return length;
}

// Whatever was inserted or removed counts as header, so that the data keep their size.
void repair_header_length(const Bytes& original, Bytes& damaged) {
  const std::size_t data_size = original.size() - kPrefix - stated_header_length(original);
  if (damaged.size() < kPrefix + data_size)
    return;
  const std::size_t length = damaged.size() - kPrefix - data_size;
  for (std::size_t i = 0; i < kPrefix; ++i)
    damaged[i] = static_cast<std::byte>(length >> 8 * i);
}

std::vector<Bytes> sound_files() {
  Bytes data(64);
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<std::byte>(i * 29 + 3);
  const std::span<const std::byte> all(data);
  std::vector<TensorView> every_dtype;
  for (const DType dtype : kAllDTypes) {
    every_dtype.push_back({"t." + std::string(name_of(dtype)), dtype, {2, 2}, all.first(4 * size_of(dtype))});
  }
  const std::vector<TensorView> odd = {{"scalar", DType::f32, {}, all.first(4)},
                                       {"empty", DType::bf16, {4, 0}, {}},
                                       {"größe\n", DType::i8, {1, 5, 1}, all.first(5)}};
  std::vector<TensorView> many;
  for (int i = 0; i < 40; ++i) {
    many.push_back({"layers." + std::to_string(i) + ".weight", DType::f32, {1, 4}, all.first(16)});
  }
  return {encode_safetensors({}), encode_safetensors(every_dtype, {{"format", "pt"}, {"step", "100"}}),
          encode_safetensors(odd, {{"ключ", "значение"}}), encode_safetensors(many)};
}

void read_and_check(const Bytes& bytes) {
  const SafetensorsFile file = SafetensorsFile::parse(bytes, "fuzzed");
  const std::byte* position = bytes.data() + kPrefix + stated_header_length(bytes);
  unsigned sum = 0;
  for (const TensorView& tensor : file.tensors()) {
    EXPECT_FALSE(tensor.name.empty());
    EXPECT_EQ(file.find(tensor.name), &tensor);
    EXPECT_EQ(byte_count(tensor.dtype, tensor.shape), tensor.data.size());
    EXPECT_EQ(tensor.data.data(), position);
    position += tensor.data.size();
    // Touches every byte, for the address sanitiser to see.
    for (const std::byte b : tensor.data)
      sum += std::to_integer<unsigned>(b);
  }
  EXPECT_EQ(position, bytes.data() + bytes.size());
  EXPECT_LE(sum, 255 * bytes.size());

  const auto again_bytes = encode_safetensors(file.tensors(), file.metadata());
  const SafetensorsFile again = SafetensorsFile::parse(again_bytes, "written again");
  EXPECT_EQ(again.metadata(), file.metadata());
  EXPECT_EQ(again.tensors().size(), file.tensors().size());
  for (const TensorView& tensor : file.tensors()) {
    const TensorView* const copy = again.find(tensor.name);
    ASSERT_NE(copy, nullptr);
    EXPECT_EQ(copy->dtype, tensor.dtype);
    EXPECT_EQ(copy->shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(copy->data, tensor.data));
  }
}

TEST(FuzzSafetensors, DamagedFilesParseConsistentlyOrThrowFormatError) {
  const FuzzTarget target{sound_files(), read_and_check, repair_header_length};
  for (const Bytes& file : target.files) {
    read_and_check(file);
  }
  constexpr std::size_t kIterations = 15'000;
  const FuzzCounts counts = fuzz(target, /*seed=*/20'240'817, kIterations, /*largest_request=*/1 << 20);
  ASSERT_EQ(counts.accepted + counts.refused, kIterations);
  // Were nearly all files refused at the door, or nearly none damaged where it matters, this would test little.
  EXPECT_GT(counts.accepted, kIterations / 50);
  EXPECT_GT(counts.refused, kIterations / 2);
}

}  // namespace
}  // namespace dba::bytes
