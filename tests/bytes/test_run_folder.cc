#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>
#include <vector>

#include "dba/bytes/errors.h"
#include "dba/run/event_writer.h"
#include "dba/run/run_folder.h"
#include "run/crc32c.h"
#include "scratch_folder.h"

namespace dba::run {
namespace {

namespace fs = std::filesystem;
using bytes::FileError;
using bytes::ScratchFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(RunFolder, KeepsConfigMetricsAndReport) {
  const ScratchFolder scratch;
  const auto path = scratch / "runs/first";
  {
    RunFolder folder = RunFolder::create(path);
    folder.write_config("seed: 1\n");
    folder.append_metrics("{\"step\":1,\"loss\":2.5}");
    EXPECT_EQ(read_text(path / "metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n");
    folder.append_metrics("{\"step\":2}");
    folder.sync_metrics();
    folder.write_report("{\"accuracy\": 0.5}");
    EXPECT_EQ(folder.checkpoints(), path / "checkpoints");
    EXPECT_EQ(folder.events(), path / "events");
  }
  EXPECT_EQ(read_text(path / "config.yaml"), "seed: 1\n");
  EXPECT_EQ(read_text(path / "metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n{\"step\":2}\n");
  EXPECT_EQ(read_text(path / "report.json"), "{\"accuracy\": 0.5}");
}

TEST(RunFolder, ARunIsNeitherOverwrittenNorInvented) {
  const ScratchFolder scratch;
  const auto path = scratch / "run";
  EXPECT_THAT([&] { RunFolder::resume(path); },
              ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr(path.string()), HasSubstr("holds no run"))));
  EXPECT_FALSE(fs::exists(path));
  RunFolder::create(path);
  // No run yet.
  RunFolder::create(path).write_config("seed: 1\n");
  EXPECT_THAT([&] { RunFolder::create(path); },
              ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("holds a run already"), HasSubstr("--resume"))));
  RunFolder::resume(path).append_metrics("{\"step\":1}");
  RunFolder::resume(path).append_metrics("{\"step\":2}");
  EXPECT_EQ(read_text(path / "metrics.jsonl"), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(RunFolder, WhereNoRunBeganNothingIsLeftOfWhatWasMade) {
  const ScratchFolder scratch;
  for (const std::string name : {"runs/of/today", "runs/of/today/"}) {
    {
      const RunFolder folder = RunFolder::create(scratch / name);
      ASSERT_EQ(::mkdir((folder.path() / "cache").c_str(), 0777), 0);
      for (const char* const file : {"cache/train.cache", "symbols.json"})
        std::ofstream(folder.path() / file) << "text";
    }
    EXPECT_FALSE(fs::exists(scratch / "runs")) << name;
  }
}

TEST(RunFolder, WhatWasThereBeforeOrIsNoPreparationStays) {
  const ScratchFolder scratch;
  ASSERT_EQ(::mkdir((scratch / "runs").c_str(), 0777), 0);
  RunFolder::create(scratch / "runs/first");
  EXPECT_TRUE(fs::exists(scratch / "runs"));
  EXPECT_FALSE(fs::exists(scratch / "runs/first"));
  ASSERT_EQ(::mkdir((scratch / "runs/first").c_str(), 0777), 0);
  RunFolder::create(scratch / "runs/first");
  EXPECT_TRUE(fs::exists(scratch / "runs/first"));
  for (const std::string name : {"config.yaml", "metrics.jsonl", "notes.txt"}) {
    const auto path = scratch / "runs/with" / name;
    {
      const RunFolder folder = RunFolder::create(path);
      std::ofstream(path / name) << "text";
      std::ofstream(path / "symbols.json") << "text";
    }
    EXPECT_EQ(read_text(path / name), "text");
    EXPECT_EQ(read_text(path / "symbols.json"), "text");
    EXPECT_TRUE(fs::exists(path / "lock"));
  }
}

// A lock on a file that its owner has just removed would be worth nothing.
TEST(RunFolder, BelongsToOneAtATimeWhileOthersMakeAndRemoveIt) {
  const ScratchFolder scratch;
  std::atomic<int> owners = 0, held = 0, together = 0;
  const auto work = [&] {
    for (int i = 0; i < 500; ++i) {
      try {
        const RunFolder folder = RunFolder::create(scratch / "runs/shared");
        ++held;
        together += owners.fetch_add(1) > 0;
        const bool there = fs::exists(folder.path() / "lock");
        together += !there;
        --owners;
      } catch (const FolderInUse&) {
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back(work);
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_GT(held, 0);
  EXPECT_EQ(together, 0);
}

TEST(RunFolder, OneInUseIsRefusedWithTheOthersProcess) {
  const ScratchFolder scratch;
  const auto path = scratch / "run";
  RunFolder::create(path).write_config("seed: 1\n");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      const RunFolder held = RunFolder::resume(path);
      if (::write(ready[1], "x", 1) == 1)
        ::pause();
    } catch (...) {
    }
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto refused = ThrowsMessage<FolderInUse>(
      AllOf(HasSubstr(path.string()), HasSubstr("in use by process " + std::to_string(child) + ";")));
  EXPECT_THAT([&] { RunFolder::resume(path); }, refused);
  EXPECT_THAT([&] { RunFolder::create(path); }, refused);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(ready[0]);
  ::close(ready[1]);
  // The file is still there, and says the dead process; that is no obstacle.
  EXPECT_EQ(read_text(path / "lock"), std::to_string(child) + "\n");
  const RunFolder again = RunFolder::resume(path);
  EXPECT_EQ(read_text(path / "lock"), std::to_string(::getpid()) + "\n");
}

TEST(RunFolder, TheLockMovesWithTheObject) {
  const ScratchFolder scratch;
  RunFolder first = RunFolder::create(scratch / "run");
  {
    const RunFolder second = std::move(first);
    EXPECT_THROW(RunFolder::create(scratch / "run"), FolderInUse);
  }
  RunFolder::create(scratch / "run");
}

TEST(RunFolder, ResumeDropsTheLinesOfLaterStepsAndOfACrash) {
  const ScratchFolder scratch;
  RunFolder folder = RunFolder::create(scratch / "run");
  EXPECT_EQ(folder.drop_metrics_after(0), 0u);
  const auto metrics = scratch / "run/metrics.jsonl";
  for (const int step : {0, 10, 20, 20, 30})
    folder.append_metrics("{\"step\":" + std::to_string(step) + "}");
  std::ofstream(metrics, std::ios::app) << "{\"step\":1}garbage\n{\"loss\":1}\n[1]\n\n{\"step\":5";
  EXPECT_EQ(folder.drop_metrics_after(20), 1u + 5u);
  const std::string expected = "{\"step\":0}\n{\"step\":10}\n{\"step\":20}\n{\"step\":20}\n";
  EXPECT_EQ(read_text(metrics), expected);
  EXPECT_EQ(folder.drop_metrics_after(20), 0u);
  folder.append_metrics("{\"step\":30}");
  EXPECT_EQ(read_text(metrics), expected + "{\"step\":30}\n");
}

// A line that would look like a sound one when cut short: {"step":1} of {"step":1}0 is not there, for want of its end.
TEST(RunFolder, AnUnfinishedLastLineGoesEvenIfItIsSoundJson) {
  const ScratchFolder scratch;
  RunFolder folder = RunFolder::create(scratch / "run");
  std::ofstream(scratch / "run/metrics.jsonl") << "{\"step\":1}\n{\"step\":2}";
  EXPECT_EQ(folder.drop_metrics_after(5), 1u);
  EXPECT_EQ(read_text(scratch / "run/metrics.jsonl"), "{\"step\":1}\n");
}

TEST(RunFolder, WrongArgumentsAreRefused) {
  const ScratchFolder scratch;
  RunFolder folder = RunFolder::create(scratch / "run");
  for (const std::string bad :
       {"", "1", "[]", "{}", "{\"step\":\"1\"}", "{\"step\":1.5}", "{\"step\":1", "{\"step\":\n1}"}) {
    EXPECT_THROW(folder.append_metrics(bad), std::invalid_argument) << bad;
  }
  EXPECT_THROW(folder.write_report("{"), std::invalid_argument);
  EXPECT_FALSE(fs::exists(scratch / "run/metrics.jsonl"));
  EXPECT_FALSE(fs::exists(scratch / "run/report.json"));
}

TEST(RunFolder, NamesAPathThatIsNoFolder) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "file") << "text";
  EXPECT_THAT([&] { RunFolder::create(scratch / "file"); },
              ThrowsMessage<FileError>(AllOf(HasSubstr((scratch / "file").string()), HasSubstr("Not a directory"))));
  EXPECT_THAT([&] { RunFolder::create(scratch / "file/run"); }, ThrowsMessage<FileError>(HasSubstr("Not a directory")));
  EXPECT_THAT([&] { RunFolder::create("/proc/self/run"); }, ThrowsMessage<FileError>(HasSubstr("/proc/self/run")));
}

TEST(RunFolder, NamesAFolderWithoutPermission) {
  if (::geteuid() == 0)
    GTEST_SKIP() << "root may write everywhere";
  const ScratchFolder scratch;
  ASSERT_EQ(::chmod(scratch.path().c_str(), 0500), 0);
  EXPECT_THAT([&] { RunFolder::create(scratch / "run"); }, ThrowsMessage<FileError>(HasSubstr("Permission denied")));
  ASSERT_EQ(::chmod(scratch.path().c_str(), 0700), 0);
}

TEST(RunFolder, AFullDiskIsToldAndLeavesTheReportFromBefore) {
  const ScratchFolder scratch;
  RunFolder folder = RunFolder::create(scratch / "run");
  folder.write_report("{}");
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit tight{5, old_limit.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  EXPECT_THAT([&] { folder.write_report("{\"accuracy\": 1}"); }, ThrowsMessage<FileError>(HasSubstr("report.json")));
  EXPECT_THAT([&] { folder.append_metrics("{\"step\":1}"); }, ThrowsMessage<FileError>(HasSubstr("metrics.jsonl")));
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(read_text(scratch / "run/report.json"), "{}");
  // What was written of the line has no end, and goes with the next resume.
  EXPECT_EQ(folder.drop_metrics_after(100), 1u);
}

// One record of an event file, and what is left of the file.
struct Record {
  std::string data;
  std::string_view rest;
};

template <typename T>
T load(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t checksum = crc32c(std::as_bytes(std::span(bytes)));
  return (checksum >> 15 | checksum << 17) + 0xa282ead8u;
}

Record next_record(std::string_view file) {
  const auto size = load<std::uint64_t>(file);
  EXPECT_EQ(load<std::uint32_t>(file.substr(8)), masked(file.substr(0, 8)));
  const auto data = file.substr(12, size);
  EXPECT_EQ(load<std::uint32_t>(file.substr(12 + size)), masked(data));
  return {std::string(data), file.substr(16 + size)};
}

TEST(EventWriter, WritesFramedRecordsAtOnce) {
  const ScratchFolder scratch;
  EventWriter writer(scratch / "run/events");
  const std::vector<Scalar> scalars = {{"loss", 0.5f}, {"a", -1.0f}};
  writer.write(300, scalars, 2.0);
  const std::string file = read_text(writer.path());
  const Record version = next_record(file);
  EXPECT_EQ(version.data.substr(11),
            "\x1a\x0d"
            "brain.Event:2");
  const Record point = next_record(version.rest);
  const std::string expected = std::string(
                                   "\x09\0\0\0\0\0\0\0\x40"
                                   "\x10\xac\x02",
                                   12) +  // wall_time 2.0, step 300
                               std::string(
                                   "\x2a\x17"
                                   "\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f",
                                   15) +  // summary, tag, 0.5f
                               std::string(
                                   "\x0a\x08\x0a\x01"
                                   "a\x15\0\0\x80\xbf",
                                   10);  // tag, -1.0f
  EXPECT_EQ(point.data, expected);
  EXPECT_TRUE(point.rest.empty());
}

TEST(EventWriter, EveryWriterBeginsAFileThatSortsBehindTheOthers) {
  const ScratchFolder scratch;
  std::string before;
  for (int i = 0; i < 5; ++i) {
    const EventWriter writer(scratch.path(), i - 1);
    const std::string name = writer.path().filename();
    EXPECT_THAT(name, testing::StartsWith("events.out.tfevents."));
    EXPECT_LT(before, name);
    before = name;
  }
}

TEST(EventWriter, AResumedOneSaysFromWhichStepOn) {
  const ScratchFolder scratch;
  const EventWriter writer(scratch.path(), 99);
  const std::string file = read_text(writer.path());
  const Record start = next_record(next_record(file).rest);
  // step 100, session_log { status: START }
  EXPECT_EQ(start.data.substr(9), std::string("\x10\x64\x3a\x02\x08\x01"));
  EXPECT_TRUE(start.rest.empty());
}

TEST(EventWriter, NamesAFolderThatCannotBeMade) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "file") << "text";
  EXPECT_THAT([&] { EventWriter(scratch / "file/events"); }, ThrowsMessage<FileError>(HasSubstr("Not a directory")));
}

}  // namespace
}  // namespace dba::run
