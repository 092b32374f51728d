#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "ops/cuda/core_attend.cuh"
#include "ops/cuda/half_types.cuh"

/// Form `paper` of `core` at the shape most layers have: weights of a half type, 16 slots, heads of 64 columns. A
/// thread block has one head of kTiles sequences. Every operand is loaded in one go, weights straight into the
/// registers of the warp that multiplies with them; the summaries are split into two half numbers (value and
/// remainder), so that the products keep 16 bits of them.
///
/// Products are Σ_k A(i, k) B(j, k) by mma.m16n8k16. In a block of 32 a lane holds the eight k from 8 (lane % 4) on,
/// for both operands: the order of k is free as long as they agree, and each operand is one 16-byte load.
namespace dba::ops::cuda {
namespace {

constexpr int kSlots = 16;
constexpr int kHeadWidth = 64;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
static_assert(kHeadWidth / 8 == kWarps, "a warp has eight columns of every projection");
constexpr int kMostNarrow = 64;  // e
/// Words between rows of half numbers: rows of two lanes' loads lie in different banks.
constexpr int kPadWords = 16;

template <class T>
__device__ inline void mma_16x8x16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void mma_16x8x16<__nv_bfloat16>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void mma_16x8x16<__half>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two numbers as a pair of half numbers and the pair of what their rounding leaves.
template <class T>
__device__ inline void split(float x, float y, uint32_t& value, uint32_t& rest) {
  value = pack<T>(x, y);
  const float2 rounded = unpack<T>(value);
  rest = pack<T>(x - rounded.x, y - rounded.y);
}

/// sum += A (16 rows in shared memory, value and remainder) · B (8 rows in registers), over kBlocks blocks of 32.
template <class T, int kBlocks>
__device__ inline void multiply(float (&sum)[4], const uint32_t* values, const uint32_t* rests, int stride,
                                const uint4 (&weights)[kBlocks]) {
  const int lane = threadIdx.x & 31;
  const int at = (lane >> 2) * stride + 4 * (lane & 3);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const uint4& b = weights[block];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const uint32_t* from = (part == 0 ? values : rests) + at + 16 * block;
      const uint4 upper = *reinterpret_cast<const uint4*>(from);
      const uint4 lower = *reinterpret_cast<const uint4*>(from + 8 * stride);
      mma_16x8x16<T>(sum, {upper.x, lower.x, upper.y, lower.y}, b.x, b.y);
      mma_16x8x16<T>(sum, {upper.z, lower.z, upper.w, lower.w}, b.z, b.w);
    }
  }
}

/// In words from the start of shared memory.
template <int kBlocks, int kTiles>
struct PaperLayout {
  static constexpr int kRows = kTiles * kSlots;
  static constexpr int kGroups = kTiles == 1 ? 3 : 1;  // of summaries at a time
  static constexpr int kStride = 16 * kBlocks + kPadWords;
  static constexpr int kMixedStride = kHeadWidth / 2 + kPadWords;
  static constexpr int kLiftedStride = kHeadWidth + 4;
  static constexpr int kValues = 0;
  static constexpr int kRests = kValues + kGroups * kRows * kStride;
  static constexpr int kLifted = kRests + kGroups * kRows * kStride;
  static constexpr int kWidth = kLifted + 3 * kRows * kLiftedStride;  // R
  static constexpr int kNarrow = kWidth + kHeadWidth * kMostNarrow;   // q and k behind R
  static constexpr int kWeights = kNarrow + 2 * kRows * (kMostNarrow + 1);
  static constexpr int kSums = kWeights + kRows * kSlots;
  static constexpr int kWords = kSums + 3 * kRows;
};

template <class T, int kBlocks, int kTiles>
__global__ void __launch_bounds__(kThreads) core_paper_kernel(const CoreForwardArguments given) {
  using L = PaperLayout<kBlocks, kTiles>;
  constexpr int kDepth = 32 * kBlocks;
  extern __shared__ uint32_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int head = static_cast<int>(blockIdx.x) % given.heads;
  const int first = static_cast<int>(blockIdx.x) / given.heads * kTiles;
  const int column = warp * 8 + (lane >> 2);  // of this lane's weight row
  auto* lifted = reinterpret_cast<float*>(shared + L::kLifted);
  auto* sums = reinterpret_cast<float*>(shared + L::kSums);

  uint4 weights[3][kBlocks];
#pragma unroll
  for (int group = 0; group < 3; ++group) {
    const T* row = static_cast<const T*>(given.lifted[group].weight) +
                   static_cast<int64_t>(head * kHeadWidth + column) * kDepth + 8 * (lane & 3);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      weights[group][block] = *reinterpret_cast<const uint4*>(row + 32 * block);
    }
  }
  float bias[3][2] = {};
#pragma unroll
  for (int group = 0; group < 3; ++group) {
    if (given.lifted[group].bias != nullptr) {
      const T* row = static_cast<const T*>(given.lifted[group].bias) + head * kHeadWidth + warp * 8 + 2 * (lane & 3);
      bias[group][0] = widened(row[0]);
      bias[group][1] = widened(row[1]);
    }
  }
  const auto sequence_of = [&](int row) { return min(first + row / kSlots, given.batch - 1); };
  for (int i = thread; i < 3 * L::kRows; i += kThreads) {
    const Lifted& from = given.lifted[i / L::kRows];
    const int row = i % L::kRows;
    sums[i] = from.sums == nullptr
                  ? 1.0f
                  : from.sums[sequence_of(row) * from.sums_sequence_stride + head * kSlots + row % kSlots];
  }
  auto* width = reinterpret_cast<float*>(shared + L::kWidth);
  if (given.width != nullptr) {
    const T* from = static_cast<const T*>(given.width) + static_cast<int64_t>(head) * kHeadWidth * given.e;
    for (int i = thread; i < kHeadWidth * given.e; i += kThreads) {
      width[i] = widened(from[i]);
    }
  }

  // Projections: (W X)_h W_hᵀ + r b_h.
  for (int turn = 0; turn < 3; turn += L::kGroups) {
    __syncthreads();
    constexpr int kQuads = kDepth / 4;
    constexpr int kLoads = L::kGroups * L::kRows * kQuads / kThreads;
    constexpr int kAtOnce = kLoads < 12 ? kLoads : 12;
    static_assert(kLoads % kAtOnce == 0 || kLoads == 16 || kLoads == 32);
    constexpr int kStep = kLoads % kAtOnce == 0 ? kAtOnce : 8;
#pragma unroll 1
    for (int load = 0; load < kLoads; load += kStep) {
      float4 value[kStep];
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const int index = thread + (load + i) * kThreads;
        const int row = index / kQuads;
        const Lifted& from = given.lifted[turn + row / L::kRows];
        const int of_tile = row % L::kRows;
        value[i] = *reinterpret_cast<const float4*>(from.source + sequence_of(of_tile) * from.sequence_stride +
                                                    head * from.head_stride + (of_tile % kSlots) * from.row_stride +
                                                    index % kQuads * 4);
      }
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const int index = thread + (load + i) * kThreads;
        const int at = index / kQuads * L::kStride + index % kQuads * 2;
        uint2 halves, rests;
        split<T>(value[i].x, value[i].y, halves.x, rests.x);
        split<T>(value[i].z, value[i].w, halves.y, rests.y);
        *reinterpret_cast<uint2*>(shared + L::kValues + at) = halves;
        *reinterpret_cast<uint2*>(shared + L::kRests + at) = rests;
      }
    }
    __syncthreads();
#pragma unroll
    for (int group = 0; group < 3; ++group) {
      if (group < turn || group >= turn + L::kGroups) {
        continue;
      }
      const int bias_column = warp * 8 + 2 * (lane & 3);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float sum[4] = {};
        const int from_row = ((group - turn) * L::kRows + tile * kSlots) * L::kStride;
        multiply<T, kBlocks>(sum, shared + L::kValues + from_row, shared + L::kRests + from_row, L::kStride,
                             weights[group]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = tile * kSlots + (lane >> 2) + 8 * half;
          const float r = sums[group * L::kRows + row];
          const float2 value =
              make_float2(fmaf(r, bias[group][0], sum[2 * half]), fmaf(r, bias[group][1], sum[2 * half + 1]));
          *reinterpret_cast<float2*>(lifted + (group * L::kRows + row) * L::kLiftedStride + bias_column) = value;
          if (group == 0 && first + tile < given.batch) {
            *reinterpret_cast<float2*>(given.compressed +
                                       (static_cast<int64_t>(first * kSlots + row) * given.heads + head) * kHeadWidth +
                                       bias_column) = value;
          }
        }
      }
    }
  }
  // The output's weights are on their way while the slots attend.
  constexpr int kOutTiles = 4;
  const auto out_row = [&](int out_tile) {
    const int row = min(out_tile * 8 + (lane >> 2), given.out_width - 1);
    return static_cast<const T*>(given.out_weight) + (static_cast<int64_t>(row) * given.heads + head) * kHeadWidth +
           8 * (lane & 3);
  };
  uint4 out_weights[kOutTiles][2];
#pragma unroll
  for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      out_weights[i][block] = *reinterpret_cast<const uint4*>(out_row(warp + i * kWarps) + 32 * block);
    }
  }
  __syncthreads();

  // Q_DBA and K_DBA.
  const float* q = lifted;
  const float* k = lifted + L::kRows * L::kLiftedStride;
  const float* v = lifted + 2 * L::kRows * L::kLiftedStride;
  int stride = L::kLiftedStride;
  if (given.width != nullptr) {
    auto* narrow = reinterpret_cast<float*>(shared + L::kNarrow);
    stride = given.e | 1;
    for (int i = thread; i < 2 * L::kRows * given.e; i += kThreads) {
      const int row = i / given.e;
      const int of_e = i % given.e;
      float sum = 0.0f;
#pragma unroll 16
      for (int x = 0; x < kHeadWidth; ++x) {
        sum = fmaf(lifted[row * L::kLiftedStride + x], width[x * given.e + of_e], sum);
      }
      narrow[row * stride + of_e] = sum;
    }
    q = narrow;
    k = narrow + L::kRows * stride;
    __syncthreads();
  }
  auto* attention = reinterpret_cast<float*>(shared + L::kWeights);
  const float scale = rsqrtf(static_cast<float>(given.e));
  const SlotMask mask(given.dropout);
  for (int i = thread; i < L::kRows * kSlots; i += kThreads) {
    const int row = i / kSlots;
    const int key = i % kSlots;
    const int tile = row / kSlots;
    float score = 0.0f;
    for (int x = 0; x < given.e; ++x) {
      score = fmaf(q[row * stride + x], k[(tile * kSlots + key) * stride + x], score);
    }
    score *= scale;
    const float weight = expf(score - group_max<kSlots>(score));
    const float sum = group_sum<kSlots>(weight);
    attention[i] = weight / sum * mask(first + tile, head * kSlots + row % kSlots, key);
  }
  __syncthreads();

  // O = P' V, split for the last product; it takes the place of the summaries.
  uint32_t* mixed = shared + L::kValues;
  uint32_t* mixed_rest = shared + L::kRests;
  for (int i = thread; i < L::kRows * kHeadWidth / 2; i += kThreads) {
    const int row = i / (kHeadWidth / 2);
    const int pair = i % (kHeadWidth / 2);
    const int first_key = row / kSlots * kSlots;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int key = 0; key < kSlots; ++key) {
      const float weight = attention[row * kSlots + key];
      const float2 value = *reinterpret_cast<const float2*>(v + (first_key + key) * L::kLiftedStride + 2 * pair);
      sum.x = fmaf(weight, value.x, sum.x);
      sum.y = fmaf(weight, value.y, sum.y);
    }
    split<T>(sum.x, sum.y, mixed[row * L::kMixedStride + pair], mixed_rest[row * L::kMixedStride + pair]);
  }
  __syncthreads();

  // M_h = O_h W_O,hᵀ.
  for (int base = 0; base < given.out_width; base += 8 * kWarps * kOutTiles) {
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
      const int out_tile = base / 8 + warp + i * kWarps;
      if (base > 0) {
        out_weights[i][0] = *reinterpret_cast<const uint4*>(out_row(out_tile));
        out_weights[i][1] = *reinterpret_cast<const uint4*>(out_row(out_tile) + 32);
      }
      const int out_column = out_tile * 8 + 2 * (lane & 3);
      if (out_tile * 8 >= given.out_width) {
        continue;
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float sum[4] = {};
        multiply<T, 2>(sum, mixed + tile * kSlots * L::kMixedStride, mixed_rest + tile * kSlots * L::kMixedStride,
                       L::kMixedStride, out_weights[i]);
        if (first + tile >= given.batch) {
          continue;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t row =
              (static_cast<int64_t>(first + tile) * given.heads + head) * kSlots + (lane >> 2) + 8 * half;
          const int64_t at = row * given.out_width + out_column;
          *reinterpret_cast<float2*>(given.m.m + at) = make_float2(sum[2 * half], sum[2 * half + 1]);
          if (given.m.rounded != nullptr) {
            static_cast<uint32_t*>(given.m.rounded)[at / 2] =
                given.m.type == Element::bfloat16 ? pack<__nv_bfloat16>(sum[2 * half], sum[2 * half + 1])
                                                  : pack<__half>(sum[2 * half], sum[2 * half + 1]);
          }
        }
      }
    }
  }
}

template <class T, int kBlocks, int kTiles>
cudaError_t launch(const CoreForwardArguments& given, cudaStream_t stream) {
  constexpr int kBytes = PaperLayout<kBlocks, kTiles>::kWords * 4;
  const auto kernel = core_paper_kernel<T, kBlocks, kTiles>;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess) {
    return status;
  }
  const auto blocks = static_cast<unsigned>((given.batch + kTiles - 1) / kTiles * given.heads);
  kernel<<<blocks, kThreads, kBytes, stream>>>(given);
  return cudaGetLastError();
}

template <class T, int kTiles>
cudaError_t launch_depth(const CoreForwardArguments& given, cudaStream_t stream) {
  return given.d == 64    ? launch<T, 2, kTiles>(given, stream)
         : given.d == 128 ? launch<T, 4, kTiles>(given, stream)
                          : launch<T, 8, kTiles>(given, stream);
}

}  // namespace

bool core_paper_serves(const CoreForwardArguments& given, const CoreDevice& device) {
  const bool heads_of_64 =
      given.lifted[0].width == kHeadWidth && given.lifted[1].width == kHeadWidth && given.lifted[2].width == kHeadWidth;
  const bool depth = given.d == 64 || given.d == 128 || given.d == 256;
  return given.element != Element::float32 && given.aligned && given.d_p == kSlots && heads_of_64 && depth &&
         given.e <= kMostNarrow && given.out_width % 8 == 0 && device.shared_bytes >= PaperLayout<8, 4>::kWords * 4;
}

cudaError_t core_paper(const CoreForwardArguments& given, const CoreDevice& device, cudaStream_t stream) {
  // Four sequences a block read the weights less often, once there are blocks enough without that.
  const bool many = static_cast<int64_t>(given.batch) * given.heads >= int64_t{4} * device.multiprocessors;
  if (given.element == Element::float16) {
    return many ? launch_depth<__half, 4>(given, stream) : launch_depth<__half, 1>(given, stream);
  }
  return many ? launch_depth<__nv_bfloat16, 4>(given, stream) : launch_depth<__nv_bfloat16, 1>(given, stream);
}

}  // namespace dba::ops::cuda
