#include "train/prefetch.h"

#include <algorithm>
#include <chrono>

namespace dba::train {

Prefetcher::Prefetcher(std::size_t first, std::size_t count, std::size_t ahead, std::function<Batch(std::size_t)> make)
    : make_(std::move(make)),
      ahead_(std::max<std::size_t>(ahead, 1)),
      thread_([this, first, count] { work(first, count); }) {}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::work(std::size_t first, std::size_t count) {
  try {
    for (std::size_t i = first; i < count; ++i) {
      auto batch = make_(i);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || ready_.size() < ahead_; });
      if (stop_) {
        return;
      }
      ready_.push_back(std::move(batch));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

std::optional<Batch> Prefetcher::next() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_ || !ready_.empty(); });
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (ready_.empty()) {
    if (error_) {
      std::rethrow_exception(error_);
    }
    return std::nullopt;
  }
  auto batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

}  // namespace dba::train
