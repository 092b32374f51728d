#pragma once

#include <cstdint>

#include "ops/cuda/hopper.cuh"

/// Thread blocks of a cluster write into each other's shared memory, which all of them lay out alike.
namespace dba::ops::cuda {

/// Where `pointer`, an address in this thread block's shared memory, lies in that of thread block `rank`.
__device__ inline uint32_t address_in(const void* pointer, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

/// Stores into thread block `rank`'s shared memory; the bytes count on its `barrier`, and those who wait there with
/// WritesOf::cluster see them.
__device__ inline void store_in(float4* to, uint64_t* barrier, int rank, const float4& value) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(
                   address_in(to, rank)),
               "r"(address_in(barrier, rank)), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

__device__ inline void store_in(float2* to, uint64_t* barrier, int rank, const float2& value) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, [%1];" ::"r"(
                   address_in(to, rank)),
               "r"(address_in(barrier, rank)), "f"(value.x), "f"(value.y)
               : "memory");
}

/// All threads of the cluster: none goes past cluster_wait before every one has gone past cluster_arrive, and sees what
/// they wrote before it.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
/// The same where nobody needs to see anything.
__device__ inline void cluster_arrive_with_nothing() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

}  // namespace dba::ops::cuda
