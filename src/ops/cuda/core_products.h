#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/passes.h"

/// Many small matrix products in one launch: the projections of `core` and `fold` and all of their gradients.
namespace dba::ops::cuda {

/// along_along: out = A Bᵀ (both k-contiguous); along_across: out = A B; across_across: out = Aᵀ B; copy: out = A.
enum class Orientation { along_along, along_across, across_across, copy };

/// A matrix of every head; row j of head h at data + (j / block) · outer + (j % block) · inner + h · head, in numbers.
struct HeadMatrix {
  const void* data = nullptr;  // of B in across_across: null is a column of ones; of A in copy: null is zeros
  int64_t outer = 0;
  int64_t inner = 0;
  int64_t head = 0;
  int block = 1;
};

struct ProductPart {
  HeadMatrix a, b;
  int depth = 0;
};

/// out(i, j) = scale · (Σ_parts Σ_k A(i, k) B(j, k) + sums(i) · bias(j)) + add(i, j), head by head.
struct Product {
  Orientation orientation = Orientation::along_along;
  ProductPart part[3];
  int parts = 0;
  int heads = 1;
  int rows = 0;
  int columns = 0;
  float scale = 1.0f;
  const void* bias = nullptr;  // of B's type, (heads · columns), or null
  HeadMatrix sums;             // floats, one a row: r; without data 1
  const float* add = nullptr;  // laid out as out, or null
  HeadMatrix out;              // data is written; of the type `wide_out` says
  bool wide_out = true;        // float, else of B's type
  void* rounded = nullptr;     // a second copy of out in B's type, laid out like it, or null
};

constexpr int kMostProducts = 20;

struct ProductList {
  Element a;  // of A (float32 or that of b); across_across takes both operands in it, copy takes A in b
  Element b;
  bool tf32;
  int count = 0;
  Product product[kMostProducts];
};

/// Bytes of scratch memory that `multiply` wants for the list: deep sums are divided among thread blocks.
size_t multiply_workspace(const ProductList& list);
cudaError_t multiply(const ProductList& list, void* workspace, cudaStream_t stream);

}  // namespace dba::ops::cuda
