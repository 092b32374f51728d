#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "ops/cpu/isa/layout.h"
#include "ops/philox.h"

/// The generator of philox.h for as many slots at once as a vector has 32-bit lanes.
namespace dba::ops::cpu::DBA_ISA {

constexpr int kWordLanes = kVectorBytes / 4;
typedef uint32_t WordVector __attribute__((vector_size(kVectorBytes), may_alias));

struct WideProduct {
  WordVector low, high;
};

inline WideProduct wide_product(WordVector a, uint32_t multiplier) {
#if defined(__AVX512F__)
  const __m512i factor = _mm512_set1_epi64(multiplier);
  const __m512i even = _mm512_mul_epu32(reinterpret_cast<__m512i>(a), factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(reinterpret_cast<__m512i>(a), 32), factor);
  return {reinterpret_cast<WordVector>(_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))),
          reinterpret_cast<WordVector>(_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd))};
#elif defined(__AVX2__)
  const __m256i factor = _mm256_set1_epi64x(multiplier);
  const __m256i even = _mm256_mul_epu32(reinterpret_cast<__m256i>(a), factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(reinterpret_cast<__m256i>(a), 32), factor);
  return {reinterpret_cast<WordVector>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)),
          reinterpret_cast<WordVector>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA))};
#else
  WideProduct product;
  for (int lane = 0; lane < kWordLanes; ++lane) {
    const uint64_t wide = static_cast<uint64_t>(a[lane]) * multiplier;
    product.low[lane] = static_cast<uint32_t>(wide);
    product.high[lane] = static_cast<uint32_t>(wide >> 32);
  }
  return product;
#endif
}

struct WordsOfQuad {
  WordVector word[4];
};

inline WordsOfQuad words_of_quad(const MaskKey& key, WordVector slot, uint32_t quad) {
  WordVector c0 = WordVector{} + quad;
  WordVector c1 = slot | key.site << 24;
  WordVector c2 = WordVector{} + key.sequence;
  WordVector c3 = WordVector{} + key.offset;
  uint32_t key0 = key.key0, key1 = key.key1;
  for (int round = 0; round < philox::kRounds; ++round) {
    const WideProduct product0 = wide_product(c0, philox::kMultiplier0);
    const WideProduct product1 = wide_product(c2, philox::kMultiplier1);
    c0 = product1.high ^ c1 ^ key0;
    c1 = product1.low;
    c2 = product0.high ^ c3 ^ key1;
    c3 = product0.low;
    key0 += philox::kWeyl0;
    key1 += philox::kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

template <class T>
void dropout_mask(const MaskKey& key, T kept, Panels<T> mask, int64_t first_token, int64_t tokens, int64_t first_slot,
                  int64_t slots) {
  WordVector lane{};
  for (int i = 0; i < kWordLanes; ++i) {
    lane[i] = static_cast<uint32_t>(i);
  }
  // A vector of words is as wide as one vector of floats or two of doubles, so it never leaves its panel.
  static_assert(kPanel<T> % kWordLanes == 0);
  for (int64_t column = 0; column < slots; column += kWordLanes) {
    const WordVector slot = lane + static_cast<uint32_t>(first_slot + column);
    T* const panel = mask.entries + column / kPanel<T> * mask.stride + column % kPanel<T>;
    for (int64_t t = 0; t < tokens; t += 4) {
      const WordsOfQuad words = words_of_quad(key, slot, static_cast<uint32_t>((first_token + t) / 4));
      for (int64_t i = 0; i < smaller(4, tokens - t); ++i) {
        T* const at = panel + (t + i) * kPanel<T>;
        for (int j = 0; j < kWordLanes; ++j) {
          at[j] = words.word[i][j] >= key.threshold ? kept : T(0);
        }
      }
    }
  }
}

}  // namespace dba::ops::cpu::DBA_ISA
