#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace dba::reproduce {

// Table 2 and figure 1 of the paper: speed and memory of the Text model with each attention, as ratios to softmax
// attention. Measuring needs torch and is src/bench's; this is what is kept of it and what is written about it.

/// One figure: a method at a length, in training or in inference.
struct EfficiencyCell {
  std::string method;  ///< as `dba bench` names it
  std::int64_t length = 0;
  std::string pass;    ///< "training" (a step) or "inference"
  std::string status;  ///< "ok", or why there is no time: "skipped", "wrong", "failed"
  std::string reason;
  double seconds = 0;  ///< median
  double low = 0;      ///< quartiles
  double high = 0;
  std::int64_t samples = 0;
  std::int64_t bytes = 0;  ///< held at the peak: parameters, what the optimiser keeps of them, and all the call takes
  std::string clock;
  std::string build;  ///< version and commit of the program that took the figure

  bool measured() const {
    return status == "ok";
  }
};

/// What one machine measured under one setting: a file of results/efficiency.
struct EfficiencyResults {
  std::vector<std::pair<std::string, std::string>> machine;
  std::string device, dtype;
  std::int64_t batch = 0, d = 256, heads = 4, d_ffn = 1024, layers = 4;
  std::vector<EfficiencyCell> cells;
  /// What the methods' attentions were made with, as far as is known.
  std::vector<std::pair<std::string, std::string>> options;

  const EfficiencyCell* find(const std::string& method, std::int64_t length, const std::string& pass) const;
  /// What the machine's description says under that name.
  std::string fact(const std::string& wanted) const;
  /// A figure of this build, in place of the cell of the same method, length and pass, or behind the last one.
  void put(EfficiencyCell cell);
  void put_options(const std::string& method, const std::string& values);
  /// Whether figures of the other may stand in the same file: the same GPU or processor, type, batch and model.
  bool comparable(const EfficiencyResults& other) const;
};

/// The two yardsticks: softmax attention with its map, as the paper compared with, and PyTorch's fused one.
inline constexpr const char* kUnfused = "softmax:math";
inline constexpr const char* kFused = "softmax";

/// softmax:math and all members' names, DBA in both forms.
std::vector<std::string> efficiency_methods(bool on_gpu);

/// Times the baseline's seconds over the cell's; nothing where one is missing.
std::optional<double> speed_ratio(const EfficiencyResults& results, const EfficiencyCell& cell, const char* baseline);
/// The cell's bytes over the baseline's.
std::optional<double> memory_ratio(const EfficiencyResults& results, const EfficiencyCell& cell, const char* baseline);

/// A line for every method: how many figures there are of `lengths` in both passes, and which are not.
std::string efficiency_list(const EfficiencyResults& results, const std::vector<std::string>& methods,
                            const std::vector<std::int64_t>& lengths);

/// FormatError, naming the file, for what write_efficiency has not written; nothing where there is no file.
std::optional<EfficiencyResults> read_efficiency(const std::filesystem::path& file);
void write_efficiency(const std::filesystem::path& file, const EfficiencyResults& results);

/// README.md of the folder: for every file tables of speed and memory, ours with the paper's figures beside them.
/// `figure`: whether the folder has figure1.svg.
std::string efficiency_page(std::span<const EfficiencyResults> all, bool figure);
/// Writes it from the files of the folder that write_efficiency has written and returns its path.
std::filesystem::path write_efficiency_page(const std::filesystem::path& folder);

}  // namespace dba::reproduce
