#pragma once

#include <unistd.h>

namespace dba::bytes {

/// Closes what it owns.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const {
    return fd_;
  }
  bool valid() const {
    return fd_ >= 0;
  }

 private:
  int fd_;
};

}  // namespace dba::bytes
