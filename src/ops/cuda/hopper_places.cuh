#pragma once

#include "ops/cuda/hopper_compress.cuh"

namespace dba::ops::cuda::hopper {

/// The places that hold the parts of one sequence for one block of slots, in order.
struct Places {
  int first;   // place of the first part
  int pieces;  // parts of each range
  int count;   // 0: the sequence is empty or lies in one range

  __device__ int operator[](int part) const {
    // The parts of the first range begin their sequence; the others are the beginnings of their ranges.
    return first + 2 * part - (part < pieces ? 0 : 1);
  }
};

__device__ inline Places places_of(const SlotDivision& division, int pieces, int block, int begin, int end) {
  const int length = division.range_rows(block);
  const int first_range = begin / length;
  int last_range = (end - 1) / length;
  while (last_range > first_range && cut(last_range * length, begin) >= end) {
    --last_range;
  }
  if (last_range <= first_range) {  // or an empty sequence
    return {0, pieces, 0};
  }
  return {division.first_place(block) + 2 * pieces * first_range + 1, pieces, pieces * (last_range - first_range + 1)};
}

}  // namespace dba::ops::cuda::hopper
