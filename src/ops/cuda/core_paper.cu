#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/core_copy.cuh"
#include "ops/cuda/core_paper.cuh"
#include "ops/cuda/kernel_row.cuh"

/// Form `paper` of `core` at the shape most layers have: weights of a half type, 16 slots, heads of 64 columns. A
/// thread block keeps one head's weights in registers and goes through sequences. Twelve warps project the summaries
/// of one sequence while four make M of the one before it, and the summaries of the next two are on their way.
namespace dba::ops::cuda {
namespace {

using namespace paper;

template <class T, int kDepth>
__global__ void __launch_bounds__(kThreads, 1) core_paper_kernel(const __grid_constant__ CorePaperArguments given) {
  using L = Layout<kDepth>;
  extern __shared__ float4 shared_memory[];
  float* const shared = reinterpret_cast<float*>(shared_memory);
  const unsigned thread = threadIdx.x;
  const int warp = static_cast<int>(thread / 32);
  const int g = static_cast<int>(thread / 4 % 8);
  const int t = static_cast<int>(thread % 4);
  const int head = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(blockIdx.y);
  const int step = static_cast<int>(gridDim.y);
  const int count = (given.batch - first + step - 1) / step;
  take_turn();

  // A head's rows of one group lie side by side.
  const auto fetch = [&](int item) {
    if (item < count) {
      const int64_t sequence = first + item * step;
      constexpr unsigned kQuads = kDepth / 4;
#pragma unroll 1
      for (int i = 0; i < 3; ++i) {
        const Lifted& from = given.lifted[i];
        const float* const source = from.source + sequence * from.sequence_stride + head * from.head_stride;
        float* const stage = shared + (item % kStages * 3 + i) * kSlots * L::kStride;
#pragma unroll
        for (unsigned quad = thread; quad < kSlots * kQuads; quad += kThreads) {
          copy_async<16>(stage + quad / kQuads * L::kStride + quad % kQuads * 4, source + quad * 4);
        }
        if (thread < kSlots) {
          float* const sum = shared + L::kSums + (item % kStages * 3 + i) * kSlots + thread;
          if (from.sums != nullptr) {
            copy_async<4>(sum, from.sums + sequence * from.sums_sequence_stride + head * kSlots + thread);
          } else {
            *sum = 1.0f;
          }
        }
      }
    }
    commit_copies();
  };

  const bool lifts = warp < kLiftWarps;
  const int group = lifts ? warp / 4 : 0;
  const int column = lifts ? warp % 4 * 16 : (warp - kLiftWarps) * kMixColumns;
  uint4 held[kHeld] = {};
  const int row_of_pair = 4 * (g / 2) + g % 2;
  if (lifts) {
    constexpr int kBlocks = kDepth / 32;
    const T* const from = static_cast<const T*>(given.lifted[group].weight) +
                          static_cast<int64_t>(head * kHeadWidth + column + row_of_pair) * kDepth + 8 * t;
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      held[i] = *reinterpret_cast<const uint4*>(from + i / kBlocks * 2 * kDepth + i % kBlocks * 32);
    }
  } else {
    const int64_t stride = static_cast<int64_t>(given.heads) * kHeadWidth;
    const T* from =
        static_cast<const T*>(given.out_weight) + (column + row_of_pair) * stride + head * kHeadWidth + 8 * t;
#pragma unroll
    for (int pair = 0; pair < kMixColumns / 16; ++pair) {
      if (column + 16 * pair < given.out_width) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          held[4 * pair + i] = *reinterpret_cast<const uint4*>(from + i / 2 * 2 * stride + i % 2 * 32);
        }
      }
      from += 16 * stride;
    }
  }
  float bias[4] = {};  // of the lane's four columns
  if (lifts && given.lifted[group].bias != nullptr) {
    const T* const from = static_cast<const T*>(given.lifted[group].bias) + head * kHeadWidth + column + 4 * t;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bias[i] = widened(from[i]);
    }
  }
  float* const width = shared + L::kWidth;

#pragma unroll 1
  for (int turn = 1 - kStages; turn <= count; ++turn) {
    if (turn >= 0) {
      await_copies<kStages - 2>();
      __syncthreads();
    }
    fetch(turn + kStages - 1);
    if (turn < 0) {
      if (turn == -1 && given.width != nullptr) {
        // Eight columns of all rows at a time, behind the last zeros.
        static_assert(kThreads == 8 * kHeadWidth);
        const int row = static_cast<int>(thread / 8);
        const T* const from =
            static_cast<const T*>(given.width) + (static_cast<int64_t>(head) * kHeadWidth + row) * given.e;
#pragma unroll 1
        for (int i = static_cast<int>(thread % 8); i < round_up(given.e, 8); i += 8) {
          width[row * width_stride(given.e) + i] = i < given.e ? widened(from[i]) : 0.0f;
        }
      }
      continue;
    }
    if (lifts) {
      if (turn == count) {
        continue;
      }
      float sum[2][4] = {};
      const int stage = turn % kStages;
      lift<T, kDepth>(sum, shared + stage * L::kStage + (group * kSlots + g) * L::kStride + 8 * t, held);
      float* const out = shared + L::kLifted + turn % 2 * kLiftedFloats + group * kSlots * kLiftedStride;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        const float r = shared[L::kSums + (stage * 3 + group) * kSlots + row];
        float4 value;
        value.x = fmaf(r, bias[0], sum[0][2 * half]);
        value.y = fmaf(r, bias[1], sum[0][2 * half + 1]);
        value.z = fmaf(r, bias[2], sum[1][2 * half]);
        value.w = fmaf(r, bias[3], sum[1][2 * half + 1]);
        const int place = column + 4 * t;
        float* const to = out + row * kLiftedStride;
        *reinterpret_cast<float2*>(to + (group == 2 ? value_place(place) : place)) = make_float2(value.x, value.y);
        *reinterpret_cast<float2*>(to + (group == 2 ? value_place(place + 2) : place + 2)) =
            make_float2(value.z, value.w);
        if (group == 0) {
          const int64_t slot = static_cast<int64_t>(first + turn * step) * kSlots + row;
          *reinterpret_cast<float4*>(given.compressed + (slot * given.heads + head) * kHeadWidth + place) =
              make_float4(value.x, value.y, value.z, value.w);
        }
      }
    } else if (turn > 0) {
      const int sequence = first + (turn - 1) * step;
      const float* const lifted = shared + L::kLifted + (turn - 1) % 2 * kLiftedFloats;
      float p[2][4] = {};
      attend(p, given, lifted, width, SlotMask(given.dropout), sequence, head);
      const int64_t row = (static_cast<int64_t>(sequence) * given.heads + head) * kSlots + g;
      mix<T>(given, p, lifted + 2 * kSlots * kLiftedStride, held, row * given.out_width + column + 4 * t,
             given.out_width - column);
    }
  }
}

template <class T, int kDepth>
cudaError_t launch(const CorePaperArguments& given, const CoreDevice& device, cudaStream_t stream) {
  const int bytes = Layout<kDepth>::bytes(given);
  const auto kernel = core_paper_kernel<T, kDepth>;
  if (const auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      status != cudaSuccess) {
    return status;
  }
  const dim3 grid(static_cast<unsigned>(given.heads),
                  static_cast<unsigned>(std::clamp(device.multiprocessors / given.heads, 1, given.batch)));
  return launch_in_row(kernel, grid, kThreads, static_cast<size_t>(bytes), stream, given);
}

template <class T>
cudaError_t launch_depth(const CorePaperArguments& given, const CoreDevice& device, cudaStream_t stream) {
  return given.d == 64    ? launch<T, 64>(given, device, stream)
         : given.d == 128 ? launch<T, 128>(given, device, stream)
                          : launch<T, 256>(given, device, stream);
}

}  // namespace

bool core_paper_serves(const CorePaperArguments& given, const CoreDevice& device) {
  const bool heads_of_64 =
      given.lifted[0].width == kHeadWidth && given.lifted[1].width == kHeadWidth && given.lifted[2].width == kHeadWidth;
  const bool depth = given.d == 64 || given.d == 128 || given.d == 256;
  return given.element != Element::float32 && given.aligned && given.d_p == kSlots && heads_of_64 && depth &&
         given.e <= kMostNarrow && given.out_width % 16 == 0 && given.out_width <= kMostOut &&
         (given.m.rounded == nullptr || given.m.type == given.element) &&
         device.shared_bytes >= Layout<256>::bytes(given);
}

cudaError_t core_paper(const CorePaperArguments& given, const CoreDevice& device, cudaStream_t stream) {
  return given.element == Element::float16 ? launch_depth<__half>(given, device, stream)
                                           : launch_depth<__nv_bfloat16>(given, device, stream);
}

}  // namespace dba::ops::cuda
