#include "support/comparison.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

namespace dba::test {
namespace {

/// A gradient that vanishes in exact arithmetic is what remains of terms as large as the other gradients: the floor of
/// the comparison, as a share of the norm of all gradients.
constexpr double kVanishing = 1e-2;

/// The tensors of the tests are small: a second thread costs more than it brings, most of all on a busy machine.
class OneThread : public ::testing::Environment {
 public:
  void SetUp() override {
    at::set_num_threads(1);
  }
};

const ::testing::Environment* const kOneThread = ::testing::AddGlobalTestEnvironment(new OneThread);

std::string position_of(int64_t flat, at::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (int64_t i = static_cast<int64_t>(sizes.size()) - 1; i >= 0; --i) {
    index[static_cast<size_t>(i)] = flat % sizes[static_cast<size_t>(i)];
    flat /= sizes[static_cast<size_t>(i)];
  }
  std::ostringstream text;
  text << at::IntArrayRef(index);
  return text.str();
}

::testing::AssertionResult same_shape(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() || !expected.defined())
    return ::testing::AssertionFailure() << "a tensor is undefined: actual " << actual.defined() << ", expected "
                                         << expected.defined();
  if (actual.sizes() != expected.sizes())
    return ::testing::AssertionFailure() << "shape " << actual.sizes() << ", expected " << expected.sizes();
  return ::testing::AssertionSuccess();
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::vector<at::Tensor> gradients_of(const at::Tensor& loss, const std::vector<Named>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const Named& input : inputs)
    leaves.push_back(input.tensor);
  std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, leaves, /*grad_outputs=*/{},
                                                            /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                                            /*allow_unused=*/true);
  for (size_t i = 0; i < gradients.size(); ++i)
    if (!gradients[i].defined())
      gradients[i] = at::zeros_like(leaves[i]);
  return gradients;
}

}  // namespace

::testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected, double tolerance, double floor) {
  const ::testing::AssertionResult shape = same_shape(actual, expected);
  if (!shape)
    return shape;
  if (actual.numel() == 0)
    return ::testing::AssertionSuccess();
  const at::Tensor a = actual.detach().to(at::kDouble).contiguous();
  const at::Tensor e = expected.detach().to(at::kDouble).contiguous();
  const at::Tensor difference = (a - e).abs();
  const double error = difference.norm().item<double>();
  const double scale = std::max(e.norm().item<double>(), floor);
  if (error <= tolerance * scale)
    return ::testing::AssertionSuccess();
  const int64_t worst = difference.nan_to_num(INFINITY).argmax().item<int64_t>();
  return ::testing::AssertionFailure() << "error " << error << " over norm " << scale << " is " << error / scale
                                       << ", more than " << tolerance << "; worst at " << position_of(worst, e.sizes())
                                       << " of " << e.sizes() << ": " << a.view(-1)[worst].item<double>()
                                       << ", expected " << e.view(-1)[worst].item<double>();
}

::testing::AssertionResult identical(const at::Tensor& actual, const at::Tensor& expected) {
  const ::testing::AssertionResult shape = same_shape(actual, expected);
  if (!shape)
    return shape;
  if (actual.scalar_type() != expected.scalar_type())
    return ::testing::AssertionFailure() << "dtype " << actual.scalar_type() << ", expected " << expected.scalar_type();
  const at::Tensor differs =
      actual.ne(expected).logical_and((actual.isnan().logical_and(expected.isnan())).logical_not());
  const int64_t count = differs.sum().item<int64_t>();
  if (count == 0)
    return ::testing::AssertionSuccess();
  const int64_t first = differs.contiguous().view(-1).to(at::kInt).argmax().item<int64_t>();
  return ::testing::AssertionFailure() << count << " of " << differs.numel() << " entries differ; first at "
                                       << position_of(first, differs.sizes()) << ": "
                                       << actual.contiguous().view(-1)[first].item<double>() << ", expected "
                                       << expected.contiguous().view(-1)[first].item<double>();
}

::testing::AssertionResult all_finite(const at::Tensor& t) {
  if (!t.defined())
    return ::testing::AssertionFailure() << "undefined tensor";
  const int64_t bad = t.isfinite().logical_not().sum().item<int64_t>();
  if (bad == 0)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << bad << " of " << t.numel() << " entries are not finite";
}

std::vector<Named> with_parameters(std::vector<Named> inputs, const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters())
    inputs.push_back({parameter.key(), parameter.value()});
  return inputs;
}

at::Tensor random_projection(const std::vector<at::Tensor>& outputs, uint64_t seed) {
  Random random(seed);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& output : outputs)
    sum = sum + (output.to(at::kDouble) * random.normal(output.sizes())).sum();
  return sum;
}

void expect_same_function(const std::vector<Named>& actual, const std::vector<at::Tensor>& expected,
                          const std::vector<Named>& inputs, double tolerance) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(close(actual[i].tensor, expected[i], tolerance)) << "value of " << actual[i].name;
    outputs.push_back(actual[i].tensor);
  }
  const std::vector<at::Tensor> got = gradients_of(random_projection(outputs, 99), inputs);
  const std::vector<at::Tensor> wanted = gradients_of(random_projection(expected, 99), inputs);
  double all = 0;
  for (const at::Tensor& gradient : wanted)
    all += gradient.square().sum().item<double>();
  for (size_t i = 0; i < inputs.size(); ++i)
    EXPECT_TRUE(close(got[i], wanted[i], tolerance, kVanishing * std::sqrt(all))) << "gradient of " << inputs[i].name;
}

void expect_gradients(const std::vector<Named>& inputs, const std::function<at::Tensor()>& loss, uint64_t seed,
                      bool one_by_one) {
  constexpr int kJoint = 3;
  constexpr double kStep = 1e-3;
  constexpr double kTolerance = 1e-7;
  constexpr double kFloor = 1e-2;
  const std::vector<at::Tensor> gradients = gradients_of(loss(), inputs);
  const torch::NoGradGuard no_grad;
  Random random(seed);
  std::vector<at::Tensor> at_start;
  for (const Named& input : inputs)
    at_start.push_back(input.tensor.clone());

  const auto check = [&](const std::string& name, const std::vector<at::Tensor>& directions) {
    const auto loss_at = [&](double step) {
      for (size_t i = 0; i < inputs.size(); ++i)
        if (directions[i].defined())
          at::Tensor(inputs[i].tensor).copy_(at_start[i] + step * directions[i]);
      return loss().item<double>();
    };
    const double near = loss_at(kStep) - loss_at(-kStep);
    const double far = loss_at(2 * kStep) - loss_at(-2 * kStep);
    loss_at(0);
    const double measured = (8 * near - far) / (12 * kStep);
    double computed = 0;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (directions[i].defined())
        computed += (gradients[i] * directions[i]).sum().item<double>();
    const double bound = kTolerance * std::max({std::abs(measured), std::abs(computed), kFloor});
    EXPECT_LE(std::abs(measured - computed), bound)
        << name << ": backward says " << computed << ", central differences say " << measured;
  };
  const auto direction_of = [&](const at::Tensor& t) {
    const at::Tensor direction = random.normal(t.sizes());
    return direction / direction.norm();
  };

  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].tensor.numel() == 0 || !one_by_one)
      continue;
    std::vector<at::Tensor> directions(inputs.size());
    directions[i] = direction_of(inputs[i].tensor);
    check("gradient of " + inputs[i].name, directions);
  }
  for (int k = 0; k < kJoint; ++k) {
    std::vector<at::Tensor> directions(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].tensor.numel() > 0)
        directions[i] = direction_of(inputs[i].tensor);
    check("gradient of everything", directions);
  }
}

void expect_refusal(const std::function<void()>& call, const std::vector<std::string>& words) {
  std::string message;
  try {
    call();
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  if (message.empty()) {
    ADD_FAILURE() << "nothing was refused; expected a message with \"" << words.front() << "\"";
    return;
  }
  for (const std::string& word : words)
    EXPECT_NE(lower_case(message).find(lower_case(word)), std::string::npos) << "no \"" << word << "\" in: " << message;
}

}  // namespace dba::test
