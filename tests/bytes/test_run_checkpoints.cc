#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "dba/bytes/errors.h"
#include "scratch_folder.h"
#include "small_checkpoints.h"

/// What a store of checkpoints keeps and gives back.
namespace dba::run {
namespace {

namespace fs = std::filesystem;
using bytes::Bytes;
using bytes::FileError;
using bytes::FormatError;
using bytes::ScratchFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(CheckpointStore, WhatIsSavedComesBack) {
  const ScratchFolder folder;
  CheckpointStore store(folder / "deep/checkpoints", kSmallShards);
  EXPECT_FALSE(store.latest(expect_no_warning));
  EXPECT_FALSE(fs::exists(folder / "deep"));
  save(store, 1234);
  EXPECT_THAT(entries_of(store.folder()), ElementsAre("step-00001234"));
  const auto checkpoint = store.latest(expect_no_warning);
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->step(), 1234);
  expect_whole(*checkpoint);
  for (const Blob& blob : checkpoint->blobs()) {
    if (!blob.bytes.empty()) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blob.bytes.data()) % 64, 0u) << blob.name;
    }
  }
  EXPECT_TRUE(checkpoint->contains("blob.3"));
  EXPECT_FALSE(checkpoint->contains("blob"));
  EXPECT_EQ(checkpoint->blob("blob.3").size(), 64u);
  EXPECT_THAT([&] { checkpoint->blob("blob"); }, ThrowsMessage<FormatError>(HasSubstr("holds no \"blob\"")));
}

TEST(CheckpointStore, FilesStaySmall) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path());
  const Bytes large(40'000'000, std::byte{7});
  const std::vector<Blob> blobs = {{"large", large}};
  store.save(1, blobs);
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "step-00000001")) {
    EXPECT_LE(entry.file_size(), 15'000'000u);
    ++files;
  }
  EXPECT_EQ(files, 3u + 2u);
  const auto checkpoint = store.latest(expect_no_warning);
  ASSERT_TRUE(checkpoint);
  EXPECT_TRUE(std::ranges::equal(checkpoint->blob("large"), large));
}

TEST(CheckpointStore, ACheckpointOfNothingIsOne) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path());
  store.save(0, {});
  const auto checkpoint = store.latest(expect_no_warning);
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->step(), 0);
  EXPECT_EQ(checkpoint->metadata(), "{}");
  EXPECT_TRUE(checkpoint->blobs().empty());
}

TEST(CheckpointStore, TheNewestStay) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), kSmallShards);
  for (const std::int64_t step : {9, 10, 100'000'000, 200'000'000}) {
    save(store, step);
  }
  EXPECT_THAT(store.steps(), ElementsAre(100'000'000, 200'000'000));
  EXPECT_EQ(entries_of(folder.path()).size(), 2u);
}

TEST(CheckpointStore, AnOpenCheckpointOutlivesItsRemoval) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), {.keep = 1, .shard_bytes = 65'536});
  save(store, 1);
  const Checkpoint first = store.open(1);
  save(store, 2);
  EXPECT_THAT(store.steps(), ElementsAre(2));
  expect_whole(first);
}

TEST(CheckpointStore, SavingDropsTheFutureThatAResumedRunHasLeft) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), {.keep = 3, .shard_bytes = 65'536});
  for (const std::int64_t step : {10, 20, 30})
    save(store, step);
  save(store, 15);
  EXPECT_THAT(store.steps(), ElementsAre(10, 15));
}

TEST(CheckpointStore, SavingAStepAgainReplacesIt) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), kSmallShards);
  save(store, 1);
  save(store, 2);
  flip_bit(folder / "step-00000002/data-00001", 5);
  save(store, 2);
  EXPECT_THAT(entries_of(folder.path()), ElementsAre("step-00000001", "step-00000002"));
  const auto checkpoint = store.latest(expect_no_warning);
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(checkpoint->step(), 2);
  expect_whole(*checkpoint);
}

TEST(CheckpointStore, NamesAPathThatIsNoFolder) {
  const ScratchFolder folder;
  std::ofstream(folder / "file") << "text";
  CheckpointStore below_a_file(folder / "file/checkpoints");
  EXPECT_THAT([&] { save(below_a_file, 1); }, ThrowsMessage<FileError>(HasSubstr("Not a directory")));
  CheckpointStore is_a_file(folder / "file");
  EXPECT_THAT([&] { save(is_a_file, 1); }, ThrowsMessage<FileError>(HasSubstr("Not a directory")));
}

TEST(CheckpointStore, NamesAFolderWithoutPermission) {
  if (::geteuid() == 0)
    GTEST_SKIP() << "root may write everywhere";
  const ScratchFolder folder;
  fs::create_directory(folder / "closed");
  ASSERT_EQ(::chmod((folder / "closed").c_str(), 0500), 0);
  CheckpointStore closed(folder / "closed");
  EXPECT_THAT([&] { save(closed, 1); }, ThrowsMessage<FileError>(HasSubstr("Permission denied")));
  ASSERT_EQ(::chmod((folder / "closed").c_str(), 0700), 0);
}

TEST(CheckpointStore, WrongArgumentsAreRefused) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path());
  const std::vector<Blob> twice = {{"a", {}}, {"a", {}}};
  const std::vector<Blob> latin = {
      {"gr\xf6\xdf"
       "e",
       {}}};
  const auto refused = [](auto&& call, const std::string& part) {
    EXPECT_THAT(call, ThrowsMessage<std::invalid_argument>(HasSubstr(part)));
  };
  refused([&] { store.save(-1, {}); }, "step is -1");
  refused([&] { store.save(1, twice); }, "two blobs are called \"a\"");
  refused([&] { store.save(1, latin); }, "not UTF-8");
  refused([&] { store.save(1, {}, "{"); }, "not JSON");
  refused([&] { CheckpointStore(folder.path(), {.keep = 0}); }, "keep is 0");
  refused([&] { CheckpointStore(folder.path(), {.keep = 1, .shard_bytes = 1000}); }, "multiple of 65536");
  EXPECT_TRUE(entries_of(folder.path()).empty());
}

}  // namespace
}  // namespace dba::run
