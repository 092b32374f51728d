#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/bytes/safetensors.h"
#include "safetensors_header.h"

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

namespace dba::bytes {
namespace {

constexpr std::size_t kAlignment = 8;

std::string json_string(const std::string& text, const std::string& role) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw std::invalid_argument("write_safetensors: " + role + " " + in_quotes(text) + " is not UTF-8");
  }
}

void check(const TensorView& tensor) {
  const std::string start = "write_safetensors: tensor " + in_quotes(tensor.name) + ": ";
  if (tensor.name.empty())
    throw std::invalid_argument("write_safetensors: a tensor has an empty name");
  if (tensor.name == kMetadataKey)
    throw std::invalid_argument(start + "the format reserves this name; choose another");
  if (tensor.shape.size() > kMostDimensions) {
    throw std::invalid_argument(start + "expected at most " + std::to_string(kMostDimensions) + " dimensions, got " +
                                std::to_string(tensor.shape.size()));
  }
  const auto expected = byte_count(tensor.dtype, tensor.shape);
  if (!expected)
    throw std::invalid_argument(start + "the shape has a negative dimension or its size overflows");
  if (*expected != tensor.data.size()) {
    throw std::invalid_argument(start + "expected " + std::to_string(*expected) + " bytes of data for its shape, got " +
                                std::to_string(tensor.data.size()));
  }
}

// Wide types first, then by name: after a header of a multiple of 8 bytes every tensor is aligned to its element.
std::vector<const TensorView*> in_file_order(std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  for (const auto& tensor : tensors)
    order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) { return a->name < b->name; });
  const auto twice = std::adjacent_find(order.begin(), order.end(),
                                        [](const TensorView* a, const TensorView* b) { return a->name == b->name; });
  if (twice != order.end()) {
    throw std::invalid_argument("write_safetensors: the name " + in_quotes((*twice)->name) + " occurs twice");
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const TensorView* a, const TensorView* b) { return a->dtype > b->dtype; });
  return order;
}

// The length and the header, padded.
std::string encode_header(const std::vector<const TensorView*>& order, const Metadata& metadata) {
  std::string text;
  const auto open_item = [&text](const std::string& key) { text += (text.empty() ? "{" : ",") + key + ":"; };
  if (!metadata.empty()) {
    open_item("\"" + std::string(kMetadataKey) + "\"");
    char separator = '{';
    for (const auto& [key, value] : metadata) {
      text += separator + json_string(key, "the metadata key") + ":" + json_string(value, "the metadata value");
      separator = ',';
    }
    text += "}";
  }
  std::size_t position = 0;
  for (const TensorView* tensor : order) {
    open_item(json_string(tensor->name, "the tensor name"));
    text += "{\"dtype\":\"" + std::string(name_of(tensor->dtype)) + "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor->shape.size(); ++i)
      text += (i ? "," : "") + std::to_string(tensor->shape[i]);
    text += "],\"data_offsets\":[" + std::to_string(position) + ",";
    position += tensor->data.size();
    text += std::to_string(position) + "]}";
  }
  text += text.empty() ? "{}" : "}";
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (text.size() > kLongestHeader) {
    throw std::invalid_argument("write_safetensors: the header would have " + std::to_string(text.size()) +
                                " bytes, the format allows " + std::to_string(kLongestHeader) +
                                "; write fewer tensors or less metadata");
  }
  std::string prefix;
  for (int shift = 0; shift < 64; shift += 8)
    prefix += static_cast<char>(std::uint64_t{text.size()} >> shift & 0xff);
  return prefix + text;
}

struct Encoding {
  std::string header;
  std::vector<const TensorView*> order;

  Encoding(std::span<const TensorView> tensors, const Metadata& metadata) {
    for (const auto& tensor : tensors)
      check(tensor);
    order = in_file_order(tensors);
    header = encode_header(order, metadata);
  }

  std::vector<std::span<const std::byte>> parts() const {
    std::vector<std::span<const std::byte>> result = {std::as_bytes(std::span(header))};
    for (const TensorView* tensor : order)
      result.push_back(tensor->data);
    return result;
  }
};

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  const Encoding encoding(tensors, metadata);
  atomic_write(path, encoding.parts());
}

std::vector<std::byte> encode_safetensors(std::span<const TensorView> tensors, const Metadata& metadata) {
  const Encoding encoding(tensors, metadata);
  std::vector<std::byte> bytes;
  for (const auto part : encoding.parts())
    bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

}  // namespace dba::bytes
