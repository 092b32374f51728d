#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/method.h"
#include "bench/precision.h"

namespace dba::bench {

/// What is measured.
///   layer       one attention layer, its projections included
///   encoder     `depth` encoder layers: attention, feed-forward network, residuals, norms
///   train_step  forward, loss, backward and optimiser step of a classifier of symbols on such an encoder
enum class Kind { layer, encoder, train_step };

/// `forward` has no dropout and keeps nothing for a backward pass; `step` is that of a train_step.
enum class Pass { forward, forward_backward, step };

/// `warm`: calls follow one another. `cold`: the caches are filled with other memory before every call.
enum class Cache { warm, cold };

std::string to_string(Kind kind);
std::string to_string(Pass pass);
std::string to_string(Cache cache);

struct Sizes {
  int64_t d = 256;
  int64_t heads = 4;
  int64_t d_p = 16;
  int64_t d_in = 24;
  int64_t d_ffn = 1024;
  int64_t depth = 4;
  double dropout = 0.0;
  /// kind `layer`: every sequence has its own Z, as in all layers of a stack but the first.
  bool slots_per_sequence = false;
};

/// One batch of `batch` sequences of `length` tokens.
struct Case {
  int64_t length = 0;
  int64_t batch = 0;
  Precision precision = Precision::float32;
  int threads = 0;  ///< 0: as torch has chosen

  int64_t tokens() const {
    return length * batch;
  }
};

struct Settings {
  Kind kind = Kind::layer;
  std::vector<Method> methods;
  std::vector<std::string> baselines;  ///< names of methods; a ratio column each
  Sizes sizes;
  std::vector<Case> cases;
  std::vector<Pass> passes = {Pass::forward, Pass::forward_backward};
  std::vector<Cache> caches = {Cache::warm};
  at::Device device = at::kCPU;
  int64_t repeats = 20;  ///< samples of a figure, at most
  double seconds = 1.0;  ///< spent on a figure, about; three samples are taken in any case
  /// Tokens of a sequence in the comparison with float64, at most; 0: no comparison; −1: as many as can be afforded.
  int64_t check_length = -1;
};

inline constexpr int64_t kVocabulary = 256;
inline constexpr int64_t kClasses = 2;

}  // namespace dba::bench
