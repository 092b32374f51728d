#pragma once

#include <filesystem>
#include <string>

namespace dba::cli {

/// The accuracies of a run over its updates, drawn with characters: dots for training, circles for validation. Empty
/// where there is nothing to draw.
std::string draw_learning_curve(const std::filesystem::path& metrics);

}  // namespace dba::cli
