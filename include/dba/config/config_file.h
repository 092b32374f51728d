#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dba/config/train_config.h"

namespace dba::config {

/// The largest configuration that is read.
inline constexpr std::size_t kLargestFile = 1 << 20;

/// Reads a YAML file of one mapping; keys that it leaves out keep their defaults. Unknown and repeated keys, wrong
/// types, values out of range, anchors, aliases and tags are refused: FormatError with file, line and column, what was
/// expected and what came, and for an unknown key the nearest known one. FileError for a file that cannot be read.
/// `check_config` is not called, for overrides may follow.
TrainConfig load_config(const std::filesystem::path& path);

/// The same from memory; `source` is what errors call the text.
TrainConfig parse_config(std::string_view text, const std::string& source);

/// One `--set a.b=value`. Text is taken as it stands, without quotes; lists are written 1,2 or [1, 2].
/// Throws std::invalid_argument, which names the key, what was expected and what came.
void apply_override(TrainConfig& config, std::string_view assignment);

/// What keeps the settings from making sense together, one sentence each; empty if nothing does.
std::vector<std::string> contradictions(const TrainConfig& config);

/// Throws std::invalid_argument with all contradictions, a line each. `source` says where the settings come from.
void check_config(const TrainConfig& config, const std::string& source);

enum class Comments { none, documented };

/// All keys as YAML. Read again it gives the same configuration, bit for bit. `documented`: every key with what it
/// means, its type, its range and its default.
std::string to_yaml(const TrainConfig& config, Comments comments = Comments::none);

/// All keys as one JSON object of sections.
std::string to_json(const TrainConfig& config);

/// The reference of all keys, docs/config.md.
std::string config_reference_markdown();

}  // namespace dba::config
