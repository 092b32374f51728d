#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dba::reproduce {

/// Lengths of the columns of table 2.
inline constexpr std::array<std::int64_t, 6> kPaperLengths = {256, 512, 1024, 2048, 3072, 4096};

/// A row of table 2 of "DBA: Efficient Transformer with Dynamic Bilinear Low-Rank Attention" (arXiv 2211.16368): speed
/// and peak memory of the Text model as ratios to softmax attention.
struct PaperEfficiency {
  std::string_view method;
  std::array<double, 6> speed, memory;
};

inline constexpr PaperEfficiency kPaperEfficiency[] = {
    {"local", {1.0, 1.1, 1.1, 1.7, 3.2, 5.3}, {0.94, 0.75, 0.49, 0.29, 0.19, 0.14}},
    {"linformer", {1.0, 1.2, 1.2, 1.9, 3.7, 5.5}, {0.90, 0.70, 0.44, 0.21, 0.18, 0.10}},
    {"reformer", {1.0, 0.6, 0.5, 0.4, 0.7, 0.8}, {1.21, 1.06, 0.70, 0.37, 0.28, 0.24}},
    {"sinkhorn", {0.9, 1.0, 1.1, 1.6, 2.9, 3.8}, {0.92, 0.76, 0.55, 0.31, 0.21, 0.16}},
    {"synthesizer", {1.2, 1.2, 1.1, 1.2, 2.9, 1.4}, {1.06, 0.91, 0.76, 0.75, 0.74, 0.74}},
    {"cosformer", {0.9, 1.0, 1.0, 1.5, 2.8, 3.7}, {1.24, 0.88, 0.58, 0.28, 0.25, 0.19}},
    {"linear", {1.0, 1.1, 1.1, 1.9, 3.7, 5.6}, {1.16, 0.95, 0.44, 0.22, 0.15, 0.11}},
    {"performer", {1.1, 1.2, 1.2, 1.9, 3.8, 5.7}, {0.89, 0.74, 0.44, 0.22, 0.15, 0.11}},
    {"luna", {1.0, 1.2, 1.2, 1.8, 3.7, 5.5}, {0.88, 0.70, 0.44, 0.23, 0.17, 0.10}},
    {"dba", {1.1, 1.4, 1.4, 2.0, 4.1, 6.1}, {0.84, 0.66, 0.38, 0.19, 0.15, 0.09}},
};

}  // namespace dba::reproduce
