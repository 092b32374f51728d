#include <cuda_runtime.h>

#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_merge.cuh"
#include "ops/cuda/hopper_rows.cuh"
#include "ops/cuda/kernel_row.cuh"
#include "ops/cuda/slot_softmax.cuh"
#include "ops/cuda/tensor_map.h"

/// Restore's backward but for dX, over tiles of 64 tokens and 64 slots. The first warp group recomputes the weights U
/// and sums dM = Ũᵀ dY; the second takes dU = dY Mᵀ, turns it into the scores' gradient dS, and sums dF = dSᵀ X. The
/// producer's other warps sum dY for the bias.
namespace dba::ops::cuda::hopper {
namespace {

constexpr int kTokens = 64;
constexpr int kStages = 2;
constexpr int kThreads = 384;
constexpr int kGroupThreads = 128;
constexpr int kSummers = 3;  // warps that sum dY
constexpr uint32_t kSite = 2;
enum NamedBarrier { kFirstGroup = 1, kSecondGroup = 2 };

struct RestoreBackwardKernel {
  int rows_in_all;
  int ranges;
  int range_rows;
  SequenceBounds bounds;
  ScoreRowsView rows;
  int slots;
  int d_p;
  bool linear;
  const int64_t* rng;
  uint32_t threshold;
  float keep_scale;
  int out_width;
  void* dscores;
  float* dm;
  float* dm_parts;         // (2 · ranges for each slot block, 64, d_out)
  float* drows_parts;      // (ranges, slot blocks · 64, d)
  float* dbias_parts;      // (ranges, slot blocks · 64) or null
  float* dout_bias_parts;  // (ranges · kSummers, d_out) or null
};

struct TileNote {
  int sequence;
  int first_token;
  int row;
  int tokens;  // 0: there are no more
  int begins;
  int ends;
  int place;  // −1: a whole sequence
};

template <int kPanels>
struct Layout {
  static constexpr int kTile = kPanels * kTokens * kPanelRowBytes;
  static constexpr int kStage = 2 * kTile;  // X, then dY
  static constexpr int kF = kStages * kStage;
  static constexpr int kM = kF + kPanels * kBlockSlots * kPanelRowBytes;
  static constexpr int kWeights = kM + kPanels * kBlockSlots * kPanelRowBytes;  // Ũ, 64 tokens × 64 slots
  static constexpr int kGradients = kWeights + kTokens * kPanelRowBytes;        // dS
  static constexpr int kExchange = kGradients + kTokens * kPanelRowBytes;       // U in float, 32 a thread
  static constexpr int kKept = kExchange + 32 * kGroupThreads * 4;              // the mask, 32 bits a thread
  static constexpr int kBias = kKept + kGroupThreads * 4;
  static constexpr int kNotes = kBias + kBlockSlots * 4;
  static constexpr int kBarriers = (kNotes + kStages * static_cast<int>(sizeof(TileNote)) + 7) / 8 * 8;
  static constexpr int kBytes = kBarriers + (2 * kStages + 5) * 8 + 1024;
};

template <class T, int kPanels>
struct Block {
  using L = Layout<kPanels>;
  const RestoreBackwardKernel& k;
  unsigned char* shared;

  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(shared + L::kBarriers) + stage;
  }
  __device__ uint64_t* empty(int stage) const {
    return full(kStages + stage);
  }
  __device__ uint64_t* m_full() const {
    return full(2 * kStages);
  }
  __device__ uint64_t* m_empty() const {
    return full(2 * kStages + 1);
  }
  /// Between the two groups: a tile's last rows are cleared; the first group's weights are there; they were taken.
  __device__ uint64_t* cleared() const {
    return full(2 * kStages + 2);
  }
  __device__ uint64_t* weights_ready() const {
    return full(2 * kStages + 3);
  }
  __device__ uint64_t* weights_taken() const {
    return full(2 * kStages + 4);
  }
  __device__ TileNote& note(int stage) const {
    return reinterpret_cast<TileNote*>(shared + L::kNotes)[stage];
  }
  __device__ unsigned char* x(int stage) const {
    return shared + stage * L::kStage;
  }
  __device__ unsigned char* dy(int stage) const {
    return x(stage) + L::kTile;
  }
  __device__ int range() const {
    return static_cast<int>(blockIdx.x);
  }
  __device__ int slot_block() const {
    return static_cast<int>(blockIdx.y);
  }
  __device__ int first_row() const {
    return min(k.rows_in_all, range() * k.range_rows);
  }
  __device__ int last_row() const {
    return min(k.rows_in_all, first_row() + k.range_rows);
  }
  __device__ bool sums_dy() const {
    return slot_block() == 0 && k.dout_bias_parts != nullptr;
  }

  __device__ void feed(const CUtensorMap& x_map, const CUtensorMap& dy_map, const CUtensorMap& m_map,
                       int first_sequence) {
    PartWalk walk(k.bounds, first_row(), last_row(), first_sequence);
    Part part;
    RingPlace<kStages> ring;
    uint32_t m_parity = 1;
    while (walk.next(part)) {
      barrier_wait(m_empty(), m_parity);
      m_parity ^= 1;
      barrier_expect(m_full(), kPanels * kBlockSlots * kPanelRowBytes);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        copy_box(shared + L::kM + panel * kBlockSlots * kPanelRowBytes, &m_map, panel * kPanelColumns,
                 slot_block() * kBlockSlots, part.sequence, m_full());
      }
      for (int done = 0; done < part.tokens; done += kTokens) {
        const int left = part.tokens - done;
        barrier_wait(empty(ring.stage), ring.parity ^ 1);
        note(ring.stage) = {part.sequence,
                            part.first_token() + done,
                            part.first + done,
                            min(left, kTokens),
                            done == 0,
                            left <= kTokens,
                            part.whole() ? -1 : part_place(range(), part)};
        barrier_expect(full(ring.stage), L::kStage);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          const int offset = panel * kTokens * kPanelRowBytes;
          copy_box(x(ring.stage) + offset, &x_map, panel * kPanelColumns, part.first + done, full(ring.stage));
          copy_box(dy(ring.stage) + offset, &dy_map, panel * kPanelColumns, part.first + done, full(ring.stage));
        }
        ring.advance();
      }
    }
    barrier_wait(empty(ring.stage), ring.parity ^ 1);
    note(ring.stage).tokens = 0;
    barrier_arrive(full(ring.stage));
  }

  /// Σ dY over the range's tokens: a lane has 8 columns, a warp every third row.
  __device__ void sum_dy(int summer, int lane) {
    float sums[8] = {};
    RingPlace<kStages> ring;
    const bool has_columns = lane * 8 < kPanels * kPanelColumns;
    while (true) {
      barrier_wait(full(ring.stage), ring.parity);
      const int tokens = note(ring.stage).tokens;
      if (tokens == 0) {
        break;
      }
      const unsigned char* panel = dy(ring.stage) + (lane / 8) * kTokens * kPanelRowBytes;
      for (int row = summer; has_columns && row < tokens; row += kSummers) {
        const uint4 chunk = *reinterpret_cast<const uint4*>(panel + swizzled(row, lane % 8));
        const uint32_t pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack<T>(pairs[i]);
          sums[2 * i] += pair.x;
          sums[2 * i + 1] += pair.y;
        }
      }
      barrier_arrive_as_warp(empty(ring.stage));
      ring.advance();
    }
    if (lane * 8 < k.out_width) {
      float* target = k.dout_bias_parts + static_cast<int64_t>(range() * kSummers + summer) * k.out_width + lane * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        target[i] = sums[i];
      }
    }
  }
};

__device__ inline int group_thread() {
  return recomputed(static_cast<int>(threadIdx.x)) % kGroupThreads;
}

/// What both consumers do: wait for a tile, clear what is not the part's, 64 × 64 products, sums over tokens.
template <class T, int kPanels>
class Group {
 protected:
  using L = Layout<kPanels>;
  static constexpr int kWidth = kPanels * kPanelColumns;

 public:
  __device__ Group(const Block<T, kPanels>& block, int which) : b(block), consumer(which) {}

 protected:
  __device__ const TileNote& begin_tile() {
    barrier_wait(b.full(ring.stage), ring.parity);
    const TileNote& note = b.note(ring.stage);
    if (note.tokens > 0 && note.tokens < kTokens) {
      const int thread = consumer * kGroupThreads + group_thread();
      clear_rows<kPanels, kTokens, 2 * kGroupThreads>(b.x(ring.stage), note.tokens, thread);
      clear_rows<kPanels, kTokens, 2 * kGroupThreads>(b.dy(ring.stage), note.tokens, thread);
      publish_shared();
      barrier_arrive_as_warp(b.cleared());
      barrier_wait(b.cleared(), cleared_parity);
      cleared_parity ^= 1;
    }
    return note;
  }
  __device__ void end_tile() {
    barrier_arrive_as_warp(b.empty(ring.stage));
    ring.advance();
  }
  /// scores = tile (64 tokens) · rows (64 slots)ᵀ.
  __device__ void score(unsigned char* tile, unsigned char* rows) {
    const uint64_t of_tile = descriptor_along_k(shared_address(tile));
    const uint64_t of_rows = descriptor_along_k(shared_address(rows));
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
  /// Scores, rounded, into a tile of 64 tokens × 64 slots, and then sums += that tileᵀ · tile.
  __device__ void put(unsigned char* target) {
    const int thread = group_thread();
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<uint32_t*>(target + swizzled(row + 8 * i, j) + (thread & 3) * 4) =
            pack<T>(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]);
      }
    }
    publish_shared();
    named_barrier(consumer == 0 ? kFirstGroup : kSecondGroup, kGroupThreads);
  }
  __device__ void accumulate(unsigned char* by_slots, unsigned char* tile, bool first) {
    const uint64_t of_slots = descriptor_along_rows(shared_address(by_slots), kTokens * kPanelRowBytes);
    const uint64_t of_tile = descriptor_along_rows(shared_address(tile), kTokens * kPanelRowBytes);
    products_begin();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const int offset = step * 16 * kPanelRowBytes / 16;
      multiply_shared<T, kWidth, kAlongRows, kAlongRows>(sums, of_slots + offset, of_tile + offset, step > 0 || !first);
    }
    products_commit();
    products_wait<0>();
    pin(sums);
  }
  /// 64 slots × kWidth sums as floats into rows of `width`; the first `slots` rows exist.
  __device__ void write_sums(float* target, int width, int slots) const {
    const int thread = group_thread();
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const int column = 8 * j + 2 * (thread & 3);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (column < width && row + 8 * i < slots) {
          *reinterpret_cast<float2*>(target + static_cast<int64_t>(row + 8 * i) * width + column) =
              make_float2(sums[4 * j + 2 * i], sums[4 * j + 2 * i + 1]);
        }
      }
    }
  }
  __device__ float* exchange() const {
    return reinterpret_cast<float*>(b.shared + L::kExchange) + group_thread();
  }
  __device__ uint32_t* kept_bits() const {
    return reinterpret_cast<uint32_t*>(b.shared + L::kKept) + group_thread();
  }

  const Block<T, kPanels>& b;
  const int consumer;
  uint32_t cleared_parity = 0;
  RingPlace<kStages> ring;
  float scores[32];
  float sums[kWidth / 2];
};

template <class T, int kPanels, bool kDropout>
class WeightsGroup : Group<T, kPanels> {
  using Base = Group<T, kPanels>;
  using L = Layout<kPanels>;
  using Base::b;
  using Base::ring;
  using Base::scores;

 public:
  __device__ explicit WeightsGroup(const Block<T, kPanels>& block) : Base(block, 0) {}

  __device__ void run() {
    MaskKey key{};
    if constexpr (kDropout) {
      key = {static_cast<uint64_t>(b.k.rng[0]), static_cast<uint64_t>(b.k.rng[1]), kSite, b.k.threshold};
    }
    for (uint32_t turn = 0;; turn ^= 1) {
      const TileNote& note = this->begin_tile();
      if (note.tokens == 0) {
        return;
      }
      this->score(b.x(ring.stage), b.shared + L::kF);
      const auto* bias = reinterpret_cast<const float2*>(b.shared + L::kBias);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 pair = bias[4 * j + (group_thread() & 3)];
        scores[4 * j] += pair.x;
        scores[4 * j + 1] += pair.y;
        scores[4 * j + 2] += pair.x;
        scores[4 * j + 3] += pair.y;
      }
      if (!b.k.linear) {
        with_slots(b.k.d_p, [&](auto slots) { softmax_over_groups<decltype(slots)::value>(scores); });
      }
      barrier_wait(b.weights_taken(), turn ^ 1);  // those of the tile before; the first time nothing is waited for
      float* exchange = this->exchange();
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        exchange[i * kGroupThreads] = scores[i];
      }
      if constexpr (kDropout) {
        uint32_t all = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const uint32_t bits = kept_tokens_by_slots(
              key, static_cast<uint32_t>(note.sequence),
              static_cast<uint32_t>(note.first_token + group_thread() / 32 * 16),
              static_cast<uint32_t>(b.slot_block() * kBlockSlots + 8 * j + 2 * (group_thread() & 3)));
          all |= bits << (4 * j);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            scores[4 * j + e] = (bits >> e) & 1 ? scores[4 * j + e] * b.k.keep_scale : 0.0f;
          }
        }
        *this->kept_bits() = all;
      }
      barrier_arrive_as_warp(b.weights_ready());
      this->put(b.shared + L::kWeights);
      this->accumulate(b.shared + L::kWeights, b.dy(ring.stage), note.begins);
      if (note.ends) {
        const int first_slot = b.slot_block() * kBlockSlots;
        float* target = note.place < 0
                            ? b.k.dm + (static_cast<int64_t>(note.sequence) * b.k.slots + first_slot) * b.k.out_width
                            : b.k.dm_parts + static_cast<int64_t>(2 * b.k.ranges * b.slot_block() + note.place) *
                                                 kBlockSlots * b.k.out_width;
        this->write_sums(target, b.k.out_width, b.k.slots - first_slot);
      }
      this->end_tile();
      named_barrier(kFirstGroup, kGroupThreads);  // the weights' tile may be written again
    }
  }
};

template <class T, int kPanels, bool kDropout>
class GradientsGroup : Group<T, kPanels> {
  using Base = Group<T, kPanels>;
  using L = Layout<kPanels>;
  using Base::b;
  using Base::ring;
  using Base::scores;

 public:
  __device__ explicit GradientsGroup(const Block<T, kPanels>& block) : Base(block, 1) {}

  __device__ void run() {
    bool first = true;
    uint32_t m_parity = 0, turn = 0;
    while (true) {
      const TileNote& note = this->begin_tile();
      if (note.tokens == 0) {
        break;
      }
      if (note.begins) {
        barrier_wait(b.m_full(), m_parity);
        m_parity ^= 1;
      }
      this->score(b.dy(ring.stage), b.shared + L::kM);
      if (note.ends) {
        barrier_arrive_as_warp(b.m_empty());
      }
      barrier_wait(b.weights_ready(), turn);
      turn ^= 1;
      take_weights();
      this->put(b.shared + L::kGradients);
      write_gradients(note);
      this->accumulate(b.shared + L::kGradients, b.x(ring.stage), first);
      first = false;
      this->end_tile();
      named_barrier(kSecondGroup, kGroupThreads);  // the gradients' tile may be written again
      barrier_arrive_as_warp(b.weights_taken());
    }
    if (first) {  // not a single token
#pragma unroll
      for (int i = 0; i < Base::kWidth / 2; ++i) {
        this->sums[i] = 0.0f;
      }
    }
    const int64_t blocks = gridDim.y;
    this->write_sums(
        b.k.drows_parts + (b.range() * blocks + b.slot_block()) * kBlockSlots * static_cast<int64_t>(b.k.rows.width),
        b.k.rows.width, kBlockSlots);
    if (b.k.dbias_parts != nullptr) {
      write_bias(b.k.dbias_parts + (b.range() * blocks + b.slot_block()) * kBlockSlots);
    }
  }

 private:
  /// dU → dS, with the weights of the first group.
  __device__ void take_weights() {
    const float* exchange = this->exchange();
    if constexpr (kDropout) {
      const uint32_t bits = *this->kept_bits();
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        scores[i] = (bits >> i) & 1 ? scores[i] * b.k.keep_scale : 0.0f;
      }
    }
    if (!b.k.linear) {
      float weights[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        weights[i] = exchange[i * kGroupThreads];
      }
      with_slots(b.k.d_p, [&](auto slots) { softmax_gradient_over_groups<decltype(slots)::value>(weights, scores); });
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      column_sums[2 * j] += scores[4 * j] + scores[4 * j + 2];
      column_sums[2 * j + 1] += scores[4 * j + 1] + scores[4 * j + 3];
    }
  }

  __device__ void write_gradients(const TileNote& note) const {
    const int first_slot = b.slot_block() * kBlockSlots;
    auto* target = static_cast<T*>(b.k.dscores) + static_cast<int64_t>(note.row) * b.k.slots + first_slot;
    const unsigned char* tile = b.shared + L::kGradients;
    const int thread = group_thread();
#pragma unroll
    for (int round = 0; round < kTokens * 8 / kGroupThreads; ++round) {
      const int row = (thread + round * kGroupThreads) / 8;
      const int chunk = thread % 8;
      if (row < note.tokens && first_slot + chunk * 8 < b.k.slots) {
        *reinterpret_cast<uint4*>(target + static_cast<int64_t>(row) * b.k.slots + chunk * 8) =
            *reinterpret_cast<const uint4*>(tile + swizzled(row, chunk));
      }
    }
  }

  /// Σ dS over the range's tokens, through the exchange's place: lanes, then warps, in a fixed order.
  __device__ void write_bias(float* target) {
    const int thread = group_thread();
    auto* partial = reinterpret_cast<float*>(b.shared + L::kExchange);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = column_sums[i];
      sum += __shfl_xor_sync(~0u, sum, 4);
      sum += __shfl_xor_sync(~0u, sum, 8);
      sum += __shfl_xor_sync(~0u, sum, 16);
      if (thread % 32 < 4) {
        partial[thread / 32 * kBlockSlots + (i / 2) * 8 + 2 * (thread & 3) + i % 2] = sum;
      }
    }
    named_barrier(kSecondGroup, kGroupThreads);
    if (thread < kBlockSlots) {
      target[thread] = partial[thread] + partial[thread + 64] + partial[thread + 128] + partial[thread + 192];
    }
  }

  float column_sums[16] = {};
};

template <class T, int kPanels, bool kDropout>
__global__ void __launch_bounds__(kThreads, 1)
    restore_backward_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap dy_map,
                            const __grid_constant__ CUtensorMap m_map,
                            const __grid_constant__ RestoreBackwardKernel k) {
  using L = Layout<kPanels>;
  extern __shared__ unsigned char raw[];
  Block<T, kPanels> block{k, raw + ((1024 - (shared_address(raw) & 1023)) & 1023)};
  if (threadIdx.x == 0) {
    prefetch_map(&x_map);
    prefetch_map(&dy_map);
    prefetch_map(&m_map);
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(block.full(stage), 1);
      barrier_init_for_warps(block.empty(stage), 8 + (block.sums_dy() ? kSummers : 0));
    }
    barrier_init(block.m_full(), 1);
    barrier_init_for_warps(block.m_empty(), 4);
    barrier_init_for_warps(block.cleared(), 8);
    barrier_init_for_warps(block.weights_ready(), 4);
    barrier_init_for_warps(block.weights_taken(), 4);
    barriers_ready();
  }
  take_turn();
  const int first_slot = block.slot_block() * kBlockSlots;
  if (threadIdx.x < kBlockSlots) {
    reinterpret_cast<float*>(block.shared + L::kBias)[threadIdx.x] =
        k.rows.bias(0, first_slot + static_cast<int>(threadIdx.x));
  }
  if (threadIdx.x < 256) {
    load_rows<T, kPanels, 256>(block.shared + L::kF, k.rows.width, static_cast<int>(threadIdx.x), [&](int i) {
      return first_slot + i < k.slots ? k.rows.row<T>(0, first_slot + i) : static_cast<const T*>(nullptr);
    });
  }
  publish_shared();
  const int first_sequence = first_sequence_behind(k.bounds, block.first_row(), kThreads);
  __syncthreads();

  const int group = warp_group();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      block.feed(x_map, dy_map, m_map, first_sequence);
    } else if (threadIdx.x >= 32) {
      const int thread = static_cast<int>(threadIdx.x) - 32;
      if (block.sums_dy()) {
        block.sum_dy(thread / 32, thread % 32);
      }
      if (block.slot_block() == 0) {
        clear_rows_of_nobody<T, 32 * kSummers>(k.bounds, block.first_row(), block.last_row(), first_sequence, k.dscores,
                                               k.slots, thread);
      }
    }
  } else if (group == 1) {
    take_registers<232>();
    WeightsGroup<T, kPanels, kDropout>(block).run();
  } else {
    take_registers<232>();
    GradientsGroup<T, kPanels, kDropout>(block).run();
  }
}

struct Plan {
  int panels;
  int slot_blocks;
  int ranges;
  int range_rows;
  float* dm_parts;
  float* drows_parts;
  float* dbias_parts;
  float* dout_bias_parts;
  size_t bytes;
};

Plan plan_of(const RestoreBackwardArguments& a, int multiprocessors) {
  Plan plan{};
  const auto& f = a.forward;
  const int width = f.x.width > f.out_width ? f.x.width : f.out_width;
  plan.panels = panels_for(width);
  plan.slot_blocks = (f.rows.rows() + kBlockSlots - 1) / kBlockSlots;
  const int rows = static_cast<int>(f.x.rows);
  const int most = rows / kTokens + 1;
  const int wanted = multiprocessors > plan.slot_blocks ? multiprocessors / plan.slot_blocks : 1;
  plan.ranges = wanted < most ? wanted : most;
  plan.range_rows = range_length(rows, plan.ranges);
  auto* next = static_cast<float*>(a.workspace);
  size_t floats = 0;
  const auto take = [&](size_t count) {
    float* place = next == nullptr ? nullptr : next + floats;
    floats += (count + 31) / 32 * 32;
    return place;
  };
  const size_t padded_slots = static_cast<size_t>(plan.slot_blocks) * kBlockSlots;
  plan.dm_parts = take(2 * plan.ranges * padded_slots * f.out_width);
  plan.drows_parts = take(plan.ranges * padded_slots * f.x.width);
  plan.dbias_parts = take(plan.ranges * padded_slots);
  plan.dout_bias_parts = take(static_cast<size_t>(plan.ranges) * kSummers * f.out_width);
  plan.bytes = floats * sizeof(float);
  return plan;
}

template <class T, int kPanels, bool kDropout>
cudaError_t launch(const RestoreBackwardArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto& f = a.forward;
  const Plan plan = plan_of(a, multiprocessors);
  RestoreBackwardKernel k{};
  k.rows_in_all = static_cast<int>(f.x.rows);
  k.ranges = plan.ranges;
  k.range_rows = plan.range_rows;
  k.bounds = {f.bounds.begin, f.bounds.end, static_cast<int>(f.bounds.count)};
  k.rows = view_of(f.rows, f.x.width, f.element);
  k.slots = f.rows.rows();
  k.d_p = k.slots / f.heads;
  k.linear = f.linear;
  k.rng = f.dropout.rng;
  k.threshold = philox::threshold(f.dropout.p);
  k.keep_scale = static_cast<float>(1.0 / (1.0 - f.dropout.p));
  k.out_width = f.out_width;
  k.dscores = a.dscores;
  k.dm = a.dm;
  k.dm_parts = plan.dm_parts;
  k.drows_parts = plan.drows_parts;
  k.dbias_parts = a.dbias != nullptr ? plan.dbias_parts : nullptr;
  k.dout_bias_parts = a.dout_bias != nullptr ? plan.dout_bias_parts : nullptr;

  CUtensorMap x_map, dy_map, m_map;
  for (const auto status :
       {describe_matrix(x_map, f.element, f.x, kTokens), describe_matrix(dy_map, f.element, a.dy, kTokens),
        describe_matrices(m_map, f.element, f.m_elements, f.bounds.count, k.slots, f.out_width, kBlockSlots)}) {
    if (status != cudaSuccess) {
      return status;
    }
  }
  auto* kernel = restore_backward_kernel<T, kPanels, kDropout>;
  constexpr int kBytes = Layout<kPanels>::kBytes;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess) {
    return status;
  }
  if (const auto status = launch_overlapped(kernel, dim3(plan.ranges, plan.slot_blocks), kThreads, kBytes, stream,
                                            x_map, dy_map, m_map, k);
      status != cudaSuccess) {
    return status;
  }
  SlotDivision division;
  division.blocks = plan.slot_blocks;
  division.pairs = (plan.slot_blocks + 1) / 2;
  division.pair_ranges = plan.ranges;
  division.pair_rows = plan.range_rows;
  const int64_t padded_slots = static_cast<int64_t>(plan.slot_blocks) * kBlockSlots;
  RangeSums sums;
  sums.add({plan.drows_parts, padded_slots * f.x.width}, 0, plan.ranges, a.drows,
           static_cast<int64_t>(k.slots) * f.x.width);
  if (a.dbias != nullptr) {
    sums.add({plan.dbias_parts, padded_slots}, 0, plan.ranges, a.dbias, k.slots);
  }
  if (a.dout_bias != nullptr) {
    sums.add({plan.dout_bias_parts, f.out_width}, 0, plan.ranges * kSummers, a.dout_bias, f.out_width);
  }
  const auto status = launch_merge_sums({k.bounds, division, plan.dm_parts, false, k.slots, f.out_width, a.dm}, stream);
  return status == cudaSuccess ? launch_range_sums(sums, stream) : status;
}

template <class T>
cudaError_t launch_width(const RestoreBackwardArguments& a, int multiprocessors, cudaStream_t stream) {
  const auto with = [&](auto panels) {
    constexpr int kPanels = decltype(panels)::value;
    return a.forward.dropout.p > 0 ? launch<T, kPanels, true>(a, multiprocessors, stream)
                                   : launch<T, kPanels, false>(a, multiprocessors, stream);
  };
  switch (plan_of(a, multiprocessors).panels) {
    case 1:
      return with(std::integral_constant<int, 1>{});
    case 2:
      return with(std::integral_constant<int, 2>{});
    default:
      return with(std::integral_constant<int, 4>{});
  }
}

}  // namespace

const char* restore_backward_obstacle(const RestoreBackwardArguments& a) {
  if (a.forward.rows.rows() % 8 != 0) {
    return "the Hopper kernels take multiples of 8 slots";
  }
  return restore_obstacle(a.forward);
}

size_t restore_backward_workspace(const RestoreBackwardArguments& a, int multiprocessors) {
  return plan_of(a, multiprocessors).bytes;
}

cudaError_t restore_backward(const RestoreBackwardArguments& a, int multiprocessors, cudaStream_t stream) {
  return a.forward.element == Element::float16 ? launch_width<__half>(a, multiprocessors, stream)
                                               : launch_width<__nv_bfloat16>(a, multiprocessors, stream);
}

}  // namespace dba::ops::cuda::hopper
