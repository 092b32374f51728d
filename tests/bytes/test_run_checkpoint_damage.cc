#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>

#include "dba/bytes/errors.h"
#include "fuzz.h"
#include "run/crc32c.h"
#include "scratch_folder.h"
#include "small_checkpoints.h"

/// Damaged files, full disks and kills: a whole checkpoint is found, or none.
namespace dba::run {
namespace {

namespace fs = std::filesystem;
using bytes::Bytes;
using bytes::FileError;
using bytes::FormatError;
using bytes::ScratchFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

void flip_bit(const fs::path& path, std::int64_t position) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(position);
  const int byte = file.get();
  ASSERT_GE(byte, 0) << path;
  file.seekp(position);
  file.put(static_cast<char>(byte ^ 4));
}

// Every way to damage step 2 leads to one warning, which names what is wrong, and to step 1.
TEST(CheckpointStore, ADamagedCheckpointGivesWayToTheOneBefore) {
  struct Damage {
    std::string part;
    std::function<void(const fs::path&)> apply;
  };
  const std::vector<Damage> damages = {
      {"data-00002", [](const fs::path& path) { flip_bit(path / "data-00002", 40'000); }},
      {"data-00000", [](const fs::path& path) { flip_bit(path / "data-00000", 0); }},
      {"data-00001", [](const fs::path& path) { fs::resize_file(path / "data-00001", 1'000); }},
      {"data-00001", [](const fs::path& path) { fs::resize_file(path / "data-00001", 70'000); }},
      {"data-00003", [](const fs::path& path) { fs::resize_file(path / "data-00003", 0); }},
      {"data-00000 is missing", [](const fs::path& path) { fs::remove(path / "data-00000"); }},
      {"index.json is missing", [](const fs::path& path) { fs::remove(path / "index.json"); }},
      {"index.json.crc32c is missing", [](const fs::path& path) { fs::remove(path / "index.json.crc32c"); }},
      {"index.json", [](const fs::path& path) { fs::resize_file(path / "index.json", 100); }},
      {"index.json", [](const fs::path& path) { flip_bit(path / "index.json", 200); }},
      {"index.json", [](const fs::path& path) { flip_bit(path / "index.json.crc32c", 3); }},
      {"index.json is missing",
       [](const fs::path& path) {
         fs::remove_all(path);
         fs::create_directory(path);
       }},
      {"holds step 1",
       [](const fs::path& path) {
         fs::remove_all(path);
         fs::copy(path.parent_path() / "step-00000001", path);
       }},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.part);
    const ScratchFolder folder;
    CheckpointStore store(folder.path(), kSmallShards);
    save(store, 1);
    save(store, 2);
    damage.apply(folder / "step-00000002");
    std::vector<std::string> warnings;
    const auto checkpoint = store.latest([&](const std::string& warning) { warnings.push_back(warning); });
    ASSERT_TRUE(checkpoint);
    EXPECT_EQ(checkpoint->step(), 1);
    expect_whole(*checkpoint);
    EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("step 2"), HasSubstr("step 1"), HasSubstr(damage.part))));
    EXPECT_THROW(store.open(2), FormatError);
  }
}

TEST(CheckpointStore, WithoutAWholeOneThereIsNone) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), kSmallShards);
  save(store, 1);
  save(store, 2);
  flip_bit(folder / "step-00000001/data-00000", 9);
  flip_bit(folder / "step-00000002/data-00000", 9);
  int warnings = 0;
  EXPECT_FALSE(store.latest([&](const std::string&) { ++warnings; }));
  EXPECT_EQ(warnings, 2);
  EXPECT_FALSE(store.latest({}));
  EXPECT_THAT([&] { store.open(3); }, ThrowsMessage<FileError>(HasSubstr("No such file")));
}

TEST(CheckpointStore, LeftoversOfACrashAreRemovedAndOtherFilesAreNot) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), kSmallShards);
  save(store, 1);
  for (const std::string leftover : {".writing-step-00000002", ".removing-step-00000000"}) {
    fs::create_directory(folder / leftover);
    std::ofstream(folder / (leftover + "/data-00000")) << "half";
  }
  std::ofstream(folder / "notes.txt") << "mine";
  fs::create_directory(folder / "step-old");
  EXPECT_THAT(store.steps(), ElementsAre(1));
  expect_whole(*store.latest(expect_no_warning));
  save(store, 2);
  EXPECT_THAT(entries_of(folder.path()), ElementsAre("notes.txt", "step-00000001", "step-00000002", "step-old"));
}

// A limit on the size of files stands for a disk that is full in the middle of a shard, or of the index.
TEST(CheckpointStore, AFailedWriteLeavesTheEarlierOnesAndNothingElse) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), kSmallShards);
  save(store, 1);
  save(store, 2);
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t limit : {0, 1, 40'000}) {
    const rlimit tight{limit, old_limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
    EXPECT_THAT([&] { save(store, 3); },
                ThrowsMessage<FileError>(AllOf(HasSubstr("data-00000"), HasSubstr("File too large"))));
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
    EXPECT_THAT(entries_of(folder.path()), ElementsAre("step-00000001", "step-00000002"));
    expect_whole(*store.latest(expect_no_warning));
  }
  std::signal(SIGXFSZ, old_handler);
  save(store, 3);
  EXPECT_THAT(store.steps(), ElementsAre(2, 3));
}

// A process that saves without end is killed at random moments. Whatever it had finished is there, whole.
TEST(CheckpointStore, KilledAtAnyMomentTheNewestIsWhole) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), kSmallShards);
  std::mt19937_64 random(5);
  std::int64_t newest = 0;
  std::size_t leftovers = 0;
  for (int kill_count = 0; kill_count < 30; ++kill_count) {
    SCOPED_TRACE("kill " + std::to_string(kill_count));
    int report[2];
    ASSERT_EQ(::pipe(report), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (std::int64_t step = newest + 1;; ++step) {
          save(store, step);
          if (::write(report[1], &step, sizeof step) != sizeof step)
            ::_exit(1);
        }
      } catch (...) {
        ::_exit(1);
      }
    }
    ::close(report[1]);
    // The clock starts when the child is surely at work.
    std::int64_t reported = 0;
    ASSERT_EQ(::read(report[0], &reported, sizeof reported), static_cast<ssize_t>(sizeof reported));
    ::usleep(static_cast<useconds_t>(random() % 30'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (std::int64_t step = 0; ::read(report[0], &step, sizeof step) == static_cast<ssize_t>(sizeof step);)
      reported = step;
    ::close(report[0]);

    const auto checkpoint = store.latest(expect_no_warning);
    ASSERT_TRUE(checkpoint);
    expect_whole(*checkpoint);
    EXPECT_GE(checkpoint->step(), reported);
    EXPECT_LE(checkpoint->step(), reported + 1);
    newest = checkpoint->step();
    const auto names = entries_of(folder.path());
    leftovers +=
        static_cast<std::size_t>(std::ranges::count_if(names, [](const auto& name) { return name[0] == '.'; }));
    if (testing::Test::HasFailure())
      break;
  }
  // Had no kill come in the middle of a save, nothing would have been tested.
  EXPECT_GT(leftovers, 5u);
  save(store, newest + 1);
  EXPECT_THAT(entries_of(folder.path()).size(), 2u);
}

Bytes read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void write_bytes(const fs::path& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// With a checksum that agrees, so that the damage reaches what is behind it.
TEST(CheckpointStore, ADamagedIndexIsReadConsistentlyOrRefused) {
  const ScratchFolder folder;
  CheckpointStore store(folder.path(), kSmallShards);
  save(store, 7);
  const auto index = folder / "step-00000007/index.json";
  const auto read_and_check = [&](const Bytes& damaged) {
    write_bytes(index, damaged);
    char checksum[16];
    std::snprintf(checksum, sizeof checksum, "%08x\n", crc32c(damaged));
    std::ofstream(index.string() + ".crc32c") << checksum;
    try {
      const Checkpoint checkpoint = store.open(7);
      unsigned sum = 0;
      for (const Blob& blob : checkpoint.blobs()) {
        // Touches every byte, for the address sanitiser to see.
        for (const std::byte byte : blob.bytes)
          sum += std::to_integer<unsigned>(byte);
      }
      EXPECT_GE(sum, 0u);
    } catch (const FileError& error) {
      throw FormatError(error.what());
    }
  };
  const bytes::FuzzTarget target{{read_bytes(index)}, read_and_check, {}};
  read_and_check(target.files.front());
  constexpr std::size_t kIterations = 500;
  const bytes::FuzzCounts counts = fuzz(target, /*seed=*/31'415, kIterations, /*largest_request=*/1 << 22);
  EXPECT_EQ(counts.accepted + counts.refused, kIterations);
  EXPECT_GT(counts.accepted, kIterations / 50);
  EXPECT_GT(counts.refused, kIterations / 4);
}

}  // namespace
}  // namespace dba::run
