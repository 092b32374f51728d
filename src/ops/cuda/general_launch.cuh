#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/cuda/general_sequences.cuh"
#include "ops/cuda/general_tiles.cuh"

/// The host's side of a launch: what the device offers, how wide tiles are, how rows are split, where scratch lies.
namespace dba::ops::cuda::general {

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}
inline int multiprocessors() {
  return std::max(device_attribute(cudaDevAttrMultiProcessorCount), 1);
}

/// Columns of a tile: 512 bytes a row, or 256 where the matrix is no wider than that, which leaves registers and
/// shared memory for more blocks at a time. A wider matrix is taken in chunks.
template <class E>
constexpr int kWideTile = 512 / static_cast<int>(sizeof(E));
template <class E>
constexpr int kNarrowTile = 256 / static_cast<int>(sizeof(E));

inline int chunks_of(int width, int tile_width) {
  return std::max(1, (width + tile_width - 1) / tile_width);
}

/// Calls launch(Math{}, std::integral_constant<int, tile width>{}).
template <class Math, class Launch>
auto with_width(int width, const Launch& launch) {
  using E = typename Math::Element;
  if (width <= kNarrowTile<E>) {
    return launch(Math{}, std::integral_constant<int, kNarrowTile<E>>{});
  }
  return launch(Math{}, std::integral_constant<int, kWideTile<E>>{});
}
template <class Launch>
auto with_arithmetic(Element element, bool tf32, int width, const Launch& launch) {
  switch (element) {
    case Element::float16:
      return with_width<Float16>(width, launch);
    case Element::bfloat16:
      return with_width<Bfloat16>(width, launch);
    default:
      return tf32 ? with_width<TensorFloat32>(width, launch) : with_width<Float32>(width, launch);
  }
}

/// The tile width that with_arithmetic chooses.
inline int tile_width(Element element, int width) {
  const int element_bytes = element == Element::float32 ? 4 : 2;
  return (width * element_bytes <= 256 ? 256 : 512) / element_bytes;
}
/// What a block of eight warps may take of shared memory: two stages of tiles in compress and its backward, 128 rows of
/// M in restore.
constexpr int kRoomForEightWarps = 216 * 1024;

/// The passes make the scores of a tile anew for every chunk of the columns they sum or write, and fetch all tiles
/// again. Up to twice the wide tile one chunk of eight warps serves, where the device has room for it.
inline bool doubles_tile(Element element, int width) {
  const int tile = tile_width(element, width);
  return element != Element::float32 && width > tile && width <= 2 * tile &&
         device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= kRoomForEightWarps;
}
inline int doubled_tile_width(Element element, int width) {
  return tile_width(element, width) * (doubles_tile(element, width) ? 2 : 1);
}
/// Blocks on a multiprocessor: those of eight warps are alone there.
inline int resident_blocks(Element element, int width) {
  return doubles_tile(element, width) ? 1 : kResidentBlocks;
}
/// Calls launch(Math{}, std::integral_constant<int, doubled_tile_width>{}).
template <class Launch>
auto with_doubled_tile(Element element, bool tf32, int width, const Launch& launch) {
  if (!doubles_tile(element, width)) {
    return with_arithmetic(element, tf32, width, launch);
  }
  using Doubled = std::integral_constant<int, 2 * kWideTile<__half>>;
  return element == Element::float16 ? launch(Float16{}, Doubled{}) : launch(Bfloat16{}, Doubled{});
}
inline size_t element_bytes(Element element) {
  return element == Element::float32 ? 4 : 2;
}

/// As many ranges as give every multiprocessor its `resident` blocks, where a range is `blocks` blocks' work.
inline Split split_rows(int64_t rows, int64_t blocks, int resident = kResidentBlocks) {
  constexpr int kMostRanges = 1024;
  const int64_t wanted =
      std::clamp<int64_t>(resident * multiprocessors() / std::max<int64_t>(blocks, 1), 1, kMostRanges);
  const int64_t share = (rows + wanted - 1) / wanted;
  Split split;
  split.rows = rows;
  split.range_rows = std::max<int64_t>((share + kTileRows - 1) / kTileRows, 1) * kTileRows;
  split.ranges = static_cast<int>(std::max<int64_t>((rows + split.range_rows - 1) / split.range_rows, 1));
  return split;
}

/// Whether rows that begin at `data` and lie `stride` elements apart all begin at multiples of 16 bytes.
inline bool aligned_rows(const void* data, int64_t stride, size_t element_size) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * static_cast<int64_t>(element_size) % 16 == 0;
}
inline bool aligned_rows(const ScoreOperand& rows, int width, size_t element_size) {
  return (rows.each_rows == 0 ||
          (aligned_rows(rows.each, width, element_size) && aligned_rows(rows.each, rows.each_stride, element_size))) &&
         (rows.shared_rows == 0 || aligned_rows(rows.shared, width, element_size));
}

/// Hands out pieces of the workspace, or only adds up their sizes where it begins at null.
class Scratch {
 public:
  explicit Scratch(void* begin) : begin_(static_cast<char*>(begin)) {}

  template <class T>
  T* take(int64_t count) {
    T* result = begin_ == nullptr || count == 0 ? nullptr : reinterpret_cast<T*>(begin_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return result;
  }
  size_t used() const {
    return used_;
  }

 private:
  char* begin_;
  size_t used_ = 0;
};

/// How many tiles deep to prefetch: two where that still leaves room for two blocks on a multiprocessor, or where one
/// alone leaves no room for a second block anyway.
inline int stages_for(int bytes_with_one, int bytes_with_two) {
  constexpr int kReserved = 1024;  // what the system takes of every block's share
  const int of_block = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int of_processor = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  const bool room_for_two_blocks = 2 * (bytes_with_two + kReserved) <= of_processor;
  const bool no_second_block = 2 * (bytes_with_one + kReserved) > of_processor;
  return bytes_with_two <= of_block && (room_for_two_blocks || no_second_block) ? 2 : 1;
}

template <class... Parameters, class... Values>
cudaError_t launch_kernel(void (*kernel)(Parameters...), int64_t blocks, int threads, int shared_bytes,
                          cudaStream_t stream, const Values&... values) {
  if (blocks == 0) {
    return cudaSuccess;
  }
  if (shared_bytes > 48 * 1024) {
    const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (status != cudaSuccess) {
      return status;
    }
  }
  kernel<<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(shared_bytes), stream>>>(values...);
  return cudaGetLastError();
}

}  // namespace dba::ops::cuda::general
