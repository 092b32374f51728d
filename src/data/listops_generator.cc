#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checksum.h"
#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/data/listops.h"
#include "listops_tree.h"

namespace dba::data {
namespace {

constexpr std::size_t kDrawsPerChunk = 4096;
// So many draws, some four million, without a new expression: there are hardly any left.
constexpr std::size_t kMostFruitlessChunks = 1024;

// Two independent 64-bit sums of an expression; that two expressions of a set share both is out of the question.
using Identity = std::array<std::uint64_t, 2>;

struct IdentityHash {
  std::size_t operator()(const Identity& identity) const {
    return identity[0];
  }
};

Identity identity_of(const std::vector<std::uint8_t>& code) {
  Checksum forward;
  forward.add(std::as_bytes(std::span(code)));
  std::uint64_t other = code.size();
  for (const std::uint8_t node : code)
    other = mix_bits(other + 0x9e3779b97f4a7c15u * (node + 1u));
  return {forward.value(), other};
}

struct Chunk {
  struct Row {
    Identity identity;
    std::size_t end;  // in text
  };
  std::vector<Row> rows;
  std::string text;
};

// The expressions of one chunk depend on the seed and its number alone.
Chunk make_chunk(const ListOpsOptions& options, std::uint64_t number) {
  CounterRandom random(options.seed, number);
  ListOpsTree tree(options);
  Chunk chunk;
  for (std::size_t i = 0; i < kDrawsPerChunk; ++i) {
    if (!tree.draw(random))
      continue;
    const int value = tree.spell(chunk.text);
    chunk.text += '\t';
    chunk.text += static_cast<char>('0' + value);
    chunk.text += "\r\n";
    chunk.rows.push_back({identity_of(tree.code()), chunk.text.size()});
  }
  return chunk;
}

// Chunks 0, 1, 2 … made by several threads and handed out in order. The threads run ahead by a few chunks only.
class ChunkQueue {
 public:
  ChunkQueue(const ListOpsOptions& options, std::size_t threads) : options_(options), ahead_(2 * threads) {
    for (std::size_t i = 0; i < threads; ++i)
      threads_.emplace_back([this] { work(); });
  }
  ~ChunkQueue() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_)
      thread.join();
  }
  ChunkQueue(const ChunkQueue&) = delete;
  ChunkQueue& operator=(const ChunkQueue&) = delete;

  Chunk next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return error_ || ready_.contains(taken_); });
    if (error_)
      std::rethrow_exception(error_);
    Chunk chunk = std::move(ready_.extract(taken_).mapped());
    ++taken_;
    changed_.notify_all();
    return chunk;
  }

 private:
  void work() {
    while (true) {
      std::uint64_t number = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || started_ < taken_ + ahead_; });
        if (stop_)
          return;
        number = started_++;
      }
      try {
        Chunk chunk = make_chunk(options_, number);
        const std::lock_guard lock(mutex_);
        ready_.emplace(number, std::move(chunk));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
      }
      changed_.notify_all();
    }
  }

  const ListOpsOptions options_;
  const std::size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Chunk> ready_;
  std::uint64_t started_ = 0;
  std::uint64_t taken_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

// The rows of all chunks, each expression once.
class Rows {
 public:
  Rows(const ListOpsOptions& options, std::size_t threads) : options_(options), queue_(options, threads) {}

  /// With its line end; valid until the next call.
  std::string_view next() {
    while (true) {
      for (; row_ < chunk_.rows.size(); ++row_) {
        const std::size_t begin = row_ == 0 ? 0 : chunk_.rows[row_ - 1].end;
        if (seen_.insert(chunk_.rows[row_].identity).second) {
          fruitless_ = 0;
          return std::string_view(chunk_.text).substr(begin, chunk_.rows[row_++].end - begin);
        }
      }
      if (fruitless_++ == kMostFruitlessChunks) {
        throw std::invalid_argument(
            "generate_listops: " + std::to_string(kMostFruitlessChunks * kDrawsPerChunk) +
            " draws in a row gave no new expression of more than " + std::to_string(options_.min_length) +
            " and fewer than " + std::to_string(options_.max_length) + " tokens after " + std::to_string(seen_.size()) +
            "; ask for fewer, widen min_length … max_length, or raise max_depth or max_args");
      }
      chunk_ = queue_.next();
      row_ = 0;
    }
  }

 private:
  const ListOpsOptions options_;
  std::unordered_set<Identity, IdentityHash> seen_;
  Chunk chunk_;
  std::size_t row_ = 0;
  std::size_t fruitless_ = 0;
  ChunkQueue queue_;
};

void check_range(const char* argument, std::size_t value, std::size_t least, std::size_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument(std::string("generate_listops: ") + argument + ": expected " + std::to_string(least) +
                                " to " + std::to_string(most) + ", got " + std::to_string(value));
  }
}

void check(const ListOpsOptions& options) {
  check_range("max_depth", options.max_depth, 1, 100);
  check_range("max_args", options.max_args, 2, 100);
  check_range("values", options.values, 1, 10);
  check_range("max_length", options.max_length, 2, 10'000'000);
  check_range("min_length", options.min_length, 0, options.max_length - 2);
  check_range("threads", options.threads, 0, 1024);
}

}  // namespace

void generate_listops(const std::filesystem::path& folder, const ListOpsOptions& options,
                      const ListOpsProgress& progress) {
  check(options);
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0)
    throw bytes::FileError("open the folder", folder, errno);
  if (!S_ISDIR(status.st_mode))
    throw bytes::FileError("write into", folder, ENOTDIR);

  const std::size_t threads =
      options.threads > 0 ? options.threads : std::max<std::size_t>(1, std::thread::hardware_concurrency());
  const std::size_t total = options.train + options.validation + options.test;
  std::size_t done = 0;
  Rows rows(options, threads);
  const std::array<std::pair<const char*, std::size_t>, 3> files = {
      {{"basic_train.tsv", options.train}, {"basic_val.tsv", options.validation}, {"basic_test.tsv", options.test}}};
  for (const auto& [name, count] : files) {
    bytes::atomic_write(folder / name, [&, count = count](bytes::OutputFile& file) {
      constexpr std::size_t kBuffer = std::size_t{1} << 20;
      std::string buffer = "Source\tTarget\r\n";
      for (std::size_t i = 0; i < count; ++i) {
        buffer += rows.next();
        ++done;
        if (buffer.size() >= kBuffer) {
          file.write(std::as_bytes(std::span(buffer)));
          buffer.clear();
          if (progress)
            progress(done, total);
        }
      }
      file.write(std::as_bytes(std::span(buffer)));
      if (progress)
        progress(done, total);
    });
  }
}

}  // namespace dba::data
