#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

/// The authors' whole time-series classifier in numbers and loops, one padded series at a time, as their code computes
/// it: no tensors, no library. A second transcription, for weights that are written down.
namespace dba::test {

using Numbers = std::vector<double>;
using Table = std::vector<Numbers>;

struct SeriesClassifierByHand {
  std::size_t d, heads, d_p, d_in, layers;
  std::size_t longest;                     ///< series are padded with zero steps to this length
  std::map<std::string, Numbers> weights;  ///< by the names of dba::Classifier, row-major

  /// series (n, features) → a logit per class.
  Numbers logits(const Table& series) const;
};

/// Entry i of parameter number k: a multiple of 1/8 between −3/8 and 3/8.
double weight_by_hand(std::size_t k, std::size_t i);

}  // namespace dba::test
