#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace dba::reproduce {

/// Follows a log that somebody else writes, from where it ends now.
class LogTail {
 public:
  explicit LogTail(std::filesystem::path log) : log_(std::move(log)) {
    std::error_code none_yet;
    const auto size = std::filesystem::file_size(log_, none_yet);
    read_ = none_yet ? 0 : static_cast<std::streamoff>(size);
  }

  /// The whole lines that have come since the last call.
  std::vector<std::string> lines() {
    std::ifstream file(log_, std::ios::binary);
    file.seekg(read_);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    std::vector<std::string> found;
    std::size_t begin = 0;
    for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
      found.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    read_ += static_cast<std::streamoff>(begin);
    return found;
  }

 private:
  std::filesystem::path log_;
  std::streamoff read_ = 0;
};

}  // namespace dba::reproduce
