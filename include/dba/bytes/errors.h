#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dba::bytes {

/// A file whose bytes are not what its format promises: damaged, truncated, hostile or of another kind.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The operating system refused: no such file, no permission, no space.
class FileError : public std::runtime_error {
 public:
  /// error: an errno value; `what()` reads "cannot open /data/w.safetensors: No such file or directory".
  FileError(const std::string& action, const std::filesystem::path& path, int error);

  int error() const {
    return error_;
  }

 private:
  int error_;
};

/// Text out of a file, fit for a message: in quotes, control characters escaped, long text cut short.
std::string in_quotes(std::string_view text);

}  // namespace dba::bytes
