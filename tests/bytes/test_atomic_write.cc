#include "dba/bytes/atomic_write.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "dba/bytes/errors.h"
#include "dba/bytes/safetensors.h"
#include "scratch_folder.h"

namespace dba::bytes {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  const std::array parts = {bytes_of(text)};
  atomic_write(path, parts);
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::size_t files_in(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator begin(folder);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

mode_t permissions(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

TEST(AtomicWrite, WritesAllPartsAndReplacesTheOldFile) {
  const ScratchFolder folder;
  const std::string first = "first ";
  const std::string last = "last";
  const std::array parts = {bytes_of(first), std::span<const std::byte>(), bytes_of(last)};
  atomic_write(folder / "file", parts);
  EXPECT_EQ(read_text(folder / "file"), "first last");
  write_text(folder / "file", "new");
  EXPECT_EQ(read_text(folder / "file"), "new");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(AtomicWrite, WritesBesideTheWorkingFolderForAPlainName) {
  const ScratchFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_text("plain", "text");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_text(folder / "plain"), "text");
}

TEST(AtomicWrite, TheOldFileIsThereUntilTheNewOneIsComplete) {
  const ScratchFolder folder;
  write_text(folder / "file", "old");
  atomic_write(folder / "file", [&](OutputFile& file) {
    const std::string text = "new";
    file.write(bytes_of(text));
    EXPECT_EQ(read_text(folder / "file"), "old");
    EXPECT_EQ(files_in(folder.path()), 2u);
  });
  EXPECT_EQ(read_text(folder / "file"), "new");
}

TEST(AtomicWrite, ExceptionLeavesTheOldFileAndNoTemporary) {
  const ScratchFolder folder;
  write_text(folder / "file", "old");
  const auto fill = [](OutputFile& file) {
    const std::string text = "half";
    file.write(bytes_of(text));
    throw std::logic_error("changed my mind");
  };
  EXPECT_THAT([&] { atomic_write(folder / "file", fill); }, ThrowsMessage<std::logic_error>("changed my mind"));
  EXPECT_EQ(read_text(folder / "file"), "old");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(AtomicWrite, FullDiskLeavesTheOldFileAndNoTemporary) {
  const ScratchFolder folder;
  write_text(folder / "file", "old");
  const auto fill = [](OutputFile& file) {
    const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(full, 0);
    ASSERT_GE(::dup2(full, file.descriptor()), 0);
    ::close(full);
    const std::string text = "new";
    file.write(bytes_of(text));
  };
  EXPECT_THAT([&] { atomic_write(folder / "file", fill); },
              ThrowsMessage<FileError>(AllOf(HasSubstr("cannot write " + (folder / "file").string()),
                                             HasSubstr("No space left on device"))));
  EXPECT_EQ(read_text(folder / "file"), "old");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

// A limit on the size of files makes the system cut a write short and then refuse, in the middle of the tensors.
TEST(AtomicWrite, SafetensorsWriteThatFailsHalfWayLeavesTheOldFile) {
  const ScratchFolder folder;
  const std::vector<std::byte> data(100'000, std::byte{7});
  const std::vector<TensorView> small = {{"w", DType::u8, {10}, std::span(data).first(10)}};
  const std::vector<TensorView> large = {{"w", DType::u8, {100'000}, data}};
  write_safetensors(folder / "file", small);
  const std::string before = read_text(folder / "file");

  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit{50'000, old_limit.rlim_max};
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THAT([&] { write_safetensors(folder / "file", large); },
              ThrowsMessage<FileError>(
                  AllOf(HasSubstr("cannot write " + (folder / "file").string()), HasSubstr("File too large"))));
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_EQ(read_text(folder / "file"), before);
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(AtomicWrite, RefusesFoldersAndDevices) {
  const ScratchFolder folder;
  EXPECT_THAT([&] { write_text(folder.path(), "text"); }, ThrowsMessage<FileError>(HasSubstr("Is a directory")));
  EXPECT_THAT([&] { write_text(folder.path() / "", "text"); }, ThrowsMessage<FileError>(HasSubstr("Is a directory")));
  EXPECT_THAT([&] { write_text("/dev/null", "text"); }, ThrowsMessage<FileError>(HasSubstr("not a regular file")));
  EXPECT_EQ(files_in(folder.path()), 0u);
}

TEST(AtomicWrite, NamesAMissingFolder) {
  const ScratchFolder folder;
  EXPECT_THAT([&] { write_text(folder / "none/file", "text"); },
              ThrowsMessage<FileError>(
                  AllOf(HasSubstr((folder / "none/file").string()), HasSubstr("No such file or directory"))));
}

TEST(AtomicWrite, NamesAFolderThatCannotBeWritten) {
  if (::geteuid() == 0)
    GTEST_SKIP() << "root may write everywhere";
  const ScratchFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0500), 0);
  EXPECT_THAT([&] { write_text(folder / "file", "text"); },
              ThrowsMessage<FileError>(AllOf(HasSubstr(folder.path().string()), HasSubstr("Permission denied"))));
  ASSERT_EQ(::chmod(folder.path().c_str(), 0700), 0);
}

TEST(AtomicWrite, PermissionsFollowTheUmaskAndSurviveReplacing) {
  const ScratchFolder folder;
  const mode_t old_mask = ::umask(027);
  write_text(folder / "file", "text");
  ::umask(old_mask);
  EXPECT_EQ(permissions(folder / "file"), 0640u);
  ASSERT_EQ(::chmod((folder / "file").c_str(), 0604), 0);
  write_text(folder / "file", "new");
  EXPECT_EQ(permissions(folder / "file"), 0604u);
}

TEST(AtomicWrite, LinkStaysAndItsTargetIsReplaced) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "real");
  write_text(folder / "real/file", "old");
  std::filesystem::create_symlink("real/file", folder / "link");
  write_text(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(folder / "real/file"), "new");
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  EXPECT_THAT([&] { write_text(folder / "dangling", "new"); },
              ThrowsMessage<FileError>(HasSubstr("cannot follow the link")));
}

}  // namespace
}  // namespace dba::bytes
