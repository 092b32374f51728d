#include "ops/checks.h"

#include <c10/util/Exception.h>

#include <sstream>

#include "ops/arguments.h"

namespace dba::ops {
namespace {

std::string shape_text(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << "(";
  for (size_t i = 0; i < sizes.size(); ++i) {
    text << (i == 0 ? "" : ", ");
    if (sizes[i] < 0) {
      text << "any";
    } else {
      text << sizes[i];
    }
  }
  text << ")";
  return text.str();
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "nothing";
  }
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << " " << shape_text(tensor.sizes()) << " on " << tensor.device();
  return text.str();
}

at::ScalarType accumulation_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

bool values_can_be_checked(const at::Tensor& tensor) {
  return tensor.is_cpu() || (debug_checks() && !tensor.is_meta());
}

void check_sequences(const char* function, const Sequences& sequences, const char* bounds) {
  const auto& begin = sequences.begin;
  const auto& end = sequences.end;
  for (const auto& [bound, argument] : {std::pair(begin, "begin"), std::pair(end, "end")}) {
    TORCH_CHECK(
        bound.defined() && bound.dim() == 1 && (bound.scalar_type() == at::kLong || bound.scalar_type() == at::kInt),
        "dba::", function, ": ", argument, " must be int64 or int32 of shape (B), got ", describe(bound));
  }
  TORCH_CHECK(begin.size(0) == end.size(0), "dba::", function, ": begin and end must have one entry per sequence, got ",
              begin.size(0), " and ", end.size(0));
  TORCH_CHECK(begin.device() == end.device(), "dba::", function, ": begin and end must be on one device, got ",
              begin.device(), " and ", end.device());
  if (!values_can_be_checked(begin) || begin.size(0) == 0) {
    return;
  }
  const auto starts = begin.to(at::kCPU, at::kLong).contiguous();
  const auto stops = end.to(at::kCPU, at::kLong).contiguous();
  const auto* const start = starts.const_data_ptr<int64_t>();
  const auto* const stop = stops.const_data_ptr<int64_t>();
  int64_t previous = 0;
  for (int64_t b = 0; b < starts.numel(); ++b) {
    TORCH_CHECK(start[b] >= previous, "dba::", function, ": ", bounds, " must not be negative or decrease: sequence ",
                b, " must begin at row ", previous, " or later, got ", start[b]);
    TORCH_CHECK(stop[b] >= start[b], "dba::", function, ": ", bounds, " must not decrease: sequence ", b,
                " must end at its begin ", start[b], " or later, got ", stop[b]);
    previous = stop[b];
  }
  TORCH_CHECK(previous <= sequences.rows, "dba::", function, ": ", bounds, " must end within the ", sequences.rows,
              " rows of the batch, got ", previous);
}

void check_rows(const char* function, const at::Tensor& x, const Sequences& sequences) {
  TORCH_CHECK(x.defined() && x.dim() == 2 && x.size(0) == sequences.rows, "dba::", function, ": x must have the ",
              sequences.rows, " rows that the sequences were made for, got ", describe(x));
}

void check_tokens(const char* function, const char* argument, const at::Tensor& x, const Sequences& sequences) {
  TORCH_CHECK(x.defined() && x.dim() == 2, "dba::", function, ": ", argument, " must be of shape (N, d), got ",
              describe(x));
  TORCH_CHECK(at::isFloatingType(x.scalar_type()), "dba::", function, ": ", argument,
              " must be of a floating type, got ", describe(x));
  TORCH_CHECK(x.size(1) >= 1, "dba::", function, ": ", argument, " must have a width of 1 or more, got ", describe(x));
  TORCH_CHECK(x.size(0) == sequences.rows, "dba::", function, ": ", argument, " must have the ", sequences.rows,
              " rows of its sequences, got ", x.size(0));
  check_sequences(function, sequences);
  TORCH_CHECK(sequences.begin.device() == x.device(), "dba::", function, ": begin and end must be on ", argument,
              "'s device ", x.device(), ", got ", sequences.begin.device());
}

void check_operand(const char* function, const char* argument, const at::Tensor& operand, const at::Tensor& x) {
  if (!operand.defined()) {
    return;
  }
  TORCH_CHECK(operand.device() == x.device(), "dba::", function, ": ", argument, " must be on the device of x, ",
              x.device(), ", got ", describe(operand));
  const auto wide = accumulation_type(x.scalar_type());
  TORCH_CHECK(operand.scalar_type() == x.scalar_type() || operand.scalar_type() == wide, "dba::", function, ": ",
              argument, " must be of x's type ", c10::toString(x.scalar_type()), " or its accumulation type ",
              c10::toString(wide), ", got ", describe(operand));
}

void check_shape(const char* function, const char* argument, const at::Tensor& tensor, at::IntArrayRef expected,
                 bool optional) {
  if (!tensor.defined() && optional) {
    return;
  }
  bool fits = tensor.defined() && tensor.dim() == static_cast<int64_t>(expected.size());
  for (size_t i = 0; fits && i < expected.size(); ++i) {
    fits = expected[i] < 0 || tensor.size(static_cast<int64_t>(i)) == expected[i];
  }
  TORCH_CHECK(fits, "dba::", function, ": ", argument, " must be of shape ", shape_text(expected), ", got ",
              describe(tensor));
}

void check_heads(const char* function, int64_t heads, const char* argument, int64_t size) {
  TORCH_CHECK(heads >= 1, "dba::", function, ": heads must be 1 or more, got ", heads);
  TORCH_CHECK(size % heads == 0, "dba::", function, ": ", argument, " must be divisible by the ", heads, " heads, got ",
              size);
}

void check_dropout(const char* function, const Dropout& dropout, at::Device device) {
  TORCH_CHECK(dropout.p >= 0.0 && dropout.p < 1.0, "dba::", function, ": dropout must be in [0, 1), got ", dropout.p);
  if (dropout.p == 0.0) {
    return;
  }
  const auto& rng = dropout.rng;
  TORCH_CHECK(rng.defined() && rng.dim() == 1 && rng.size(0) == 2 && rng.scalar_type() == at::kLong, "dba::", function,
              ": rng must be int64 of shape (2), seed and offset, when dropout is ", dropout.p, ", got ", describe(rng),
              "; Dropout::draw makes one");
  TORCH_CHECK(rng.device() == device, "dba::", function, ": rng must be on the device of x, ", device, ", got ",
              rng.device());
}

void check_score_rows(const char* function, const ScoreRows& rows, const at::Tensor& x, int64_t batch) {
  const auto d = x.size(1);
  check_shape(function, "each", rows.each, {batch, -1, d}, true);
  check_shape(function, "shared", rows.shared, {-1, d}, true);
  check_operand(function, "each", rows.each, x);
  check_operand(function, "shared", rows.shared, x);
  const auto each = rows.each.defined() ? rows.each.size(1) : 0;
  const auto shared = rows.shared.defined() ? rows.shared.size(0) : 0;
  check_shape(function, "each_bias", rows.each_bias, {batch, each}, true);
  check_shape(function, "shared_bias", rows.shared_bias, {shared}, true);
  check_operand(function, "each_bias", rows.each_bias, x);
  check_operand(function, "shared_bias", rows.shared_bias, x);
  TORCH_CHECK(each + shared >= 1, "dba::", function, ": each or shared must hold at least one score row, got none");
  TORCH_CHECK(rows.linear >= 0 && rows.linear <= each + shared, "dba::", function,
              ": linear must be between 0 and the ", each + shared, " score rows, got ", rows.linear);
}

void check_compress(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout) {
  check_tokens("compress", "x", x, sequences);
  check_score_rows("compress", rows, x, sequences.count());
  check_dropout("compress", dropout, x.device());
}

void check_restore(const char* function, const at::Tensor& x, const Sequences& sequences, const at::Tensor& rows,
                   const at::Tensor& bias, const at::Tensor& m, const at::Tensor& out_bias, int64_t heads) {
  check_tokens(function, "x", x, sequences);
  const auto d = x.size(1);
  const auto batch = sequences.count();
  TORCH_CHECK(rows.defined() && (rows.dim() == 2 || rows.dim() == 3), "dba::", function,
              ": rows must be of shape (H·d_p, d) or (B, H·d_p, d), got ", describe(rows));
  const bool each = rows.dim() == 3;
  const auto slots = rows.size(each ? 1 : 0);
  if (each) {
    check_shape(function, "rows", rows, {batch, slots, d});
    check_shape(function, "bias", bias, {batch, slots}, true);
  } else {
    check_shape(function, "rows", rows, {slots, d});
    check_shape(function, "bias", bias, {slots}, true);
  }
  TORCH_CHECK(slots >= 1, "dba::", function, ": rows must hold at least one slot, got ", describe(rows));
  check_heads(function, heads, "the number of rows", slots);
  check_shape(function, "m", m, {batch, slots, -1});
  check_shape(function, "out_bias", out_bias, {m.size(2)}, true);
  check_operand(function, "rows", rows, x);
  check_operand(function, "bias", bias, x);
  check_operand(function, "m", m, x);
  check_operand(function, "out_bias", out_bias, x);
}

void check_core(const char* function, const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights,
                int64_t heads) {
  TORCH_CHECK(c.defined() && c.dim() == 3, "dba::", function, ": c must be of shape (B, L, d), got ", describe(c));
  const auto batch = c.size(0);
  const auto d = c.size(2);
  const bool released = weights.compress_weight.defined();
  const bool cross = weights.other.defined();
  const int64_t groups = released || cross ? 1 : 3;
  check_shape(function, "r", r, {batch, c.size(1)});
  TORCH_CHECK(r.device() == c.device(), "dba::", function, ": r must be on the device of c, ", c.device(), ", got ",
              describe(r));
  TORCH_CHECK(r.scalar_type() == c.scalar_type(), "dba::", function, ": r must be of c's type ",
              c10::toString(c.scalar_type()), ", got ", describe(r));
  for (const auto member : core_weight_members()) {
    const auto& weight = weights.*member;
    TORCH_CHECK(!weight.defined() || weight.device() == c.device(), "dba::", function,
                ": weights must be on the device of c, ", c.device(), ", got ", describe(weight));
    TORCH_CHECK(!weight.defined() || accumulation_type(weight.scalar_type()) == c.scalar_type(), "dba::", function,
                ": weights must be of a type that accumulates in c's, ", c10::toString(c.scalar_type()), ", got ",
                describe(weight));
  }
  TORCH_CHECK(heads >= 1, "dba::", function, ": heads must be 1 or more, got ", heads);
  TORCH_CHECK(c.size(1) % (groups * heads) == 0, "dba::", function, ": c must have ", groups, " × ", heads,
              " heads × d_p rows, got ", describe(c));
  const auto d_p = c.size(1) / (groups * heads);

  const auto check_linear = [&](const char* weight_name, const at::Tensor& weight, const char* bias_name,
                                const at::Tensor& bias, int64_t out, int64_t in) {
    check_shape(function, weight_name, weight, {out, in});
    check_shape(function, bias_name, bias, {weight.size(0)}, true);
    check_heads(function, heads, weight_name, weight.size(0));
  };
  if (released) {
    TORCH_CHECK(!weights.width.defined(), "dba::", function,
                ": width must be absent in form released (compress_weight is given), got ", describe(weights.width));
    check_linear("compress_weight", weights.compress_weight, "compress_bias", weights.compress_bias, -1, d);
    const auto inner = weights.compress_weight.size(0);
    check_linear("query_weight", weights.query_weight, "query_bias", weights.query_bias, -1, inner);
    check_linear("key_weight", weights.key_weight, "key_bias", weights.key_bias, weights.query_weight.size(0), inner);
    check_linear("value_weight", weights.value_weight, "value_bias", weights.value_bias, -1, inner);
    check_shape(function, "norm_weight", weights.norm_weight, {weights.value_weight.size(0)});
    check_shape(function, "norm_bias", weights.norm_bias, {weights.value_weight.size(0)});
  } else {
    check_linear("query_weight", weights.query_weight, "query_bias", weights.query_bias, -1, d);
    check_linear("key_weight", weights.key_weight, "key_bias", weights.key_bias, weights.query_weight.size(0), d);
    check_linear("value_weight", weights.value_weight, "value_bias", weights.value_bias, -1, d);
    check_shape(function, "width", weights.width, {heads, weights.query_weight.size(0) / heads, -1}, true);
    TORCH_CHECK(!weights.norm_weight.defined(), "dba::", function,
                ": norm_weight must be absent in form paper (compress_weight is not given), got ",
                describe(weights.norm_weight));
  }
  check_shape(function, "out_weight", weights.out_weight, {-1, weights.value_weight.size(0)});
  const auto other_width = released ? weights.compress_weight.size(0) : d;
  check_shape(function, "other", weights.other, {batch, d_p, other_width}, true);
}

}  // namespace dba::ops
