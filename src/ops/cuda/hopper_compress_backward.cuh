#pragma once

#include "ops/cuda/hopper_merge.cuh"

/// Compress's backward: what its two kernels share. `prepare` rounds the score rows and dC to elements, 64 rows to a
/// block, and says of every row what turns a score into a weight and a gradient.
namespace dba::ops::cuda::hopper {

/// Of the 64 rows of a block in one sequence.
struct BlockNotes {
  float shift[kBlockSlots];  // softmax: weight = 2^(score · log₂e + shift); linear: weight = (score + shift) / length
  float reduction[kBlockSlots];  // Σ dC ∘ C + dr r − dlse
  float dr[kBlockSlots];
};

struct PreparedRows {
  void* rows;         // (B or 1, padded, d) elements
  void* dc;           // (B, padded, d) elements
  BlockNotes* notes;  // (B, padded / 64)
  bool rows_differ;   // between sequences
  int padded;         // rows, a multiple of 64
};

struct PrepareArguments {
  Element element;
  int count;  // B
  ScoreRowsView rows;
  const float* c;
  const float* r;
  const float* lse;
  const float* dc;
  const float* dr;
  const float* dlse;
  PreparedRows out;
};

cudaError_t launch_prepare(const PrepareArguments& arguments, cudaStream_t stream);

struct BackwardKernel {
  int rows_in_all;
  SequenceBounds bounds;
  PreparedRows prepared;
  int width;    // d
  int rows;     // L
  int softmax;  // the first ones of them
  const int64_t* rng;
  uint32_t threshold;
  float keep_scale;
};

/// dX, token by token.
struct TokensBackward {
  BackwardKernel shared;
  Element element;
  bool dropout;
  Matrix x;
  const void* dscores;  // (N, restore_slots) elements, or null
  const void* restore_rows;
  int restore_slots;
  void* dx;
};

cudaError_t launch_tokens_backward(const TokensBackward& arguments, int multiprocessors, cudaStream_t stream);

/// The gradients of the score rows, slot by slot.
struct RowsBackward {
  BackwardKernel shared;
  Element element;
  bool dropout;
  Matrix x;
  SlotDivision division;
  int each_rows;
  float* deach;             // (B, each_rows, d) or null
  SumOut dshared;           // (shared rows, d) or null
  SumOut dshared_bias;      // (shared rows), becomes zeros, or null
  float* parts;             // (places of the division, 64, d)
  RangeParts shared_parts;  // of shared rows padded to 64, d each
};

/// Ranges that leave a sum for a block of shared rows.
inline int ranges_of_block(const SlotDivision& division, int block) {
  return division.is_single(block) ? division.single_ranges : division.pair_ranges;
}

SlotDivision divide_rows_backward(int slots, int rows, int multiprocessors);
cudaError_t launch_rows_backward(const RowsBackward& arguments, cudaStream_t stream);

}  // namespace dba::ops::cuda::hopper
