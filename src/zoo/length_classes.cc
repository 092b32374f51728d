#include "zoo/length_classes.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <map>

namespace dba::zoo {
namespace {

/// Places of the padded batch for every token above which a batch is divided: below, the gathers cost more.
constexpr int64_t kMostPlaces = 4;

bool is_mostly_padding(const Sequences& sequences) {
  return sequences.count() * sequences.longest() > kMostPlaces * std::max<int64_t>(sequences.rows, 1);
}

/// Rows of some sequences of a batch, one behind the other.
struct Gathered {
  std::vector<int64_t> rows;
  std::vector<int64_t> bounds{0};
  int64_t longest = 0;

  void add(int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      rows.push_back(row);
    }
    bounds.push_back(std::ssize(rows));
    longest = std::max(longest, end - begin);
  }
  at::Tensor index() const {
    return torch::tensor(rows, at::kLong);
  }
  Sequences sequences() const {
    return Sequences::packed(torch::tensor(bounds, at::kLong), std::ssize(rows), longest);
  }
};

}  // namespace

std::vector<LengthClass> length_classes(const Sequences& queries, const Sequences& memory) {
  if (!queries.begin.is_cpu() || !memory.begin.is_cpu() || !(is_mostly_padding(queries) || is_mostly_padding(memory))) {
    return {};
  }
  const auto query_begin = queries.begin.accessor<int64_t, 1>(), query_end = queries.end.accessor<int64_t, 1>();
  const auto memory_begin = memory.begin.accessor<int64_t, 1>(), memory_end = memory.end.accessor<int64_t, 1>();
  std::map<int, std::pair<Gathered, Gathered>> gathered;
  for (int64_t b = 0; b < queries.count(); ++b) {
    if (query_end[b] == query_begin[b]) {
      continue;  // nobody asks
    }
    const auto longer = std::max(query_end[b] - query_begin[b], memory_end[b] - memory_begin[b]);
    auto& [of_queries, of_memory] = gathered[std::bit_width(static_cast<uint64_t>(longer))];
    of_queries.add(query_begin[b], query_end[b]);
    of_memory.add(memory_begin[b], memory_end[b]);
  }
  if (gathered.size() < 2) {
    return {};
  }
  std::vector<LengthClass> classes;
  for (const auto& [width, streams] : gathered) {
    const auto& [of_queries, of_memory] = streams;
    classes.push_back({of_queries.index(), of_memory.index(), of_queries.sequences(), of_memory.sequences()});
  }
  return classes;
}

at::Tensor mix_by_class(const std::vector<LengthClass>& classes, const Stream& queries, const Stream& memory,
                        const std::function<at::Tensor(const Stream&, const Stream&)>& mix) {
  std::vector<at::Tensor> places, mixed;
  for (const auto& one : classes) {
    const Stream asking{queries.rows.index_select(0, one.queries), one.query_sequences};
    places.push_back(one.queries);
    if (&queries == &memory) {  // members know self-attention by it
      mixed.push_back(mix(asking, asking));
    } else {
      mixed.push_back(mix(asking, {memory.rows.index_select(0, one.memory), one.memory_sequences}));
    }
  }
  const auto rows = torch::cat(mixed);
  return rows.new_zeros({queries.rows.size(0), rows.size(1)}).index_copy(0, torch::cat(places), rows);
}

}  // namespace dba::zoo
