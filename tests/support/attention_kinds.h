#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dba/nn/dba_attention.h"
#include "dba/nn/softmax_attention.h"
#include "support/cases.h"

namespace dba::test {

inline const std::vector<std::string> kAttentionKinds = {
    "paper",           "paper_linear", "paper_direct",    "paper_full_length",
    "paper_own_slots", "released",     "released_direct", "softmax"};

/// A self-attention of the library in double, with the slots it wants.
struct AttentionKind {
  std::shared_ptr<torch::nn::Module> module;
  Attention* attention;  ///< the same object
  at::Tensor z;          ///< undefined where it takes none

  AttentionOutput run(const at::Tensor& x, const Sequences& sequences) const {
    return attention->forward(x, sequences, z);
  }
};

/// Every way of attending that there is, in the order of kAttentionKinds: d = 8, two heads.
inline std::vector<AttentionKind> attention_kinds(Random& random) {
  const DBAttentionOptions base = DBAttentionOptions(8, 2).d_p(3).d_in(4).z_update(ZUpdate::replace);
  std::vector<AttentionKind> kinds;
  const auto add = [&](auto holder, bool slots) {
    holder->to(at::kDouble);
    random.fill(*holder);
    kinds.push_back({holder.ptr(), holder.get(), slots ? random.normal({3, 8}) : at::Tensor()});
  };
  add(DBAttention(base), true);
  add(DBAttention(DBAttentionOptions(base).normalise(Normalise::linear)), true);
  add(DBAttention(DBAttentionOptions(base).order(Order::direct)), true);
  add(DBAttention(DBAttentionOptions(base).compress_length(false)), false);
  add(DBAttention(DBAttentionOptions(base).z_update(ZUpdate::own)), false);
  add(DBAttention(DBAttentionOptions(base).form(Form::released)), true);
  add(DBAttention(DBAttentionOptions(base).form(Form::released).order(Order::direct)), true);
  add(SoftmaxAttention(SoftmaxAttentionOptions(8, 2)), false);
  return kinds;
}

}  // namespace dba::test
