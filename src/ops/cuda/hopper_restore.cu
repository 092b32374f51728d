#include <cuda_runtime.h>

#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_merge.cuh"
#include "ops/cuda/hopper_rows.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/slot_softmax.cuh"
#include "ops/cuda/tensor_map.h"

namespace dba::ops::cuda::hopper {
namespace {

/// A consumer's tile: 64 tokens, one row of the product each.
constexpr int kTokens = 64;
constexpr int kThreads = 384;
constexpr int kGroupThreads = 128;
constexpr int kWriters = 96;  // threads of the producer that write rows
constexpr int kMostStages = 8;
constexpr int kSharedLimit = 227 * 1024;
constexpr uint32_t kSite = 2;

struct RestoreKernel {
  int rows_in_all;
  int range_rows;
  SequenceBounds bounds;
  ScoreRowsView rows;
  int slots;        // S
  int slot_blocks;  // of 64
  int d_p;
  bool linear;
  int stages;
  int m_buffers;
  const int64_t* rng;
  uint32_t threshold;
  float keep_scale;
  int out_width;
  Bias out_bias;
  void* y;
};

/// What the producer says of a tile; `tokens` 0: there are no more.
struct TileNote {
  int sequence;
  int first_token;
  int row;
  int tokens;
  int part;    // counts the parts, to find M's buffer
  int leaves;  // the last tile that this consumer has of the part
};

/// Where things lie in shared memory: tiles, F, M's buffers, biases, notes, barriers.
template <int kPanels>
struct Layout {
  static constexpr int kTile = kPanels * kTokens * kPanelRowBytes;
  static constexpr int kBlock = kPanels * kBlockSlots * kPanelRowBytes;  // 64 rows of F or M
  int tiles, f, m, bias, out_bias, notes, barriers, bytes;

  __host__ __device__ Layout(int stages, int slot_blocks, int m_buffers) {
    tiles = 0;
    f = tiles + stages * kTile;
    m = f + slot_blocks * kBlock;
    bias = m + m_buffers * slot_blocks * kBlock;
    out_bias = bias + slot_blocks * kBlockSlots * 4;
    notes = out_bias + kPanels * kPanelColumns * 4;
    barriers = notes + kMostStages * static_cast<int>(sizeof(TileNote));
    bytes = barriers + (3 * kMostStages + 4) * 8 + 1024;
  }
};

template <class T, int kPanels>
struct Block {
  const RestoreKernel& k;
  unsigned char* shared;
  Layout<kPanels> at;

  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(shared + at.barriers) + stage;
  }
  __device__ uint64_t* empty(int stage) const {
    return full(kMostStages + stage);
  }
  /// The tile's place holds rows of Y.
  __device__ uint64_t* mixed(int stage) const {
    return full(2 * kMostStages + stage);
  }
  __device__ uint64_t* m_full(int buffer) const {
    return full(3 * kMostStages + buffer);
  }
  __device__ uint64_t* m_empty(int buffer) const {
    return full(3 * kMostStages + 2 + buffer);
  }
  __device__ TileNote& note(int stage) const {
    return reinterpret_cast<TileNote*>(shared + at.notes)[stage];
  }
  __device__ unsigned char* tile(int stage) const {
    return shared + at.tiles + stage * Layout<kPanels>::kTile;
  }
  __device__ unsigned char* m(int part) const {
    return shared + at.m + (part % k.m_buffers) * k.slot_blocks * Layout<kPanels>::kBlock;
  }
  __device__ int first_row() const {
    return min(k.rows_in_all, static_cast<int>(blockIdx.x) * k.range_rows);
  }
  __device__ int last_row() const {
    return min(k.rows_in_all, first_row() + k.range_rows);
  }

  /// One thread sends the tiles on their way.
  __device__ void feed(const CUtensorMap& map, const CUtensorMap& m_map, int first_sequence) {
    PartWalk walk(k.bounds, first_row(), last_row(), first_sequence);
    Part part;
    int stage = 0;
    uint32_t parity = 1;
    const auto advance = [&] {
      if (++stage == k.stages) {
        stage = 0;
        parity ^= 1;
      }
    };
    int index = 0;
    for (; walk.next(part); ++index) {
      const int buffer = index % k.m_buffers;
      barrier_wait(m_empty(buffer), (index / k.m_buffers & 1) ^ 1);
      barrier_expect(m_full(buffer), k.slot_blocks * Layout<kPanels>::kBlock);
      if (part.tokens <= kTokens) {  // one consumer has no tile of it, and nothing to let go
        for (int arrival = 0; arrival < 4 * kWarpArrivals; ++arrival) {
          barrier_arrive(m_empty(buffer));
        }
      }
      for (int slot_block = 0; slot_block < k.slot_blocks; ++slot_block) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          copy_box(m(index) + slot_block * Layout<kPanels>::kBlock + panel * kBlockSlots * kPanelRowBytes, &m_map,
                   panel * kPanelColumns, slot_block * kBlockSlots, part.sequence, m_full(buffer));
        }
      }
      for (int done = 0; done < part.tokens; done += kTokens) {
        barrier_wait(empty(stage), parity);
        note(stage) = {
            part.sequence, part.first_token() + done,        part.first + done, min(kTokens, part.tokens - done),
            index,         done + 2 * kTokens >= part.tokens};
        barrier_expect(full(stage), Layout<kPanels>::kTile);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          copy_box(tile(stage) + panel * kTokens * kPanelRowBytes, &map, panel * kPanelColumns, part.first + done,
                   full(stage));
        }
        advance();
      }
    }
    for (int consumer = 0; consumer < 2; ++consumer) {
      barrier_wait(empty(stage), parity);
      note(stage).tokens = 0;
      barrier_arrive(full(stage));
      advance();
    }
  }

  /// Three warps send finished rows to Y: whole tiles through the copy engine, the last ones of a part row by row.
  __device__ void write_tiles(const CUtensorMap& y_map, int writer) {
    int stage = 0;
    uint32_t parity = 0;
    while (true) {
      barrier_wait(full(stage), parity);
      const TileNote& tile_note = note(stage);
      if (tile_note.tokens == 0) {
        return;
      }
      barrier_wait(mixed(stage), parity);
      if (tile_note.tokens < kTokens) {
        write_some_rows(stage, writer);
      } else if (writer == 0) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          if (panel * kPanelColumns < k.out_width) {
            store_box(&y_map, panel * kPanelColumns, tile_note.row, tile(stage) + panel * kTokens * kPanelRowBytes);
          }
        }
        await_stored_boxes();
      }
      barrier_arrive_as_warp(empty(stage));
      if (++stage == k.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  __device__ void write_some_rows(int stage, int writer) {
    const TileNote& tile_note = note(stage);
    const int chunks = k.out_width / 8;
    auto* y = static_cast<T*>(k.y) + static_cast<int64_t>(tile_note.row) * k.out_width;
#pragma unroll 4
    for (int index = writer; index < tile_note.tokens * chunks; index += kWriters) {
      const int chunk = index % chunks;
      reinterpret_cast<uint4*>(y)[index] = *reinterpret_cast<const uint4*>(
          tile(stage) + chunk / 8 * kTokens * kPanelRowBytes + swizzled(index / chunks, chunk % 8));
    }
    publish_shared();  // the copy engine overwrites what was read here
  }
};

/// A warp group's tiles: every second one.
template <class T, int kPanels, bool kDropout>
class Consumer {
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Consumer(const Block<T, kPanels>& block, int which) : b(block), consumer(which) {
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(b.k.rng[0]), static_cast<uint64_t>(b.k.rng[1]), kSite, b.k.threshold};
    }
  }

  __device__ void run() {
    int stage = consumer;
    uint32_t parity = 0;
    while (stage >= b.k.stages) {
      stage -= b.k.stages;
      parity ^= 1;
    }
    int part = -1;
    while (true) {
      barrier_wait(b.full(stage), parity);
      const TileNote& note = b.note(stage);
      if (note.tokens == 0) {
        return;
      }
      // A tile of a part comes after the parts before it in M's buffer were let go, so that this round is meant.
      if (part != note.part) {
        part = note.part;
        barrier_wait(b.m_full(part % b.k.m_buffers), part / b.k.m_buffers & 1);
      }
      for (int slot_block = 0; slot_block < b.k.slot_blocks; ++slot_block) {
        score(stage, slot_block);
        weigh(note, slot_block);
        mix(part, slot_block);
      }
      if (note.leaves) {
        barrier_arrive_as_warp(b.m_empty(part % b.k.m_buffers));
      }
      put_in_place(stage);
      barrier_arrive_as_warp(b.mixed(stage));
      stage += 2;
      while (stage >= b.k.stages) {
        stage -= b.k.stages;
        parity ^= 1;
      }
    }
  }

 private:
  __device__ static int thread() {
    return recomputed(static_cast<int>(threadIdx.x)) % kGroupThreads;
  }
  __device__ static int lane() {
    return recomputed(static_cast<int>(threadIdx.x)) & 31;
  }

  /// scores = X Fᵀ for 64 slots.
  __device__ void score(int stage, int slot_block) {
    const uint64_t of_tile = descriptor_along_k(shared_address(b.tile(stage)));
    const uint64_t of_rows =
        descriptor_along_k(shared_address(b.shared + b.at.f + slot_block * Layout<kPanels>::kBlock));
    products_begin();
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const int offset = ((step / 4) * kTokens * kPanelRowBytes + (step % 4) * 32) / 16;
      multiply_shared<T, 64, kAlongK, kAlongK>(scores, of_tile + offset, of_rows + offset, step > 0);
    }
    products_commit();
    products_wait<0>();
    pin(scores);
  }

  __device__ void weigh(const TileNote& note, int slot_block) {
    const auto* bias = reinterpret_cast<const float2*>(b.shared + b.at.bias) + slot_block * kBlockSlots / 2;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 pair = bias[4 * j + (lane() & 3)];
      scores[4 * j] += pair.x;
      scores[4 * j + 1] += pair.y;
      scores[4 * j + 2] += pair.x;
      scores[4 * j + 3] += pair.y;
    }
    if (!b.k.linear) {
      with_slots(b.k.d_p, [&](auto slots) { softmax_over_groups<decltype(slots)::value>(scores); });
    }
    if constexpr (kDropout) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t bits = kept_tokens_by_slots(
            key, static_cast<uint32_t>(note.sequence), static_cast<uint32_t>(note.first_token + thread() / 32 * 16),
            static_cast<uint32_t>(slot_block * kBlockSlots + 8 * j + 2 * (lane() & 3)));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[4 * j + e] = (bits >> e) & 1 ? scores[4 * j + e] * b.k.keep_scale : 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      weights[i] = pack<T>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  /// sums += weights · M.
  __device__ void mix(int part, int slot_block) {
    const uint64_t of_m = descriptor_along_rows(shared_address(b.m(part) + slot_block * Layout<kPanels>::kBlock),
                                                kBlockSlots * kPanelRowBytes);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t fragment[4] = {weights[4 * step], weights[4 * step + 1], weights[4 * step + 2],
                                    weights[4 * step + 3]};
      multiply_register<T, kWidth, kAlongRows>(sums, fragment, of_m + step * 16 * kPanelRowBytes / 16,
                                               step > 0 || slot_block > 0);
    }
    products_commit();
    products_wait<0>();
    pin(sums);
  }

  /// Rows of Y take the tile's own place in shared memory. A lane's address differs from panel to panel by a constant,
  /// inside a panel by the bits that its row swizzles.
  __device__ void put_in_place(int stage) {
    const auto* out_bias = reinterpret_cast<const float2*>(b.shared + b.at.out_bias) + (lane() & 3);
    const int row = thread() / 32 * 16 + (lane() & 15);
    const uint32_t first = shared_address(b.tile(stage)) + swizzled(row, lane() >> 4);
    named_barrier(1 + consumer, kGroupThreads);  // all four warps have read the tile
#pragma unroll
    for (int j = 0; j < kWidth / 8; j += 2) {
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 bias = out_bias[4 * (j + i / 2)];
        v[i] = pack<T>(sums[4 * j + 2 * i] + bias.x, sums[4 * j + 2 * i + 1] + bias.y);
      }
      store_tiles((first ^ (j % 8 << 4)) + j / 8 * kTokens * kPanelRowBytes, v[0], v[1], v[2], v[3]);
    }
    publish_shared();
  }

  const Block<T, kPanels>& b;
  const int consumer;
  MaskKey key{};
  float scores[32];
  uint32_t weights[16];
  float sums[kWidth / 2];
};

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    restore_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap m_map,
                   const __grid_constant__ CUtensorMap y_map, const __grid_constant__ RestoreKernel k) {
  extern __shared__ unsigned char raw[];
  Block<T, kPanels> block{k, raw + ((1024 - (shared_address(raw) & 1023)) & 1023),
                          Layout<kPanels>(k.stages, k.slot_blocks, k.m_buffers)};
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    prefetch_map(&m_map);
    prefetch_map(&y_map);
    for (int stage = 0; stage < k.stages; ++stage) {
      barrier_init(block.full(stage), 1);
      barrier_init_for_warps(block.mixed(stage), 4);  // the warps of one consumer
      barrier_init_for_warps(block.empty(stage), kWriters / 32);
    }
    for (int buffer = 0; buffer < k.m_buffers; ++buffer) {
      barrier_init(block.m_full(buffer), 1);
      barrier_init_for_warps(block.m_empty(buffer), 8);
    }
    barriers_ready();
  }
  take_turn();
  auto* bias = reinterpret_cast<float*>(block.shared + block.at.bias);
  for (int i = static_cast<int>(threadIdx.x); i < k.slot_blocks * kBlockSlots; i += kThreads) {
    bias[i] = k.rows.bias(0, i);
  }
  auto* out_bias = reinterpret_cast<float*>(block.shared + block.at.out_bias);
  for (int i = static_cast<int>(threadIdx.x); i < kPanels * kPanelColumns; i += kThreads) {
    out_bias[i] = i < k.out_width ? k.out_bias[i] : 0.0f;
  }
  for (int slot_block = 0; slot_block < k.slot_blocks; ++slot_block) {
    if (threadIdx.x < 256) {
      load_rows<T, kPanels, 256>(block.shared + block.at.f + slot_block * Layout<kPanels>::kBlock, k.rows.width,
                                 static_cast<int>(threadIdx.x), [&](int i) {
                                   const int slot = slot_block * kBlockSlots + i;
                                   return slot < k.slots ? k.rows.row<T>(0, slot) : static_cast<const T*>(nullptr);
                                 });
    }
  }
  publish_shared();
  const int first_sequence = first_sequence_behind(k.bounds, block.first_row(), kThreads);
  __syncthreads();

  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      block.feed(map, m_map, first_sequence);
    } else if (threadIdx.x >= 32) {
      const int writer = static_cast<int>(threadIdx.x) - 32;
      clear_rows_of_nobody<T, kWriters>(k.bounds, block.first_row(), block.last_row(), first_sequence, k.y, k.out_width,
                                        writer);
      block.write_tiles(y_map, writer);
    }
  } else {
    take_registers<232>();
    Consumer<T, kPanels, kDropout>(block, group - 1).run();
  }
}

struct Shape {
  int panels;
  int slot_blocks;
  int stages;
  int m_buffers;
};

/// As many stages as fit; two buffers of M where that leaves three.
template <int kPanels>
Shape shape_for(int slots) {
  Shape shape{kPanels, (slots + kBlockSlots - 1) / kBlockSlots, 0, 2};
  for (; shape.m_buffers > 0; --shape.m_buffers) {
    for (shape.stages = kMostStages; shape.stages > 1; --shape.stages) {
      if (Layout<kPanels>(shape.stages, shape.slot_blocks, shape.m_buffers).bytes <= kSharedLimit) {
        break;
      }
    }
    if (shape.stages > 2 || (shape.m_buffers == 1 && shape.stages > 1)) {
      return shape;
    }
  }
  return {kPanels, shape.slot_blocks, 0, 0};
}

Shape shape_of(const RestoreArguments& a) {
  const int width = a.x.width > a.out_width ? a.x.width : a.out_width;
  switch (panels_for(width)) {
    case 1:
      return shape_for<1>(a.rows.rows());
    case 2:
      return shape_for<2>(a.rows.rows());
    default:
      return shape_for<4>(a.rows.rows());
  }
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const RestoreArguments& a, int multiprocessors, cudaStream_t stream) {
  const Shape shape = shape_of(a);
  RestoreKernel k{};
  k.rows_in_all = static_cast<int>(a.x.rows);
  const int most = k.rows_in_all / kTokens + 1;
  const int ranges = multiprocessors < most ? multiprocessors : most;
  k.range_rows = range_length(k.rows_in_all, ranges);
  k.bounds = {a.bounds.begin, a.bounds.end, static_cast<int>(a.bounds.count)};
  k.rows = view_of(a.rows, a.x.width, a.element);
  k.slots = a.rows.rows();
  k.slot_blocks = shape.slot_blocks;
  k.d_p = k.slots / a.heads;
  k.linear = a.linear;
  k.stages = shape.stages;
  k.m_buffers = shape.m_buffers;
  k.rng = a.dropout.rng;
  k.threshold = philox::threshold(a.dropout.p);
  k.keep_scale = static_cast<float>(1.0 / (1.0 - a.dropout.p));
  k.out_width = a.out_width;
  k.out_bias = {a.out_bias, a.out_bias_elements, a.element};
  k.y = a.y;
  CUtensorMap map;
  if (const auto status = describe_matrix(map, a.element, a.x, kTokens); status != cudaSuccess) {
    return status;
  }
  CUtensorMap m_map;
  if (const auto status =
          describe_matrices(m_map, a.element, a.m_elements, a.bounds.count, k.slots, a.out_width, kBlockSlots);
      status != cudaSuccess) {
    return status;
  }
  CUtensorMap y_map;
  if (const auto status = describe_matrix(y_map, a.element, {a.y, a.x.rows, a.out_width, a.out_width}, kTokens);
      status != cudaSuccess) {
    return status;
  }
  auto* kernel = restore_kernel<T, kPanels, kDropout>;
  const int bytes = Layout<kPanels>(shape.stages, shape.slot_blocks, shape.m_buffers).bytes;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      status != cudaSuccess) {
    return status;
  }
  return launch_overlapped(kernel, ranges, kThreads, bytes, stream, map, m_map, y_map, k);
}

template <class T>
cudaError_t launch_width(const RestoreArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.dropout.p > 0 ? launch<T, kPanels, true>(a, multiprocessors, stream)
                           : launch<T, kPanels, false>(a, multiprocessors, stream);
  };
  switch (shape_of(a).panels) {
    case 1:
      return with(std::integral_constant<int, 1>{});
    case 2:
      return with(std::integral_constant<int, 2>{});
    default:
      return with(std::integral_constant<int, 4>{});
  }
}

}  // namespace

const char* restore_obstacle(const RestoreArguments& a) {
  if (const char* obstacle = width_obstacle(a.element, a.x)) {
    return obstacle;
  }
  if (a.out_width > 256 || a.out_width % 8 != 0) {
    return "the Hopper kernels write widths up to 256 that are multiples of 8";
  }
  const int d_p = a.rows.rows() / a.heads;
  if (!a.linear && (d_p > 64 || (d_p & (d_p - 1)) != 0)) {
    return "the Hopper kernels take a d_p that is a power of two up to 64";
  }
  if (a.rows.each_rows > 0) {
    return "the Hopper kernels take restore rows that all sequences share";
  }
  if (shape_of(a).stages == 0) {
    return "the rows and M do not fit in shared memory";
  }
  return nullptr;
}

cudaError_t restore(const RestoreArguments& a, int multiprocessors, cudaStream_t stream) {
  return a.element == Element::float16 ? launch_width<__half>(a, multiprocessors, stream)
                                       : launch_width<__nv_bfloat16>(a, multiprocessors, stream);
}

}  // namespace dba::ops::cuda::hopper
