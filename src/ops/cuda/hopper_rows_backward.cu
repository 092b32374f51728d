#include <cuda_runtime.h>

#include "ops/cuda/hopper_compress_backward.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/tensor_map.h"

/// The gradients of the score rows: a warp group keeps dA of 64 slots in registers while the tokens stream by. Two warp
/// groups of a thread block take two blocks of slots over the same tokens; for a last, odd block they take turns with
/// the tiles; the sums of a whole sequence are added in place, of others each leaves its own.
namespace dba::ops::cuda::hopper {
namespace {

constexpr int kTokens = 64;
constexpr int kStages = 3;
constexpr int kThreads = 384;
constexpr int kBothGroups = 3;  // a named barrier

struct RowsKernel {
  BackwardKernel s;
  SlotDivision division;
  int each_rows;
  float* deach;
  float* parts;
  RangeParts shared_parts;
};

struct TileNote {
  int sequence;
  int first_token;
  int tokens;  // 0: there are no more
  int length;
  int begins;
  int ends;
  int began;  // the part's sequence began in an earlier range
  int whole;
};

template <int kPanels>
struct Layout {
  static constexpr int kTile = kPanels * kTokens * kPanelRowBytes;
  static constexpr int kRowsPanel = kBlockSlots * kPanelRowBytes;
  static constexpr int kRows = kPanels * kRowsPanel;
  static constexpr int kRowsOffset = kStages * kTile;
  static constexpr int kGroupRows = 2 * kRows;  // score rows, then dC
  static constexpr int kNotes = kRowsOffset + 2 * kGroupRows;
  static constexpr int kBarriers = kNotes + kStages * static_cast<int>(sizeof(TileNote));
  static constexpr int kBytes = kBarriers + 2 * kStages * 8 + 1024;
};

/// A thread block's place: pairs first, then singles.
struct Place {
  bool single;
  int first_block;
  int range;
  int first_row;
  int last_row;
};

__device__ inline Place find_place(const SlotDivision& division, int rows) {
  Place place;
  const int index = static_cast<int>(blockIdx.x);
  const int pair_blocks = division.pairs * division.pair_ranges;
  place.single = index >= pair_blocks;
  place.first_block = place.single ? 2 * division.pairs : 2 * (index / division.pair_ranges);
  place.range = place.single ? index - pair_blocks : index % division.pair_ranges;
  const int length = division.range_rows(place.first_block);
  place.first_row = min(rows, place.range * length);
  place.last_row = min(rows, place.first_row + length);
  return place;
}

template <int kPanels>
struct Block {
  using L = Layout<kPanels>;
  const RowsKernel& k;
  unsigned char* shared;

  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(shared + L::kBarriers) + stage;
  }
  __device__ uint64_t* empty(int stage) const {
    return full(kStages + stage);
  }
  __device__ TileNote& note(int stage) const {
    return reinterpret_cast<TileNote*>(shared + L::kNotes)[stage];
  }
  __device__ unsigned char* tile(int stage) const {
    return shared + stage * L::kTile;
  }

  __device__ void feed(const CUtensorMap& map, const Place& place, int first_sequence) {
    PartWalk walk(k.s.bounds, place.first_row, place.last_row, first_sequence);
    Part part;
    RingPlace<kStages> ring;
    while (walk.next(part)) {
      for (int done = 0; done < part.tokens; done += kTokens) {
        const int left = part.tokens - done;
        barrier_wait(empty(ring.stage), ring.parity ^ 1);
        note(ring.stage) = {part.sequence, part.first_token() + done, min(left, kTokens), part.length,
                            done == 0,     left <= kTokens,           part.began,         part.whole()};
        barrier_expect(full(ring.stage), L::kTile);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          copy_box(tile(ring.stage) + panel * kTokens * kPanelRowBytes, &map, panel * kPanelColumns, part.first + done,
                   full(ring.stage));
        }
        ring.advance();
      }
    }
    barrier_wait(empty(ring.stage), ring.parity ^ 1);
    note(ring.stage).tokens = 0;
    barrier_arrive(full(ring.stage));
  }
};

template <class T, int kPanels, bool kDropout>
class Consumer {
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Consumer(const Block<kPanels>& thread_block, int which)
      : b(thread_block), consumer(which), place(find_place(b.k.division, b.k.s.rows_in_all)) {
    block = place.first_block + (place.single ? 0 : consumer);
    slot = block * kBlockSlots + 16 * (group_thread() / 32) + (group_thread() & 31) / 4;
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(b.k.s.rng[0]), static_cast<uint64_t>(b.k.s.rng[1]), /*site=*/0, b.k.s.threshold};
    }
  }

  __device__ void run() {
    const bool for_all = block * kBlockSlots >= b.k.each_rows;  // one sum over all sequences
    bool rows_loaded = false;
    bool fresh = true;
    bool own_turn = place.single ? consumer == 0 : true;
    while (true) {
      barrier_wait(b.full(ring.stage), ring.parity);
      const TileNote note = b.note(ring.stage);
      if (note.tokens == 0) {
        break;
      }
      if (note.begins) {
        load(note.sequence, !rows_loaded || b.k.s.prepared.rows_differ);
        rows_loaded = true;
        fresh = fresh || !for_all;
      }
      if (own_turn) {
        if (note.tokens < kTokens) {
          clear_rest(note.tokens);
        }
        products_begin();
        multiply(scores, rows());
        multiply(gradients, rows() + L::kRows);
        products_commit();
        products_wait<0>();
        pin(scores);
        pin(gradients);
        weigh(note);
        products_begin();
        accumulate(fresh);
        products_commit();
        products_wait<0>();
        pin(sums);
        fresh = false;
      }
      barrier_arrive_as_warp(b.empty(ring.stage));
      if (note.ends && !for_all) {
        clear_if(fresh);
        if (place.single && note.whole) {
          add_other_group();
        }
        const bool direct = note.whole;
        const int range = place.single ? 2 * place.range + consumer : place.range;
        const int at = b.k.division.first_place(block) + 2 * range + (note.began ? 0 : 1);
        const bool written_by_the_first = direct && place.single && consumer == 1;
        if (!written_by_the_first) {
          write(direct ? b.k.deach +
                             (static_cast<int64_t>(note.sequence) * b.k.each_rows + block * kBlockSlots) * b.k.s.width
                       : b.k.parts + static_cast<int64_t>(at) * kBlockSlots * b.k.s.width,
                direct ? b.k.each_rows - block * kBlockSlots : kBlockSlots);
        }
      }
      own_turn = place.single ? !own_turn : true;
      ring.advance();
    }
    if (for_all) {
      clear_if(fresh);
      const int range = place.single ? 2 * place.range + consumer : place.range;
      const int row = block * kBlockSlots - b.k.each_rows;
      write(b.k.shared_parts.of(range) + static_cast<int64_t>(row) * b.k.s.width, kBlockSlots);
    }
  }

 private:
  /// A pair's groups have rows of their own; a single block's share theirs.
  __device__ unsigned char* rows() const {
    return b.shared + L::kRowsOffset + (place.single ? 0 : consumer * L::kGroupRows);
  }
  __device__ void wait_for_group() const {
    if (place.single) {
      named_barrier(kBothGroups, 2 * kGroupThreads);
    } else {
      named_barrier(1 + consumer, kGroupThreads);
    }
  }

  __device__ void load(int sequence, bool score_rows) {
    const auto& prepared = b.k.s.prepared;
    const int64_t first = static_cast<int64_t>(block) * kBlockSlots;
    const int64_t of_sequence = static_cast<int64_t>(sequence) * prepared.padded + first;
    const T* dc = static_cast<const T*>(prepared.dc) + of_sequence * b.k.s.width;
    const T* source = static_cast<const T*>(prepared.rows) + (prepared.rows_differ ? of_sequence : first) * b.k.s.width;
    wait_for_group();  // everybody's products with the rows before are done
    if (place.single) {
      const int both = consumer * kGroupThreads + group_thread();
      load_rows<T, kPanels, 2 * kGroupThreads>(rows() + L::kRows, b.k.s.width, both,
                                               [&](int i) { return dc + static_cast<int64_t>(i) * b.k.s.width; });
      if (score_rows) {
        load_rows<T, kPanels, 2 * kGroupThreads>(rows(), b.k.s.width, both,
                                                 [&](int i) { return source + static_cast<int64_t>(i) * b.k.s.width; });
      }
    } else {
      load_rows<T, kPanels, kGroupThreads>(rows() + L::kRows, b.k.s.width, group_thread(),
                                           [&](int i) { return dc + static_cast<int64_t>(i) * b.k.s.width; });
      if (score_rows) {
        load_rows<T, kPanels, kGroupThreads>(rows(), b.k.s.width, group_thread(),
                                             [&](int i) { return source + static_cast<int64_t>(i) * b.k.s.width; });
      }
    }
    publish_shared();
    wait_for_group();
    const RowNote* notes = prepared.notes + static_cast<int64_t>(sequence) * prepared.padded + slot;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      shift[i] = notes[8 * i].shift;
      reduction[i] = notes[8 * i].reduction;
      dr[i] = notes[8 * i].dr;
    }
  }

  __device__ void clear_rest(int tokens) {
    if (place.single) {
      clear_rows<kPanels, kTokens, kGroupThreads>(b.tile(ring.stage), tokens, group_thread());
      publish_shared();
      named_barrier(1 + consumer, kGroupThreads);
    } else {
      clear_rows<kPanels, kTokens, 2 * kGroupThreads>(b.tile(ring.stage), tokens,
                                                      consumer * kGroupThreads + group_thread());
      publish_shared();
      named_barrier(kBothGroups, 2 * kGroupThreads);
    }
  }

  /// product = rows (64 slots) · X (64 tokens)ᵀ.
  __device__ void multiply(float (&product)[32], unsigned char* by) {
    const uint64_t of_rows = descriptor_along_k(shared_address(by));
    const uint64_t of_tile = descriptor_along_k(shared_address(b.tile(ring.stage)));
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const int offset = ((step / 4) * L::kRowsPanel + (step % 4) * 32) / 16;
      multiply_shared<T, kTokens, kAlongK, kAlongK>(product, of_rows + offset, of_tile + offset, step > 0);
    }
  }

  __device__ void accumulate(bool first) {
    const uint64_t of_tile = descriptor_along_rows(shared_address(b.tile(ring.stage)), kTokens * kPanelRowBytes);
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const uint32_t fragment[4] = {score_gradients[4 * step], score_gradients[4 * step + 1],
                                    score_gradients[4 * step + 2], score_gradients[4 * step + 3]};
      multiply_register<T, kWidth, kAlongRows>(sums, fragment, of_tile + step * 16 * kPanelRowBytes / 16,
                                               step > 0 || !first);
    }
  }

  /// Scores and dC Xᵀ → the rounded gradient of the scores.
  __device__ void weigh(const TileNote& note) {
    if (note.tokens < kTokens || (block + 1) * kBlockSlots > b.k.s.softmax) {
      weigh_tile<true>(note);
    } else {
      weigh_tile<false>(note);
    }
  }

  /// kSpecial: some tokens are missing or some slots are linear.
  template <bool kSpecial>
  __device__ void weigh_tile(const TileNote& note) {
    const int own = group_thread();
    const float inverse_length = kSpecial ? 1.0f / static_cast<float>(note.length) : 0.0f;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      uint32_t bits = 0xF;
      if constexpr (kDropout) {
        bits = kept_slots_by_tokens(key, static_cast<uint32_t>(note.sequence), static_cast<uint32_t>(slot),
                                    static_cast<uint32_t>(note.first_token + 8 * j));
      }
      float gradient[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = e / 2;
        const float keep = !kDropout ? 1.0f : (bits >> e) & 1 ? b.k.s.keep_scale : 0.0f;
        const float dw = keep * (gradients[4 * j + e] + dr[i]);
        float ds = exp2_fast(fmaf(scores[4 * j + e], kLog2E, shift[i])) * (dw - reduction[i]);
        if constexpr (kSpecial) {
          ds = slot + 8 * i < b.k.s.softmax ? ds : dw * inverse_length;
          ds = 8 * j + 2 * (own & 3) + e % 2 < note.tokens ? ds : 0.0f;
        }
        gradient[e] = ds;
      }
      score_gradients[2 * j] = pack<T>(gradient[0], gradient[1]);
      score_gradients[2 * j + 1] = pack<T>(gradient[2], gradient[3]);
    }
  }

  __device__ void clear_if(bool fresh) {
    if (fresh) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        sums[i] = 0.0f;
      }
    }
  }

  /// The first group's sums become those of both. The second group's place for score rows is free in a single block's
  /// thread block, and just as large as the sums.
  __device__ void add_other_group() {
    auto* exchange = reinterpret_cast<float*>(b.shared + L::kRowsOffset + L::kGroupRows) + group_thread();
    if (consumer == 1) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        exchange[i * kGroupThreads] = sums[i];
      }
    }
    named_barrier(kBothGroups, 2 * kGroupThreads);
    if (consumer == 0) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        sums[i] += exchange[i * kGroupThreads];
      }
    }
  }

  __device__ void write(float* target, int slots) const {
    const int own = group_thread();
    const int row = own / 32 * 16 + own % 32 / 4;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const int column = 8 * j + 2 * (own & 3);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (column < b.k.s.width && row + 8 * i < slots) {
          *reinterpret_cast<float2*>(target + static_cast<int64_t>(row + 8 * i) * b.k.s.width + column) =
              make_float2(sums[4 * j + 2 * i], sums[4 * j + 2 * i + 1]);
        }
      }
    }
  }

  const Block<kPanels>& b;
  const int consumer;
  const Place place;
  int block;
  int slot;
  MaskKey key{};
  RingPlace<kStages> ring;
  float shift[2], reduction[2], dr[2];
  float scores[32];
  float gradients[32];
  uint32_t score_gradients[16];
  float sums[kWidth / 2];
};

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    rows_backward_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ RowsKernel k) {
  extern __shared__ unsigned char raw[];
  Block<kPanels> block{k, raw + ((1024 - (shared_address(raw) & 1023)) & 1023)};
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(block.full(stage), 1);
      barrier_init_for_warps(block.empty(stage), 8);
    }
    barriers_ready();
  }
  take_turn();
  const int first_sequence =
      first_sequence_behind(k.s.bounds, find_place(k.division, k.s.rows_in_all).first_row, kThreads);
  __syncthreads();
  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      block.feed(map, find_place(k.division, k.s.rows_in_all), first_sequence);
    }
  } else {
    take_registers<232>();
    Consumer<T, kPanels, kDropout>(block, group - 1).run();
  }
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const RowsBackward& a, cudaStream_t stream) {
  RowsKernel k{};
  k.s = a.shared;
  k.division = a.division;
  k.each_rows = a.each_rows;
  k.deach = a.deach;
  k.parts = a.parts;
  k.shared_parts = a.shared_parts;
  const int shared_rows = k.s.rows - a.each_rows;
  CUtensorMap map;
  auto status = describe_matrix(map, a.element, a.x, kTokens);
  if (status != cudaSuccess) {
    return status;
  }
  auto* kernel = rows_backward_kernel<T, kPanels, kDropout>;
  constexpr int kBytes = Layout<kPanels>::kBytes;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) {
    return status;
  }
  const auto& division = a.division;
  const int blocks = division.pairs * division.pair_ranges + division.single_ranges / 2;
  status = launch_overlapped(kernel, blocks, kThreads, kBytes, stream, map, k);
  if (status == cudaSuccess && a.each_rows > 0) {
    status = launch_merge_sums({k.s.bounds, division, a.parts, true, a.each_rows, k.s.width, a.deach}, stream);
  }
  // The last block may be divided into another number of ranges than the pairs before it.
  RangeSums sums;
  for (int row = 0; row < shared_rows;) {
    const int block = (a.each_rows + row) / kBlockSlots;
    const int until = division.is_single(block) ? shared_rows
                      : 2 * division.pairs * kBlockSlots - a.each_rows < shared_rows
                          ? 2 * division.pairs * kBlockSlots - a.each_rows
                          : shared_rows;
    sums.add(a.shared_parts, static_cast<int64_t>(row) * k.s.width, ranges_of_block(division, block),
             a.dshared + static_cast<int64_t>(row) * k.s.width, static_cast<int64_t>(until - row) * k.s.width);
    row = until;
  }
  return status == cudaSuccess ? launch_range_sums(sums, stream) : status;
}

template <class T>
cudaError_t launch_width(const RowsBackward& a, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.dropout ? launch<T, kPanels, true>(a, stream) : launch<T, kPanels, false>(a, stream);
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

/// The two warp groups of a single block's thread block share a range, so its rows are counted by thread blocks.
SlotDivision divide_rows_backward(int slots, int rows, int multiprocessors) {
  SlotDivision division = divide_slots(slots, rows, multiprocessors, kTokens);
  if (division.single_ranges > 0) {
    const int thread_blocks = division.single_ranges / 2;
    division.single_rows = range_length(rows, thread_blocks);
  }
  return division;
}

cudaError_t launch_rows_backward(const RowsBackward& a, cudaStream_t stream) {
  return a.element == Element::float16 ? launch_width<__half>(a, stream) : launch_width<__nv_bfloat16>(a, stream);
}

}  // namespace dba::ops::cuda::hopper
