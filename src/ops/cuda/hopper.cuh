#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/named_barrier.cuh"

/// Hopper's shared-memory machinery: barriers that count bytes, bulk tensor copies, descriptors of swizzled tiles.
///
/// Tiles lie in panels of 64 elements (128 bytes) a row. Inside a panel the 16-byte chunks of a row are permuted by the
/// row's number (chunk ^ row % 8), as the copy engine writes them and the tensor cores read them with 128-byte swizzle.
namespace dba::ops::cuda {

constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Byte offset of 16-byte chunk `chunk` (0 … 7) of row `row` in a panel.
__device__ inline uint32_t swizzled(int row, int chunk) {
  return static_cast<uint32_t>(row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4));
}

/// A tile whose rows are indexed by rows or columns of the product and whose row runs along K.
__device__ inline uint64_t descriptor_along_k(uint32_t address) {
  constexpr uint64_t kGroup = 1024 >> 4;  // eight rows
  return (uint64_t{1} << 62) | (kGroup << 32) | (uint64_t{1} << 16) | ((address & 0x3FFFF) >> 4);
}

/// A tile whose rows are indexed by K and whose row runs along the product's rows or columns; panels of 64 of these
/// are `panel_bytes` apart.
__device__ inline uint64_t descriptor_along_rows(uint32_t address, uint32_t panel_bytes) {
  constexpr uint64_t kGroup = 1024 >> 4;
  return (uint64_t{1} << 62) | (kGroup << 32) | (static_cast<uint64_t>(panel_bytes >> 4) << 16) |
         ((address & 0x3FFFF) >> 4);
}

/// Arrivals of a warp at a barrier: one lane's, behind a warp barrier. A build for compute-sanitizer's racecheck
/// (DBA_RACECHECK) lets every lane arrive, because the tool orders only what the arriving thread itself has done.
#ifdef DBA_RACECHECK
constexpr int kWarpArrivals = 32;
#else
constexpr int kWarpArrivals = 1;
#endif

__device__ inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

/// A barrier at which `warps` warps arrive.
__device__ inline void barrier_init_for_warps(uint64_t* barrier, uint32_t warps) {
  barrier_init(barrier, kWarpArrivals * warps);
}

/// Makes initialised barriers visible to the copy engine.
__device__ inline void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// The arrival of a whole warp, after what all of its lanes did.
__device__ inline void barrier_arrive_as_warp(uint64_t* barrier) {
  __syncwarp();
  if (kWarpArrivals == 32 || (threadIdx.x & 31) == 0) {
    barrier_arrive(barrier);
  }
}

/// Whose writes a wait makes visible: those of the own thread block and of the copies it asked for, or also what other
/// thread blocks of the cluster store here and release to the cluster.
enum class WritesOf { thread_block, cluster };

#define DBA_BARRIER_WAIT(SCOPE)                 \
  asm volatile(                                 \
      "{\n"                                     \
      ".reg .pred done;\n"                      \
      "again:\n"                                \
      "mbarrier.try_wait.parity.acquire." SCOPE \
      ".shared::cta.b64 done, [%0], %1;\n"      \
      "@done bra finished;\n"                   \
      "bra again;\n"                            \
      "finished:\n"                             \
      "}\n" ::"r"(shared_address(barrier)),     \
      "r"(parity)                               \
      : "memory")

template <WritesOf kWriters = WritesOf::thread_block>
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  if constexpr (kWriters == WritesOf::cluster) {
    DBA_BARRIER_WAIT("cluster");
  } else {
    DBA_BARRIER_WAIT("cta");
  }
}
#undef DBA_BARRIER_WAIT

/// Copies the box at (column, row) of the tensor into shared memory; its bytes count on `barrier`.
__device__ inline void copy_box(void* to, const CUtensorMap* map, int column, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

/// The same from matrix `index` of several.
__device__ inline void copy_box(void* to, const CUtensorMap* map, int column, int row, int index, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(index)
      : "memory");
}

/// Copies so many bytes, a multiple of 16, into shared memory; they count on `barrier`.
__device__ inline void copy_bytes(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/// Copies a box from shared memory to (column, row) of the tensor; what lies outside the tensor is left out. Belongs to
/// the thread's group of copies.
__device__ inline void store_box(const CUtensorMap* map, int column, int row, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(column), "r"(row)
               : "memory");
}

/// Until what the thread's copies to the tensor read may be overwritten.
__device__ inline void await_stored_boxes() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Four 8×8 tiles of two-byte elements from registers to shared memory, as a product's accumulators hold them; lanes
/// 8i … 8i + 7 give the addresses of the eight rows of tile i.
__device__ inline void store_tiles(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Ordinary writes to shared memory become visible to tensor cores and copy engine (followed by a barrier).
__device__ inline void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Where a ring of stages stands: the stage, and the parity that tells its rounds apart.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace dba::ops::cuda
