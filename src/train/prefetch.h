#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "dba/train/batches.h"

namespace dba::train {

/// Makes batches in a background thread, a few ahead of whoever takes them, in order.
class Prefetcher {
 public:
  /// make(i) for i = first … count − 1.
  Prefetcher(std::size_t first, std::size_t count, std::size_t ahead, std::function<Batch(std::size_t)> make);
  ~Prefetcher();
  /// The next batch; nothing at the end. Throws what `make` threw.
  std::optional<Batch> next();
  /// Seconds that `next` has waited.
  double waited() const {
    return waited_;
  }

 private:
  void work(std::size_t first, std::size_t count);

  std::function<Batch(std::size_t)> make_;
  std::size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  bool done_ = false;
  bool stop_ = false;
  double waited_ = 0;
  std::thread thread_;
};

}  // namespace dba::train
