#pragma once

#include <optional>
#include <vector>

#include "ops/cpu/work_plan.h"
#include "ops/reference/passes.h"
#include "ops/reference/reference.h"

/// The whole layer over stacks of a few sequences, each taken through all its steps while it is in cache. Serves
/// batches without a sequence that is so long that its tokens are split; arguments are checked already.
namespace dba::ops::cpu {

struct AttentionArguments {
  const at::Tensor& x;
  Sequences sequences;
  ScoreRows rows;
  CoreWeights weights;
  at::Tensor restore_rows, restore_bias, out_bias;
  int64_t heads;
  bool linear;
  Dropout dropout;
};

struct AttentionOutputs {
  at::Tensor y, compressed;
  Summary summary;  ///< of the backward, as m
  at::Tensor m;
};

/// What the backward is given besides.
struct AttentionGiven {
  Summary summary;
  at::Tensor m, dy;
  at::Tensor dcompressed;  ///< absent: zero
};

struct AttentionGradients {
  reference::TokenGradients tokens;
  CoreWeights weights;
  at::Tensor out_bias;
};

/// Nothing where a sequence would be split. Without `keep`, summary and m are not made.
std::optional<AttentionOutputs> attention(const AttentionArguments& arguments, bool keep);

std::optional<AttentionGradients> attention_backward(const AttentionArguments& arguments, const AttentionGiven& given);

/// The segments of a plan without splits in stacks of consecutive sequences, of like size inside a unit. Few rows of
/// summaries make a stack: what belongs to it should stay in cache from step to step.
struct StackPlan {
  struct Stack {
    int64_t first_segment, count;
  };
  StackPlan(const WorkPlan& plan, int64_t d_p);

  std::vector<Stack> stacks;
  std::vector<int64_t> first_stack;  ///< of each unit, and the end
  int64_t largest = 0;
};

}  // namespace dba::ops::cpu
