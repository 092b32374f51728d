#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DBA_HOST_DEVICE __host__ __device__
#else
#define DBA_HOST_DEVICE
#endif

/// Philox 4×32 with ten rounds (Salmon et al., 2011), and the key that dropout inside the operators uses.
/// Free of torch and of CUDA headers: the CPU and CUDA kernels include the same lines.
namespace dba::philox {

constexpr uint32_t kMultiplier0 = 0xD2511F53u;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kWeyl0 = 0x9E3779B9u;
constexpr uint32_t kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;

struct Words {
  uint32_t word[4];
};

DBA_HOST_DEVICE inline Words generate(Words counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * counter.word[0];
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

/// The four words of tokens 4·quad … 4·quad + 3 at one (site, sequence, slot). Sites are below 256 and slots below
/// 2²⁴, so that both fit in one counter word.
DBA_HOST_DEVICE inline Words token_quad(uint64_t seed, uint64_t offset, uint32_t site, uint32_t sequence, uint32_t slot,
                                        uint32_t quad) {
  const uint32_t key0 = static_cast<uint32_t>(seed);
  const uint32_t key1 = static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(offset >> 32);
  return generate({{quad, slot | site << 24, sequence, static_cast<uint32_t>(offset)}}, key0, key1);
}

/// A word at or above the threshold keeps its entry.
DBA_HOST_DEVICE inline uint32_t threshold(double p) {
  return static_cast<uint32_t>(p * 4294967296.0);
}

}  // namespace dba::philox
