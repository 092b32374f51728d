#pragma once

#include <string>
#include <vector>

#include "dba/backend.h"
#include "dba/nn/dba_attention.h"

namespace dba::zoo {
struct Member;
}

namespace dba::bench {

/// The back end of scaled_dot_product_attention; `any` leaves the choice to torch.
enum class Sdpa { any, flash, cudnn, efficient, math };

/// One way to compute an attention layer: a method that `make_attention` knows, and how it goes about it.
struct Method {
  std::string name;       ///< as it was asked for: "dba", "dba:released:reference", "softmax:flash", "local(block=32)"
  std::string attention;  ///< without options and variants
  std::string options;    ///< of a member of the zoo: "block=32"
  Form form = Form::paper;
  Normalise normalise = Normalise::softmax;
  Order order = Order::two_pass;
  Backend backend = Backend::automatic;
  Sdpa sdpa = Sdpa::any;

  bool is_dba() const {
    return attention == "dba";
  }
  /// Whether the cost is known to grow with the length and not with its square.
  bool linear_in_length() const {
    return is_dba();
  }
  /// Whether it is one of the zoo's other than softmax attention and DBA.
  bool of_zoo() const;
  /// Whether the zoo says that tokens are hashed, so that a rounding may change who sees whom.
  bool hashes() const;
  /// Whether the zoo says that no map between all tokens is kept.
  bool sub_quadratic() const;
};

/// A method's name, options of its own in brackets, and, behind colons, its variants:
///   of "dba"      paper, released; softmax, linear; two_pass, direct; auto, reference, fused
///   of "softmax"  flash, cudnn, efficient, math
///   of others     auto, reference, fused
/// Throws std::invalid_argument, which names what is known.
Method parse_method(const std::string& name);
/// Its record in the zoo, or nothing for attentions that others have registered.
const zoo::Member* member_of(const Method& method);
/// The attention as `make_attention` takes it, with the longest sequence where it needs one and the options name none.
std::string attention_text(const Method& method, int64_t longest);

/// The same function by the plainest path: what a method's numbers are compared with.
Method truth_of(const Method& method);
/// The same function as PyTorch computes it operation by operation: the yardstick of the error in a precision. Members
/// of the zoo that are written on PyTorch's fused attention round as that does, which in backward is more.
Method plain_of(const Method& method);

/// While it lives, operators and scaled_dot_product_attention go the method's way.
class MethodScope {
 public:
  explicit MethodScope(const Method& method);
  ~MethodScope();
  MethodScope(const MethodScope&) = delete;
  MethodScope& operator=(const MethodScope&) = delete;

 private:
  BackendGuard backend_;
  bool flash_, cudnn_, efficient_, math_;
};

}  // namespace dba::bench
