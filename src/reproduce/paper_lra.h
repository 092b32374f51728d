#pragma once

#include <vector>

#include "reproduce/experiment.h"

namespace dba::reproduce {

/// Table 3 of "DBA: Efficient Transformer with Dynamic Bilinear Low-Rank Attention" (arXiv 2211.16368), and of its
/// table 11 the two rows without compression: accuracies in percent. The ± is called a variance there, over 5 seeds.
inline std::vector<PaperFigure> paper_lra_figures() {
  struct Row {
    const char* method;
    double listops, text, retrieval, image, pathfinder;
  };
  constexpr Row kRows[] = {
      {"softmax", 36.37, 64.27, 78.38, 42.44, 71.40},       {"local", 15.82, 52.98, 70.65, 41.46, 66.63},
      {"sparse", 17.07, 63.58, 72.53, 44.24, 71.71},        {"sinkhorn", 33.67, 61.20, 65.88, 41.23, 67.45},
      {"linear", 16.13, 65.90, 72.09, 42.34, 75.30},        {"reformer", 37.27, 56.10, 73.03, 38.07, 68.50},
      {"cosformer", 37.90, 63.41, 61.36, 43.17, 70.33},     {"fnet", 35.33, 65.11, 59.61, 38.67, 77.80},
      {"performer", 18.01, 65.40, 75.43, 42.77, 77.05},     {"longformer", 35.63, 62.85, 68.32, 42.22, 69.71},
      {"linformer", 35.70, 53.94, 77.83, 38.56, 76.34},     {"synthesizer", 36.99, 61.68, 80.04, 41.61, 69.45},
      {"bigbird", 36.05, 64.02, 76.41, 40.83, 74.87},       {"nystromformer", 37.15, 65.52, 79.56, 41.58, 70.94},
      {"yoso", 37.40, 64.28, 77.61, 44.67, 71.86},          {"scatterbrain", 38.60, 64.55, 80.22, 43.65, 69.91},
      {"pixelfly", 37.65, 66.78, 80.55, 42.35, 72.01},      {"luna", 37.43, 65.74, 79.38, 46.39, 78.36},
      {"dba", 38.10, 66.25, 80.64, 46.51, 79.56},           {"dba_full_map", 38.08, 66.00, 78.53, 41.76, 74.37},
      {"dba_full_width", 37.55, 65.92, 79.98, 45.39, 75.90}};
  constexpr Row kDeviations[] = {{"dba", 0.40, 0.04, 0.01, 0.50, 0.10},
                                 {"dba_full_map", 0.23, 0.10, 0.04, 0.54, 0.28},
                                 {"dba_full_width", 0.25, 0.10, 0.19, 0.34, 0.73}};
  struct Column {
    const char* task;
    double Row::*value;
  };
  constexpr Column kColumns[] = {{"listops", &Row::listops},
                                 {"text", &Row::text},
                                 {"retrieval", &Row::retrieval},
                                 {"image", &Row::image},
                                 {"pathfinder", &Row::pathfinder}};
  std::vector<PaperFigure> figures;
  for (const Row& row : kRows) {
    for (const auto& [task, value] : kColumns) {
      PaperFigure figure{task, row.method, row.*value, {}};
      for (const Row& deviation : kDeviations) {
        if (figure.method == deviation.method)
          figure.deviation = deviation.*value;
      }
      figures.push_back(figure);
    }
  }
  return figures;
}

}  // namespace dba::reproduce
