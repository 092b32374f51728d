#include <cuda_runtime.h>

#include "ops/cuda/hopper_compress_backward.cuh"
#include "ops/cuda/hopper_rows.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/tensor_map.h"

/// dX: a warp group keeps the gradient of 64 tokens in registers while the score rows and dC of its sequence stream by
/// in blocks of 64 slots, and last restore's rows with the gradient that its backward left for them.
namespace dba::ops::cuda::hopper {
namespace {

constexpr int kTokens = 64;  // of a warp group; a tile has two
constexpr int kEntries = 5;  // blocks of 64 rows in flight
constexpr int kThreads = 384;
constexpr int kClearers = 96;

struct TokensKernel {
  BackwardKernel s;
  int range_rows;
  int blocks;          // of compress's rows
  int restore_blocks;  // of restore's
  void* dx;
};

struct TileNote {
  int sequence;
  int first_token;
  int row;
  int tokens;  // 0: there are no more
  int length;
};

template <int kPanels>
struct Layout {
  static constexpr int kHalf = kPanels * kTokens * kPanelRowBytes;
  static constexpr int kRowsBytes = kPanels * kBlockSlots * kPanelRowBytes;
  static constexpr int kScoresBytes = 2 * kTokens * kPanelRowBytes;
  static constexpr int kEntry = kRowsBytes > kScoresBytes ? kRowsBytes : kScoresBytes;
  static constexpr int kEntriesOffset = 2 * kHalf;
  static constexpr int kNote = kEntriesOffset + kEntries * kEntry;
  static constexpr int kBarriers = kNote + 64;
  static constexpr int kBytes = kBarriers + (2 * kEntries + 2) * 8 + 1024;
};

struct Maps {
  CUtensorMap x, rows, dc, restore_rows, dscores;
};

template <int kPanels>
struct Block {
  using L = Layout<kPanels>;
  const TokensKernel& k;
  unsigned char* shared;

  __device__ uint64_t* full(int entry) const {
    return reinterpret_cast<uint64_t*>(shared + L::kBarriers) + entry;
  }
  __device__ uint64_t* empty(int entry) const {
    return full(kEntries + entry);
  }
  __device__ uint64_t* x_full() const {
    return full(2 * kEntries);
  }
  __device__ uint64_t* x_empty() const {
    return full(2 * kEntries + 1);
  }
  __device__ TileNote& note() const {
    return *reinterpret_cast<TileNote*>(shared + L::kNote);
  }
  __device__ unsigned char* entry(int index) const {
    return shared + L::kEntriesOffset + index * L::kEntry;
  }
  __device__ int first_row() const {
    return min(k.s.rows_in_all, static_cast<int>(blockIdx.x) * k.range_rows);
  }
  __device__ int last_row() const {
    return min(k.s.rows_in_all, first_row() + k.range_rows);
  }

  __device__ void feed(const Maps& maps, int first_sequence) {
    PartWalk walk(k.s.bounds, first_row(), last_row(), first_sequence);
    Part part;
    RingPlace<kEntries> ring;
    uint32_t x_parity = 1;
    const auto send = [&](const CUtensorMap& map, int row, int index) {
      barrier_wait(empty(ring.stage), ring.parity ^ 1);
      barrier_expect(full(ring.stage), L::kRowsBytes);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        copy_box(entry(ring.stage) + panel * kBlockSlots * kPanelRowBytes, &map, panel * kPanelColumns, row, index,
                 full(ring.stage));
      }
      ring.advance();
    };
    while (walk.next(part)) {
      for (int done = 0; done < part.tokens; done += 2 * kTokens) {
        const int row = part.first + done;
        barrier_wait(x_empty(), x_parity);
        x_parity ^= 1;
        note() = {part.sequence, part.first_token() + done, row, min(part.tokens - done, 2 * kTokens), part.length};
        barrier_expect(x_full(), 2 * L::kHalf);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            copy_box(shared + half * L::kHalf + panel * kTokens * kPanelRowBytes, &maps.x, panel * kPanelColumns,
                     row + half * kTokens, x_full());
          }
        }
        for (int block = 0; block < k.blocks; ++block) {
          send(maps.rows, block * kBlockSlots, k.s.prepared.rows_differ ? part.sequence : 0);
          send(maps.dc, block * kBlockSlots, part.sequence);
        }
        for (int block = 0; block < k.restore_blocks; ++block) {
          send(maps.restore_rows, block * kBlockSlots, 0);
          barrier_wait(empty(ring.stage), ring.parity ^ 1);
          barrier_expect(full(ring.stage), L::kScoresBytes);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            copy_box(entry(ring.stage) + half * kTokens * kPanelRowBytes, &maps.dscores, block * kPanelColumns,
                     row + half * kTokens, full(ring.stage));
          }
          ring.advance();
        }
      }
    }
    barrier_wait(x_empty(), x_parity);
    note().tokens = 0;
    barrier_arrive(x_full());
  }
};

/// Notes of a block's rows, where a thread has two columns of each eight: those of the first kEarly eights are on their
/// way while the products are, the others are loaded where they are wanted. `notes`: the thread's first.
template <int kEarly>
struct EarlyNotes {
  float4 ahead[2 * kEarly];

  __device__ void load(const float4* notes) {
#pragma unroll
    for (int i = 0; i < 2 * kEarly; ++i) {
      asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(ahead[i].x), "=f"(ahead[i].y), "=f"(ahead[i].z), "=f"(ahead[i].w)
                   : "l"(notes + i / 2 * 8 + i % 2));
    }
  }
  __device__ float4 of(const float4* notes, int j, int c) const {
    return j < kEarly ? ahead[2 * j + c] : __ldg(notes + 8 * j + c);
  }
};

template <>
struct EarlyNotes<0> {
  __device__ void load(const float4*) {}
  __device__ float4 of(const float4* notes, int j, int c) const {
    return __ldg(notes + 8 * j + c);
  }
};

template <class T, int kPanels, bool kDropout>
class Consumer {
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;
  static constexpr int kEarly = kDropout ? 0 : 2;  // more would spill

 public:
  __device__ Consumer(const Block<kPanels>& block, int which) : b(block), consumer(which) {
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(b.k.s.rng[0]), static_cast<uint64_t>(b.k.s.rng[1]), /*site=*/0, b.k.s.threshold};
    }
  }

  __device__ void run() {
    uint32_t x_parity = 0;
    while (true) {
      barrier_wait(b.x_full(), x_parity);
      x_parity ^= 1;
      const TileNote note = b.note();
      if (note.tokens == 0) {
        return;
      }
      for (int block = 0; block < b.k.blocks; ++block) {
        const int rows = take();
        const int dc = take();
        products_begin();
        multiply(scores, rows);
        multiply(gradients, dc);
        products_commit();
        EarlyNotes<kEarly> early;
        early.load(notes_of(note, block));
        products_wait<0>();
        pin(scores);
        pin(gradients);
        if (block + 1 == b.k.blocks) {
          release(b.x_empty());
        }
        weigh(note, block, early);
        products_begin();
        accumulate(weights, dc, block == 0);
        accumulate(score_gradients, rows, false);
        products_commit();
        products_wait<0>();
        pin(sums);
        release(b.empty(rows));
        release(b.empty(dc));
      }
      for (int block = 0; block < b.k.restore_blocks; ++block) {
        const int rows = take();
        const int dscores = take();
        const uint64_t of_scores =
            descriptor_along_k(shared_address(b.entry(dscores) + consumer * kTokens * kPanelRowBytes));
        const uint64_t of_rows = descriptor_along_rows(shared_address(b.entry(rows)), kBlockSlots * kPanelRowBytes);
        products_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_shared<T, kWidth, kAlongK, kAlongRows>(sums, of_scores + step * 32 / 16,
                                                          of_rows + step * 16 * kPanelRowBytes / 16, 1);
        }
        products_commit();
        products_wait<0>();
        pin(sums);
        release(b.empty(rows));
        release(b.empty(dscores));
      }
      write_rows<T, kWidth>(sums,
                            static_cast<T*>(b.k.dx) + static_cast<int64_t>(note.row + consumer * kTokens) * b.k.s.width,
                            b.k.s.width, note.tokens - consumer * kTokens, group_thread());
    }
  }

 private:
  __device__ int take() {
    const int index = ring.stage;
    barrier_wait(b.full(index), ring.parity);
    ring.advance();
    return index;
  }
  __device__ void release(uint64_t* barrier) const {
    barrier_arrive_as_warp(barrier);
  }
  /// product = X (64 tokens) · entry (64 slots)ᵀ.
  __device__ void multiply(float (&product)[32], int index) {
    const uint64_t of_tile = descriptor_along_k(shared_address(b.shared + consumer * L::kHalf));
    const uint64_t of_rows = descriptor_along_k(shared_address(b.entry(index)));
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const int offset = ((step / 4) * kTokens * kPanelRowBytes + (step % 4) * 32) / 16;
      multiply_shared<T, 64, kAlongK, kAlongK>(product, of_tile + offset, of_rows + offset, step > 0);
    }
  }
  /// sums += fragment (64 tokens × 64 slots) · entry (64 slots).
  __device__ void accumulate(const uint32_t (&fragments)[16], int index, bool first) {
    const uint64_t of_rows = descriptor_along_rows(shared_address(b.entry(index)), kBlockSlots * kPanelRowBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t fragment[4] = {fragments[4 * step], fragments[4 * step + 1], fragments[4 * step + 2],
                                    fragments[4 * step + 3]};
      multiply_register<T, kWidth, kAlongRows>(sums, fragment, of_rows + step * 16 * kPanelRowBytes / 16,
                                               step > 0 || !first);
    }
  }

  /// Where the thread's two columns of each eight lie among the notes of the block's rows.
  __device__ const float4* notes_of(const TileNote& note, int block) const {
    return reinterpret_cast<const float4*>(b.k.s.prepared.notes +
                                           static_cast<int64_t>(note.sequence) * b.k.s.prepared.padded +
                                           block * kBlockSlots + 2 * (group_thread() & 3));
  }

  __device__ void weigh(const TileNote& note, int block, const EarlyNotes<kEarly>& early) {
    if ((block + 1) * kBlockSlots > b.k.s.softmax && b.k.s.rows > b.k.s.softmax) {
      weigh_block<true>(note, block, early);
    } else {
      weigh_block<false>(note, block, early);
    }
  }

  /// Scores and dC Xᵀ → rounded weights and rounded gradients of the scores.
  template <bool kAnyLinear>
  __device__ void weigh_block(const TileNote& note, int block, const EarlyNotes<kEarly>& early) {
    const int own = group_thread();
    const int first_slot = block * kBlockSlots + 2 * (own & 3);
    const float4* notes = notes_of(note, block);
    const float inverse_length = kAnyLinear ? 1.0f / static_cast<float>(note.length) : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 of_column[2] = {early.of(notes, j, 0), early.of(notes, j, 1)};
      uint32_t bits = 0xF;
      if constexpr (kDropout) {
        bits = kept_tokens_by_slots(key, static_cast<uint32_t>(note.sequence),
                                    static_cast<uint32_t>(note.first_token + consumer * kTokens + own / 32 * 16),
                                    static_cast<uint32_t>(first_slot + 8 * j));
      }
      float weight[4], gradient[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float4& row = of_column[e % 2];  // shift, reduction, dr
        const float keep = !kDropout ? 1.0f : (bits >> e) & 1 ? b.k.s.keep_scale : 0.0f;
        const float score = scores[4 * j + e];
        float w = exp2_fast(fmaf(score, kLog2E, row.x));
        const float dw = keep * (gradients[4 * j + e] + row.z);
        float ds = w * (dw - row.y);
        if constexpr (kAnyLinear) {
          if (first_slot + 8 * j + e % 2 >= b.k.s.softmax) {
            w = (score + row.x) * inverse_length;
            ds = dw * inverse_length;
            if (first_slot + 8 * j + e % 2 >= b.k.s.rows) {
              w = 0.0f;
              ds = 0.0f;
            }
          }
        }
        weight[e] = w * keep;
        gradient[e] = ds;
      }
      weights[2 * j] = pack<T>(weight[0], weight[1]);
      weights[2 * j + 1] = pack<T>(weight[2], weight[3]);
      score_gradients[2 * j] = pack<T>(gradient[0], gradient[1]);
      score_gradients[2 * j + 1] = pack<T>(gradient[2], gradient[3]);
    }
  }

  const Block<kPanels>& b;
  const int consumer;
  MaskKey key{};
  RingPlace<kEntries> ring;
  float scores[32];
  float gradients[32];
  uint32_t weights[16];
  uint32_t score_gradients[16];
  float sums[kWidth / 2];
};

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    tokens_backward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ TokensKernel k) {
  extern __shared__ unsigned char raw[];
  Block<kPanels> block{k, raw + ((1024 - (shared_address(raw) & 1023)) & 1023)};
  if (threadIdx.x == 0) {
    for (int entry = 0; entry < kEntries; ++entry) {
      barrier_init(block.full(entry), 1);
      barrier_init_for_warps(block.empty(entry), 8);
    }
    barrier_init(block.x_full(), 1);
    barrier_init_for_warps(block.x_empty(), 8);
    barriers_ready();
  }
  take_turn();
  const int first_sequence = first_sequence_behind(k.s.bounds, block.first_row(), kThreads);
  __syncthreads();
  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      block.feed(maps, first_sequence);
    } else if (threadIdx.x >= 32) {
      clear_rows_of_nobody<T, kClearers>(k.s.bounds, block.first_row(), block.last_row(), first_sequence, k.dx,
                                         k.s.width, static_cast<int>(threadIdx.x) - 32);
    }
  } else {
    take_registers<232>();
    Consumer<T, kPanels, kDropout>(block, group - 1).run();
  }
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const TokensBackward& a, int multiprocessors, cudaStream_t stream) {
  TokensKernel k{};
  k.s = a.shared;
  const int most = k.s.rows_in_all / (2 * kTokens) + 1;
  const int ranges = multiprocessors < most ? multiprocessors : most;
  k.range_rows = range_length(k.s.rows_in_all, ranges);
  k.blocks = k.s.prepared.padded / kBlockSlots;
  k.restore_blocks = a.dscores == nullptr ? 0 : (a.restore_slots + kBlockSlots - 1) / kBlockSlots;
  k.dx = a.dx;
  Maps maps{};
  const auto& prepared = k.s.prepared;
  const int64_t count = k.s.bounds.count;
  auto status = describe_matrix(maps.x, a.element, a.x, kTokens);
  if (status == cudaSuccess) {
    status = describe_matrices(maps.rows, a.element, prepared.rows, prepared.rows_differ ? count : 1, prepared.padded,
                               k.s.width, kBlockSlots);
  }
  if (status == cudaSuccess) {
    status = describe_matrices(maps.dc, a.element, prepared.dc, count, prepared.padded, k.s.width, kBlockSlots);
  }
  if (status == cudaSuccess && k.restore_blocks > 0) {
    status =
        describe_matrices(maps.restore_rows, a.element, a.restore_rows, 1, a.restore_slots, k.s.width, kBlockSlots);
  }
  if (status == cudaSuccess && k.restore_blocks > 0) {
    status = describe_matrix(maps.dscores, a.element, {a.dscores, a.x.rows, a.restore_slots, a.restore_slots}, kTokens);
  }
  if (status != cudaSuccess) {
    return status;
  }
  auto* kernel = tokens_backward_kernel<T, kPanels, kDropout>;
  constexpr int kBytes = Layout<kPanels>::kBytes;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) {
    return status;
  }
  return launch_overlapped(kernel, ranges, kThreads, kBytes, stream, maps, k);
}

template <class T>
cudaError_t launch_width(const TokensBackward& a, int multiprocessors, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.dropout ? launch<T, kPanels, true>(a, multiprocessors, stream)
                     : launch<T, kPanels, false>(a, multiprocessors, stream);
  };
  switch (panels_for(a.x.width)) {
    case 1:
      return with(std::integral_constant<int, 1>{});
    case 2:
      return with(std::integral_constant<int, 2>{});
    default:
      return with(std::integral_constant<int, 4>{});
  }
}

}  // namespace

cudaError_t launch_tokens_backward(const TokensBackward& a, int multiprocessors, cudaStream_t stream) {
  return a.element == Element::float16 ? launch_width<__half>(a, multiprocessors, stream)
                                       : launch_width<__nv_bfloat16>(a, multiprocessors, stream);
}

}  // namespace dba::ops::cuda::hopper
