#include <cuda_runtime.h>

#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_compress.cuh"
#include "ops/cuda/hopper_merge.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/tensor_map.h"

namespace dba::ops::cuda::hopper {
namespace {

/// Tokens in a tile. Scores of 64 slots × 64 tokens take 32 registers a thread and their rounded weights 16, beside 128
/// for the sums over 256 columns; with 80 tokens registers spill, which costs more than the fewer reads of the score
/// rows gain (docs/kernels.md).
constexpr int kTokens = 64;
constexpr int kThreads = 384;
constexpr int kGroupThreads = 128;
/// Weights are kept relative to a score that follows the largest one only when it is left behind by this factor (in
/// powers of two): sums are then rescaled rarely, and nothing overflows.
constexpr float kSlack = 8.0f;

struct CompressKernel {
  int rows_in_all;
  SequenceBounds bounds;
  ScoreRowsView rows;
  SlotDivision division;
  const int64_t* rng;
  uint32_t threshold;
  float keep_scale;
  float* c;
  float* r;
  float* lse;
  PartStore parts;
};

/// What the producer says of a tile; `tokens` 0: there are no more.
struct TileNote {
  int sequence;
  int first_token;  // of the tile in its sequence
  int tokens;       // in the tile that belong to the part
  int length;       // of the sequence
  int begins;       // the part's first tile
  int ends;         // the part's last tile
  int place;        // where the part is kept, or −1: it is a whole sequence
};

/// In shared memory: the first consumer's score rows, the stages, the second consumer's rows. A tile takes as much room
/// as 64 rows: two consumers of the same rows have a stage more, in place of the second copy. A tile stays until the
/// next one's scores are issued, so that a consumer with two stages of its own would wait for every tile; it has three.
template <int kPanels>
struct Layout {
  static constexpr int kStages = kPanels == 4 ? 5 : 7;  // as many as fit at 256 columns
  static constexpr int kMostStages = kStages + 1;
  static constexpr int kTilePanel = kTokens * kPanelRowBytes;
  static constexpr int kTile = kPanels * kTilePanel;
  static constexpr int kRowsPanel = kBlockSlots * kPanelRowBytes;
  static constexpr int kTilesOffset = kPanels * kRowsPanel;
  static constexpr int kSecondRowsOffset = kTilesOffset + kStages * kTile;
  static constexpr int kBarrierOffset = kTilesOffset + kMostStages * kTile;
  static constexpr int kNotesOffset = kBarrierOffset + 2 * kMostStages * 8;
  static constexpr int kBytes = kNotesOffset + kMostStages * static_cast<int>(sizeof(TileNote)) + 1024;  // to align
  static_assert(kTilePanel == kRowsPanel && kBytes <= 227 * 1024);

  /// Of one stream of tiles.
  __device__ static int stages(bool single, bool same_rows) {
    return !single ? kStages : (same_rows ? kMostStages : kStages) / 2;
  }
};

/// The producer's side of one worker's tiles.
template <int kPanels>
struct TileFeed {
  PartWalk walk;
  int range;
  int first_stage, stages;
  Part part{};
  int done = 0;
  int stage = 0;
  uint32_t parity = 1;  // the first round finds every stage empty

  /// Sends the next tile on its way, or word that there is none; then false.
  __device__ bool step(const CUtensorMap& map, unsigned char* tiles, TileNote* notes, uint64_t* full, uint64_t* empty) {
    if (done >= part.tokens) {
      done = 0;
      if (!walk.next(part)) {
        part.tokens = 0;
      }
    }
    const int at = first_stage + stage;
    barrier_wait(empty + at, parity);
    const int left = part.tokens - done;
    notes[at] = {part.sequence,
                 part.first_token() + done,
                 min(left, kTokens),
                 part.length,
                 done == 0,
                 left <= kTokens,
                 part.whole() ? -1 : part_place(range, part)};
    if (left == 0) {
      barrier_arrive(full + at);
      return false;
    }
    barrier_expect(full + at, Layout<kPanels>::kTile);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      copy_box(tiles + at * Layout<kPanels>::kTile + panel * Layout<kPanels>::kTilePanel, &map, panel * kPanelColumns,
               part.first + done, full + at);
    }
    done += kTokens;
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
    return true;
  }
};

/// Feeds both consumers: a pair from one stream of tiles, singles from one each.
template <int kPanels>
__device__ inline void produce(const CUtensorMap& map, const CompressKernel& k, unsigned char* shared, bool single,
                               int begin_0, int begin_1) {
  using L = Layout<kPanels>;
  uint64_t* full = reinterpret_cast<uint64_t*>(shared + L::kBarrierOffset);
  uint64_t* empty = full + L::kMostStages;
  unsigned char* tiles = shared + L::kTilesOffset;
  auto* notes = reinterpret_cast<TileNote*>(shared + L::kNotesOffset);
  const Worker first = find_worker(k.division, k.rows_in_all, 0);
  const int stages = L::stages(single, k.rows.same_for_all(first.block * kBlockSlots));
  TileFeed<kPanels> feed{PartWalk(k.bounds, first.first_row, first.last_row, begin_0), first.range, 0, stages};
  if (!single) {
    while (feed.step(map, tiles, notes, full, empty)) {
    }
    return;
  }
  const Worker second = find_worker(k.division, k.rows_in_all, 1);
  TileFeed<kPanels> other{PartWalk(k.bounds, second.first_row, second.last_row, begin_1), second.range, stages, stages};
  bool more = true;
  bool others = true;
  while (more || others) {
    more = more && feed.step(map, tiles, notes, full, empty);
    others = others && other.step(map, tiles, notes, full, empty);
  }
}

/// A warp group's 64 slots against the tiles that the producer sends.
template <class T, int kPanels, bool kDropout>
class Consumer {
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Consumer(const CompressKernel& kernel, unsigned char* shared_memory, bool alone, int which)
      : k(kernel), shared(shared_memory), single(alone), consumer(which) {
    const Worker worker = find_worker(k.division, k.rows_in_all, consumer);
    block = worker.block;
    slot = block * kBlockSlots + 16 * (thread() / 32) + lane() / 4;
    rows_stay = k.rows.same_for_all(block * kBlockSlots);
    at = first_stage();
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(k.rng[0]), static_cast<uint64_t>(k.rng[1]), /*site=*/0, k.threshold};
    }
  }

  __device__ void run() {
    int previous = 0;
    if (rows_stay && single) {
      load_together();
    } else if (rows_stay) {
      load(0);
    }
    bool first_sums = true;
    while (true) {
      barrier_wait(full() + at, parity);
      const TileNote& note = notes()[at];
      if (note.tokens == 0) {
        return;
      }
      if (note.tokens < kTokens) {
        clear_rest(note.tokens);
      }
      float factor[2];
      if (note.begins) {
        if (!rows_stay) {
          load(note.sequence);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          reference[i] = -INFINITY;
          sum[i] = 0.0f;
          kept[i] = 0.0f;
        }
        products_begin();
        issue_scores();
        products_wait<0>();
        pin(scores);
        weigh(note, factor);
        first_sums = true;
      } else {
        // The scores of this tile go first: while the sums of the one before are under way, they become weights.
        products_begin();
        issue_scores();
        issue_sums(previous, first_sums);
        first_sums = false;
        products_wait<1>();
        pin(scores);
        const bool rescale = weigh(note, factor);
        products_wait<0>();
        pin(sums);
        release(previous);
        if (rescale) {
#pragma unroll
          for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              sums[4 * j + e] *= factor[e / 2];
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kTokens / 4; ++i) {
        weights[i] = pack<T>(scores[2 * i], scores[2 * i + 1]);
      }
      if (note.ends) {
        products_begin();
        issue_sums(at, first_sums);
        products_wait<0>();
        pin(sums);
        finish(note);
        release(at);
      }
      previous = at;
      if (++at == first_stage() + L::stages(single, rows_stay)) {
        at = first_stage();
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
  __device__ int first_stage() const {
    return single ? consumer * L::stages(single, rows_stay) : 0;
  }
  __device__ uint64_t* full() const {
    return reinterpret_cast<uint64_t*>(shared + L::kBarrierOffset);
  }
  __device__ const TileNote* notes() const {
    return reinterpret_cast<const TileNote*>(shared + L::kNotesOffset);
  }
  __device__ unsigned char* rows() const {
    return shared + (consumer == 0 || (single && rows_stay) ? 0 : L::kSecondRowsOffset);
  }
  __device__ unsigned char* tile(int stage) const {
    return shared + L::kTilesOffset + stage * L::kTile;
  }

  template <int kThreads>
  __device__ void load_rows_of(int sequence, int this_thread) {
    const int first_slot = block * kBlockSlots;
    load_rows<T, kPanels, kThreads>(rows(), k.rows.width, this_thread, [&](int i) {
      return first_slot + i < k.rows.rows ? k.rows.row<T>(sequence, first_slot + i) : static_cast<const T*>(nullptr);
    });
    publish_shared();
  }
  __device__ void load(int sequence) {
    named_barrier(1 + consumer, kGroupThreads);  // everybody's products with the rows before are done
    load_rows_of<kGroupThreads>(sequence, thread());
    named_barrier(1 + consumer, kGroupThreads);
  }
  /// Rows that both consumers read.
  __device__ void load_together() {
    load_rows_of<2 * kGroupThreads>(0, consumer * kGroupThreads + thread());
    named_barrier(3, 2 * kGroupThreads);
  }

  /// Tokens behind the part belong to somebody else, and 0 · NaN is not 0.
  __device__ void clear_rest(int tokens) {
    if (single) {
      clear_rows<kPanels, kTokens, kGroupThreads>(tile(at), tokens, thread());
      publish_shared();
      named_barrier(1 + consumer, kGroupThreads);
    } else {
      clear_rows<kPanels, kTokens, 2 * kGroupThreads>(tile(at), tokens, consumer * kGroupThreads + thread());
      publish_shared();
      named_barrier(3, 2 * kGroupThreads);
    }
  }

  __device__ void issue_scores() {
    const uint64_t of_rows = descriptor_along_k(shared_address(rows()));
    const uint64_t of_tile = descriptor_along_k(shared_address(tile(at)));
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      multiply_shared<T, kTokens, kAlongK, kAlongK>(
          scores, of_rows + ((step / 4) * L::kRowsPanel + (step % 4) * 32) / 16,
          of_tile + ((step / 4) * L::kTilePanel + (step % 4) * 32) / 16, step > 0);
    }
    products_commit();
  }

  __device__ void issue_sums(int stage, bool first) {
    const uint64_t of_tile = descriptor_along_rows(shared_address(tile(stage)), L::kTilePanel);
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const uint32_t fragment[4] = {weights[4 * step], weights[4 * step + 1], weights[4 * step + 2],
                                    weights[4 * step + 3]};
      multiply_register<T, kWidth, kAlongRows>(sums, fragment, of_tile + step * 16 * kPanelRowBytes / 16,
                                               step > 0 || !first);
    }
    products_commit();
  }

  __device__ void release(int stage) {
    barrier_arrive_as_warp(full() + L::kMostStages + stage);
  }

  __device__ bool linear(int i) const {
    return slot + 8 * i >= k.rows.softmax;
  }

  /// Scores to weights, in place; `factor`: by what the sums so far must be multiplied. Whether any must.
  __device__ bool weigh(const TileNote& note, float (&factor)[2]) {
    return note.tokens < kTokens ? weigh_tile<true>(note, factor) : weigh_tile<false>(note, factor);
  }

  template <bool kPartial>
  __device__ bool weigh_tile(const TileNote& note, float (&factor)[2]) {
    if constexpr (kPartial) {
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (8 * j + 2 * (lane() & 3) + e % 2 >= note.tokens) {
            scores[4 * j + e] = -INFINITY;
          }
        }
      }
    }
    bool moved = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = scores[2 * i];
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        largest = fmaxf(largest, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2)) * kLog2E;
      factor[i] = 1.0f;
      if (largest > reference[i] + kSlack) {
        factor[i] = linear(i) ? 1.0f : exp2_fast(reference[i] - largest);
        reference[i] = largest;
        sum[i] *= factor[i];
        kept[i] *= factor[i];
        moved = true;
      }
    }
    if ((block + 1) * kBlockSlots > k.rows.softmax && k.rows.rows > k.rows.softmax) {
      to_weights<true>(note);
    } else {
      to_weights<false>(note);
    }
    return __any_sync(~0u, moved);
  }

  template <bool kAnyLinear>
  __device__ void to_weights(const TileNote& note) {
    float scale[2], shift[2];
    if constexpr (kAnyLinear) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i] = 1.0f / static_cast<float>(note.length);
        shift[i] = k.rows.bias(note.sequence, slot + 8 * i) * scale[i];
      }
    }
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = e / 2;
        const float score = scores[4 * j + e];
        float weight = exp2_fast(fmaf(score, kLog2E, -reference[i]));
        if constexpr (kAnyLinear) {
          weight = !linear(i) ? weight : score == -INFINITY ? 0.0f : fmaf(score, scale[i], shift[i]);
        }
        sum[i] += weight;
        scores[4 * j + e] = weight;
      }
      if constexpr (kDropout) {
        const uint32_t bits =
            kept_slots_by_tokens(key, static_cast<uint32_t>(note.sequence), static_cast<uint32_t>(slot),
                                 static_cast<uint32_t>(note.first_token + 8 * j));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[4 * j + e] = (bits >> e) & 1 ? scores[4 * j + e] : 0.0f;
          kept[e / 2] += scores[4 * j + e];
        }
      }
    }
  }

  /// Writes a whole sequence's summary, or a part for the merge.
  __device__ void finish(const TileNote& note) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = sum[i];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      float total_kept = total;
      if constexpr (kDropout) {
        total_kept = kept[i];
        total_kept += __shfl_xor_sync(~0u, total_kept, 1);
        total_kept += __shfl_xor_sync(~0u, total_kept, 2);
      }
      const int own = slot + 8 * i;
      if (own >= k.rows.rows) {
        continue;
      }
      const bool whole = note.place < 0;
      const bool writes_scalars = (lane() & 3) == 0;
      float* target;
      float multiplier = 1.0f;
      if (whole) {
        const int64_t row = static_cast<int64_t>(note.sequence) * k.rows.rows + own;
        const float divisor = linear(i) ? 1.0f : total;
        multiplier = k.keep_scale / divisor;
        target = k.c + row * k.rows.width;
        if (writes_scalars) {
          k.r[row] = total_kept / divisor * k.keep_scale;
          k.lse[row] = linear(i) ? logf(static_cast<float>(note.length))
                                 : (reference[i] + log2f(total)) * kLn2 + k.rows.bias(note.sequence, own);
        }
      } else {
        const int64_t row =
            static_cast<int64_t>(k.division.first_place(block) + note.place) * kBlockSlots + own % kBlockSlots;
        target = k.parts.sums + row * k.rows.width;
        if (writes_scalars) {
          k.parts.reference[row] = linear(i) ? 0.0f : reference[i];
          k.parts.total[row] = total;
          k.parts.kept[row] = total_kept;
        }
      }
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
        const int column = 8 * j + 2 * (lane() & 3);
        if (column < k.rows.width) {
          *reinterpret_cast<float2*>(target + column) =
              make_float2(sums[4 * j + 2 * i] * multiplier, sums[4 * j + 2 * i + 1] * multiplier);
        }
      }
    }
  }

  const CompressKernel& k;
  unsigned char* shared;
  const bool single;
  const int consumer;
  int block;
  bool rows_stay;  // the same for every sequence
  int slot;        // of the thread's first row; the second is 8 further on
  int at;          // the stage
  uint32_t parity = 0;
  MaskKey key{};
  float reference[2];  // what weights are relative to, in powers of two
  float sum[2];        // of the weights
  float kept[2];       // of the weights that dropout keeps
  float sums[kWidth / 2];
  float scores[kTokens / 2];
  uint32_t weights[kTokens / 4];
};

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    compress_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ CompressKernel k) {
  using L = Layout<kPanels>;
  extern __shared__ unsigned char raw[];
  unsigned char* shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
  const bool single = static_cast<int>(blockIdx.x) >= k.division.pairs * k.division.pair_ranges;
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    auto* full = reinterpret_cast<uint64_t*>(shared + L::kBarrierOffset);
    for (int stage = 0; stage < L::kMostStages; ++stage) {
      barrier_init(full + stage, 1);
      barrier_init_for_warps(full + L::kMostStages + stage, single ? 4 : 8);  // the consuming ones
    }
    barriers_ready();
  }
  take_turn();
  int begin_0, begin_1;
  first_sequences_behind(k.bounds, find_worker(k.division, k.rows_in_all, 0).first_row,
                         find_worker(k.division, k.rows_in_all, 1).first_row, kThreads, begin_0, begin_1);
  __syncthreads();

  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      produce<kPanels>(map, k, shared, single, begin_0, begin_1);
    }
  } else {
    take_registers<232>();
    Consumer<T, kPanels, kDropout>(k, shared, single, group - 1).run();
  }
}

SlotDivision division_of(const CompressArguments& a, int multiprocessors) {
  return divide_slots(a.rows.rows(), static_cast<int>(a.x.rows), multiprocessors, kTokens);
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const CompressArguments& a, int multiprocessors, cudaStream_t stream) {
  CompressKernel k{};
  k.rows_in_all = static_cast<int>(a.x.rows);
  k.bounds = {a.bounds.begin, a.bounds.end, static_cast<int>(a.bounds.count)};
  k.rows = view_of(a.rows, a.x.width, a.element);
  k.division = division_of(a, multiprocessors);
  k.rng = a.dropout.rng;
  k.threshold = philox::threshold(a.dropout.p);
  k.keep_scale = static_cast<float>(1.0 / (1.0 - a.dropout.p));
  k.c = a.out.c;
  k.r = a.out.r;
  k.lse = a.out.lse;
  k.parts = part_store(a.workspace, k.division, a.x.width);

  CUtensorMap map;
  if (const auto status = describe_matrix(map, a.element, a.x, kTokens); status != cudaSuccess) {
    return status;
  }
  auto* kernel = compress_kernel<T, kPanels, kDropout>;
  constexpr int kBytes = Layout<kPanels>::kBytes;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess) {
    return status;
  }
  if (const auto status = launch_overlapped(kernel, k.division.thread_blocks(), kThreads, kBytes, stream, map, k);
      status != cudaSuccess) {
    return status;
  }
  MergeSummaries merge{k.bounds, k.division, k.parts, k.rows, k.keep_scale, a.out.c, a.out.r, a.out.lse};
  return launch_merge(merge, stream);
}

template <class T>
cudaError_t launch_width(const CompressArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.dropout.p > 0 ? launch<T, kPanels, true>(a, multiprocessors, stream)
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

const char* compress_obstacle(const CompressArguments& a) {
  return width_obstacle(a.element, a.x);
}

size_t compress_workspace(const CompressArguments& a, int multiprocessors) {
  return part_store_bytes(division_of(a, multiprocessors), a.x.width);
}

cudaError_t compress(const CompressArguments& a, int multiprocessors, cudaStream_t stream) {
  return a.element == Element::float16 ? launch_width<__half>(a, multiprocessors, stream)
                                       : launch_width<__nv_bfloat16>(a, multiprocessors, stream);
}

}  // namespace dba::ops::cuda::hopper
