#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "dba/run/checkpoint_store.h"
#include "mutation.h"

/// Small checkpoints of several shards whose bytes are known.
namespace dba::run {

inline constexpr CheckpointStore::Options kSmallShards{.keep = 2, .shard_bytes = 65'536};

/// Bytes that tell the step and the blob they belong to.
inline bytes::Bytes content(std::int64_t step, std::size_t which, std::size_t size) {
  std::mt19937_64 random(static_cast<std::uint64_t>(step) * 1'000 + which);
  bytes::Bytes bytes(size);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

/// Sizes around the borders of alignment and of shards.
inline const std::vector<std::size_t> kSizes = {0, 1, 63, 64, 65, 65'536 - 256, 65'536, 150'001, 0};

inline void save(CheckpointStore& store, std::int64_t step) {
  std::vector<bytes::Bytes> contents;
  std::vector<Blob> blobs;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    contents.push_back(content(step, i, kSizes[i]));
    blobs.push_back({"blob." + std::to_string(i), contents.back()});
  }
  store.save(step, blobs, "{\"step\": " + std::to_string(step) + "}");
}

inline void expect_whole(const Checkpoint& checkpoint) {
  ASSERT_EQ(checkpoint.blobs().size(), kSizes.size());
  EXPECT_EQ(checkpoint.metadata(), "{\"step\":" + std::to_string(checkpoint.step()) + "}");
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    EXPECT_EQ(checkpoint.blobs()[i].name, "blob." + std::to_string(i));
    EXPECT_TRUE(std::ranges::equal(checkpoint.blobs()[i].bytes, content(checkpoint.step(), i, kSizes[i]))) << i;
  }
}

inline void expect_no_warning(const std::string& warning) {
  ADD_FAILURE() << warning;
}

inline std::vector<std::string> entries_of(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace dba::run
