#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dba::bytes {

/// Element types of a safetensors file, narrow ones first.
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  f64,
  i64,
  u64,
};

inline constexpr std::array kAllDTypes = {
    DType::boolean, DType::u8,  DType::i8,  DType::f8_e5m2, DType::f8_e4m3, DType::i16, DType::u16, DType::f16,
    DType::bf16,    DType::i32, DType::u32, DType::f32,     DType::f64,     DType::i64, DType::u64,
};

/// Bytes of one element.
std::size_t size_of(DType dtype);
/// The name in the file: "BOOL", "F8_E4M3", "BF16".
std::string_view name_of(DType dtype);
/// Nothing for an unknown name.
std::optional<DType> parse_dtype(std::string_view name);

}  // namespace dba::bytes
