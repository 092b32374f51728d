#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

#include "dba/zoo.h"

namespace dba::zoo {

/// Sequences of about one length, taken out of a batch: lengths between 2^k and 2^(k+1) − 1 of the longer stream.
struct LengthClass {
  at::Tensor queries;  ///< the rows of their tokens in the batch
  at::Tensor memory;
  Sequences query_sequences;  ///< where they lie once they stand alone, packed
  Sequences memory_sequences;
};

/// A batch that would be more padding than tokens, laid out with all sequences as long as the longest, in classes that
/// are not; none for other batches, and where only the device knows the lengths. `memory` may be `queries`.
std::vector<LengthClass> length_classes(const Sequences& queries, const Sequences& memory);

/// What `mix` gives for each class, at the rows of `queries`; zeros in rows of nobody.
at::Tensor mix_by_class(const std::vector<LengthClass>& classes, const Stream& queries, const Stream& memory,
                        const std::function<at::Tensor(const Stream&, const Stream&)>& mix);

}  // namespace dba::zoo
