#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace dba::ops::cpu {

/// Pieces of work that threads take as they become free, so that none waits long for one that is held up. A turn is a
/// run of neighbours: a share of what is left, down to a single piece at the end.
class Turns {
 public:
  Turns(int64_t pieces, int64_t threads) : pieces_(pieces), threads_(threads) {}

  /// The next run, [from, to); false: all are taken.
  bool next(int64_t& from, int64_t& to) {
    auto first = taken_.load(std::memory_order_relaxed);
    while (first < pieces_) {
      const auto share = std::max<int64_t>((pieces_ - first) / (2 * threads_), 1);
      if (taken_.compare_exchange_weak(first, first + share, std::memory_order_relaxed)) {
        from = first;
        to = first + share;
        return true;
      }
    }
    return false;
  }

 private:
  int64_t pieces_, threads_;
  std::atomic<int64_t> taken_{0};
};

/// Calls work(turns) on as many threads as find `least` pieces each.
template <class Work>
void share_out(int64_t pieces, int64_t least, Work work) {
  const auto threads = std::min<int64_t>(at::get_num_threads(), (pieces + least - 1) / least);
  Turns turns(pieces, threads);
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { work(turns); });
}

}  // namespace dba::ops::cpu
