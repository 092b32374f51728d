#pragma once

#include "ops/cuda/core_attend.cuh"
#include "ops/cuda/core_copy.cuh"

/// The parts of core_attend_backward.cu.
namespace dba::ops::cuda::attend_backward {

constexpr int kThreads = 256;

/// The arrays in shared memory, in floats from the start. Rows whose numbers are read four at a time are filled up
/// with zeros.
struct Layout {
  int slot_stride, query_stride, value_stride, narrow_stride;
  int p;           // (d_p, d_p) P'; what dropout dropped has its sign changed
  int ds;          // (d_p, d_p) gradient of P', then of the logits
  int narrow[2];   // (d_p, e) q and k behind R
  int dnarrow[2];  // (d_p, e) and their gradients
  int width;       // (e, w_q) R transposed, staged only, like the next
  int rows[4];     // (d_p, w) q, k, v, dO
  int floats;

  __host__ __device__ Layout(int d_p, int query_width, int value_width, int e, bool with_width, bool staged) {
    slot_stride = d_p | 1;
    query_stride = round_up(query_width, 4) + 4;
    value_stride = round_up(value_width, 4) + 4;
    narrow_stride = round_up(e, 4) + 4;
    const int narrow_floats = with_width ? d_p * narrow_stride : 0;
    narrow[0] = 0;
    narrow[1] = narrow_floats;
    dnarrow[0] = 2 * narrow_floats;
    dnarrow[1] = 3 * narrow_floats;
    width = 4 * narrow_floats;
    rows[0] = width + (with_width && staged ? e * query_stride : 0);
    rows[1] = rows[0] + (staged ? d_p * query_stride : 0);
    rows[2] = rows[1] + (staged ? d_p * query_stride : 0);
    rows[3] = rows[2] + (staged ? d_p * value_stride : 0);
    p = rows[3] + (staged ? d_p * value_stride : 0);
    ds = p + d_p * slot_stride;
    floats = ds + d_p * slot_stride;
  }
};

/// Rows of numbers in shared or global memory.
struct Rows {
  const float* data;
  int stride;

  __device__ const float* at(int row) const {
    return data + static_cast<int64_t>(row) * stride;
  }
};

template <bool kStaged>
__device__ inline float dot(const float* a, const float* b, int depth) {
  if constexpr (kStaged) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int k = 0; k < depth; k += 4) {
      const float4 left = *reinterpret_cast<const float4*>(a + k);
      const float4 right = *reinterpret_cast<const float4*>(b + k);
      sum.x = fmaf(left.x, right.x, sum.x);
      sum.y = fmaf(left.y, right.y, sum.y);
      sum.z = fmaf(left.z, right.z, sum.z);
      sum.w = fmaf(left.w, right.w, sum.w);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
  } else {
    return sum_of_products(
        a, [b](int k) { return b[k]; }, depth);
  }
}

/// Starts the copies of `count` rows of `width` numbers into shared memory, filled up with zeros to fours.
__device__ inline void stage_rows(float* to, int to_stride, const Rows& from, int count, int width) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (width % 4 == 0 && from.stride % 4 == 0 && reinterpret_cast<uintptr_t>(from.data) % 16 == 0) {
    const int quads = width / 4;
#pragma unroll 1
    for (int i = thread; i < count * quads; i += kThreads) {
      const Division place(i, quads);
      const int column = 4 * place.remainder;
      copy_async<16>(to + place.quotient * to_stride + column, from.at(place.quotient) + column);
    }
    return;
  }
  const int padded = round_up(width, 4);
#pragma unroll 1
  for (int i = thread; i < count * padded; i += kThreads) {
    const Division place(i, padded);
    float* const number = to + place.quotient * to_stride + place.remainder;
    if (place.remainder < width) {
      copy_async<4>(number, from.at(place.quotient) + place.remainder);
    } else {
      *number = 0.0f;
    }
  }
}

/// One product out = A B, (d_p, depth) times (depth, width).
struct Mixture {
  const float* a;  // (i, k) at a[i · of_row + k · of_k]
  int of_row, of_k;
  int depth;
  float kept_scale;  // of A: its negative numbers are zeros, the others are scaled; 0: A as it is
  Rows b;
  int width;
  float* out;  // row i at out + i · out_stride
  int out_stride;
  const float* add;  // laid out like out, or null
  float* copy;       // a second place in shared memory, or null
  int copy_stride;
};

/// Four columns of a row of B from `column` on; zeros behind the last.
template <bool kStaged>
__device__ inline float4 four_columns(const Rows& b, int row, int column, int width) {
  const float* const from = b.at(row) + column;
  if constexpr (kStaged) {
    return *reinterpret_cast<const float4*>(from);
  } else {
    const int left = width - column;
    return make_float4(from[0], left > 1 ? from[1] : 0.0f, left > 2 ? from[2] : 0.0f, left > 3 ? from[3] : 0.0f);
  }
}

__device__ inline void write_four(const Mixture& given, int row, int column, const float (&sum)[4]) {
  const int64_t at = static_cast<int64_t>(row) * given.out_stride + column;
  float value[4] = {sum[0], sum[1], sum[2], sum[3]};
  const int count = given.width - column;
  if (given.copy != nullptr) {
    *reinterpret_cast<float4*>(given.copy + row * given.copy_stride + column) =
        make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  if (given.add != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[i] += i < count ? given.add[at + i] : 0.0f;
    }
  }
  if (count >= 4 && reinterpret_cast<uintptr_t>(given.out + at) % 16 == 0) {
    *reinterpret_cast<float4*>(given.out + at) = make_float4(value[0], value[1], value[2], value[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) {
      given.out[at + i] = value[i];
    }
  }
}

/// P' of the rows and the gradient of their logits, in place of that of P'; `lanes` lanes a row.
template <bool kStaged>
__device__ inline void softmax_rows(const CoreAttendBackwardArguments& given, int sequence, int head, const Rows& q,
                                    const Rows& k, float* p, float* ds, int stride) {
  const int d_p = given.d_p;
  const SlotMask mask(given.dropout);
  const int lanes = lanes_of_row(d_p);
  const int first_key = static_cast<int>(threadIdx.x) & (lanes - 1);
  const float scale = 1.0f / sqrtf(static_cast<float>(given.e));
#pragma unroll 1
  for (int base = 0; base < d_p; base += kThreads / lanes) {
    const int slot = base + static_cast<int>(threadIdx.x) / lanes;
    const int end = slot < d_p ? d_p : 0;
    float* const p_row = p + slot * stride;
    float* const ds_row = ds + slot * stride;
    float largest = -INFINITY;
#pragma unroll 1
    for (int key = first_key; key < end; key += lanes) {
      p_row[key] = scale * dot<kStaged>(q.at(slot), k.at(key), given.e);
      largest = fmaxf(largest, p_row[key]);
    }
    largest = group_max(largest, lanes);
    float sum = 0.0f;
#pragma unroll 1
    for (int key = first_key; key < end; key += lanes) {
      p_row[key] = expf(p_row[key] - largest);
      sum += p_row[key];
    }
    const float inverse = 1.0f / group_sum(sum, lanes);
    float products = 0.0f;
#pragma unroll 1
    for (int key = first_key; key < end; key += lanes) {
      const float weight = p_row[key] * inverse;
      const bool kept = mask.kept(sequence, head * d_p + slot, key);
      p_row[key] = kept ? weight : -weight;
      ds_row[key] = kept ? ds_row[key] * mask.scale : 0.0f;
      products = fmaf(weight, ds_row[key], products);
    }
    products = group_sum(products, lanes);
#pragma unroll 1
    for (int key = first_key; key < end; key += lanes) {
      ds_row[key] = fabsf(p_row[key]) * (ds_row[key] - products) * scale;
    }
  }
}

}  // namespace dba::ops::cuda::attend_backward
