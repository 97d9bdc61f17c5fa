// Losses of one prediction and one target of the same shape.
// Sources: derivatives.yaml; FunctionsManual.cpp binary_cross_entropy_*; aten/src/ATen/native/Loss.cpp, native/cuda/Loss.cu of 2.15.
#include "ops/loss.h"

#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/loss_reduction.h"
#include "ops/pointwise.h"
#include "ops/pointwise_rules.h"
#include "ops/reductions.h"

namespace memest {

Tensor apply_loss_reduction(T loss, std::int64_t reduction) {
  return reduction == kReductionMean ? ops::mean(loss, std::nullopt) : reduction == kReductionSum ? ops::sum(loss, std::nullopt) : loss;
}
void reduction_scratch(T loss, std::int64_t reduction) {
  const DType type = loss.dtype();
  const bool half = is_reduced_floating(type);
  reduce_scratch(loss, reduction_mask({}, loss.dim()),
                 {.accumulator_size = item_size(op_math_type(type)),
                  .input_size = item_size(type),
                  .input_vec_size = half && reduction == kReductionSum ? 8 : 4,
                  .accumulates_in_output = !half,
                  .output_size = item_size(type)});
}
Tensor resized_to_scalar(Tensor full) {
  const DType type = full.dtype();
  if (runtime().settings.kernel_scratch()) return share(full, {}, {}, 0);
  full.reset();
  return empty({}, type);
}
Tensor number_minus(T x) {
  const Tensor y = empty_like(x);
  return ops::sub_(y, x, 1);
}

namespace {
using I = std::int64_t;
constexpr const char* kLossSource = "derivatives.yaml; native/Loss.cpp";

/// zeros_like(input, contiguous), filled by the kernel.
Tensor gradient_like(T input, T other) { return empty(broadcast(input.sizes(), other.sizes()), input.dtype()); }
constexpr auto both_gradients = [](Backward& w, T x, T y) {
  if (w.needs(0)) w.out[0] = gradient_like(x, y);
  if (w.needs(1)) w.out[1] = gradient_like(y, x);
};

// ---- mse, smooth_l1, huber, l1 -----------------------------------------------------------------------------------------
/// A structured op: its output is as large as the losses, which a reduction makes once more and reduces into it.
template <Text Node>
Tensor structured_loss(T self, T target, I reduction) {
  auto fn = node(Node.value, {self, target}, {self, target}, both_gradients);
  const DType type = result_type({self, target});
  Tensor y = elementwise({self, target}, type);
  if (reduction != kReductionNone) {
    if (runtime().settings.kernel_scratch()) reduction_scratch(elementwise({self, target}, type), reduction);
    y = resized_to_scalar(std::move(y));
  }
  fn.outputs({y});
  return y;
}
Tensor l1_loss(T self, T target, I reduction) {
  const Tensor difference = ops::sub(self, target, 1);
  const Tensor loss = call_tensor_op("aten::abs", difference);
  return apply_loss_reduction(loss, reduction);
}
const Op smooth_l1_loss_op{{"aten::smooth_l1_loss(Tensor self, Tensor target, int reduction=Mean, float beta=1.0) -> Tensor",
                            Autocast::fp32, "self, target", kLossSource},
                           +[](T self, T target, I reduction, double beta) {
                             if (beta < 0) throw Error("smooth_l1_loss does not support negative values for beta.");
                             return structured_loss<"SmoothL1LossBackward0">(self, target, reduction);
                           }};
const Op l1_loss_op{{"aten::l1_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor", Autocast::fp32, "", kLossSource}, l1_loss};
Tensor huber_loss(T self, T target, I reduction, double delta) {
  if (delta <= 0) throw Error("huber_loss does not support non-positive values for delta.");
  auto fn = node("HuberLossBackward0", {self, target}, {self, target}, both_gradients);
  Tensor y;
  {
    NoGrad below;
    const Tensor loss = empty_like(self);
    y = apply_loss_reduction(loss, reduction);
  }
  fn.outputs({y});
  return y;
}
const Op huber_loss_op{{"aten::huber_loss(Tensor self, Tensor target, int reduction=Mean, float delta=1.0) -> Tensor", Autocast::fp32,
                        "self, target", kLossSource},
                       huber_loss};

// ---- soft margin, cross entropy of two classes ---------------------------------------------------------------------------
/// Reduces into the loss itself, by way of a copy.
Tensor reduced_in_place(Tensor loss, I reduction) {
  if (reduction == kReductionNone) return loss;
  NoGrad below;
  const Tensor reduced = apply_loss_reduction(loss, reduction);
  return resized_to_scalar(std::move(loss));
}
Tensor soft_margin_loss(T self, T target, I reduction) {
  auto fn = node("SoftMarginLossBackward0", {self}, {self, target}, [](Backward& w, T x, T y) {
    const Tensor z = (-Lazy(y) * x).exp();
    w.out[0] = ops::binary("aten::mul", y, z);
  });
  Tensor y = reduced_in_place(elementwise({self}, self.dtype()), reduction);
  fn.outputs({y});
  return y;
}
const Op soft_margin_loss_op{
    {"aten::soft_margin_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor", Autocast::fp32, "self, target", kLossSource},
    soft_margin_loss};

Tensor binary_cross_entropy(T self, T target, T weight, I reduction) {
  auto fn = node("BinaryCrossEntropyBackward0", {self, target}, {self, target, weight}, [](Backward& w, T x, T, T) {
    for (int i : {0, 1})
      if (w.needs(i)) w.out[std::size_t(i)] = empty_like(x);
  });
  Tensor y = reduced_in_place(empty_like(self), reduction);
  fn.outputs({y});
  return y;
}
const Op binary_cross_entropy_op{
    {"aten::binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean) -> Tensor", Autocast::banned,
     "self, target, weight", "derivatives.yaml; native/cuda/Loss.cu"},
    binary_cross_entropy};

/// (input.sigmoid() - target) * grad in place; with pos_weight, t.add(1).sub_(target).mul_(input.sigmoid()).sub_(t).mul_(grad).
Tensor logits_gradient(T x, T target, T pos_weight) {
  if (!pos_weight) return ops::unary("aten::sigmoid", x);
  const Tensor t = ops::binary("aten::mul", pos_weight, target);
  const Tensor gradient = ops::unary("aten::add", t);
  const Tensor sigmoid = ops::unary("aten::sigmoid", x);
  return gradient;
}
Tensor logits_target_gradient(T g, T x, T pos_weight) {
  if (!pos_weight) return -Lazy(x) * g;
  // log_sigmoid(-self).sub_(log_sigmoid(self).mul_(pos_weight)).mul_(grad)
  const Tensor negative = ops::unary("aten::neg", x);
  Tensor gradient = ops::unary("aten::log_sigmoid", negative);
  const Tensor positive = ops::unary("aten::log_sigmoid", x);
  return gradient;
}
Tensor binary_cross_entropy_with_logits(T self, T target, T weight, T pos_weight, I reduction) {
  auto fn = node("BinaryCrossEntropyWithLogitsBackward0", {self, target}, {pos_weight, self, target, weight},
                 [](Backward& w, T positive, T x, T y, T) {
                   if (w.needs(0)) w.out[0] = logits_gradient(x, y, positive);
                   if (w.needs(1)) w.out[1] = logits_target_gradient(w.grad[0], x, positive);
                 });
  Tensor y;
  {
    NoGrad below;
    const Tensor log_sigmoid = ops::log_sigmoid(self);
    if (pos_weight) const Tensor log_weight = (Lazy(pos_weight) - 1) * target;
    const Tensor loss = number_minus(target);
    y = apply_loss_reduction(loss, reduction);
  }
  fn.outputs({y});
  return y;
}
const Op binary_cross_entropy_with_logits_op{
    {"aten::binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=Mean) "
     "-> Tensor",
     Autocast::fp32, "self, target, weight, pos_weight", kLossSource},
    binary_cross_entropy_with_logits};

// ---- composites ------------------------------------------------------------------------------------------------------------
Tensor kl_div(T self, T target, I reduction, bool log_target) {
  Tensor loss;
  if (log_target) {  // exp(target) * (target - input)
    const Tensor difference = ops::sub(target, self, 1), exponential = ops::exp(target);
    loss = ops::mul(exponential, difference);
  } else {  // xlogy(target, target) - target * input
    const Tensor product = ops::mul(target, self), entropy = call_tensor_op("aten::xlogy", target, target);
    loss = ops::sub(entropy, product, 1);
  }
  return apply_loss_reduction(loss, reduction);
}
const Op kl_div_op{
    {"aten::kl_div(Tensor self, Tensor target, int reduction=Mean, *, bool log_target=False) -> Tensor", Autocast::fp32, "", kLossSource},
    kl_div};

/// target * log(target) - target + 0.5 * log(2 * pi * target)
Tensor stirling_term(T target) {
  const Tensor scaled = ops::mul_scalar(target, 6.28), scaled_log = ops::log(scaled), half = ops::mul_scalar(scaled_log, 0.5);
  const Tensor log = ops::log(target), product = ops::mul(target, log), difference = ops::sub(product, target, 1);
  return ops::add(difference, half, 1);
}
Tensor poisson_nll_loss(T input, T target, bool log_input, bool full, double, I reduction) {
  Tensor loss;
  if (log_input) {  // exp(input) - target * input
    const Tensor product = ops::mul(target, input), exponential = ops::exp(input);
    loss = ops::sub(exponential, product, 1);
  } else {  // input - target * log(input + eps)
    const Tensor shifted = ops::add_scalar(input, 1e-8), log = ops::log(shifted), product = ops::mul(target, log);
    loss = ops::sub(input, product, 1);
  }
  if (full) {
    const Tensor stirling = stirling_term(target);
    const Tensor mask = call_tensor_op("aten::le", target, I{1}), filled = call_tensor_op("aten::masked_fill", stirling, mask, I{0});
    ops::add_(loss, filled, 1);
  }
  return apply_loss_reduction(loss, reduction);
}
const Op poisson_nll_loss_op{
    {"aten::poisson_nll_loss(Tensor input, Tensor target, bool log_input, bool full, float eps, int reduction) -> Tensor", Autocast::fp32,
     "", kLossSource},
    poisson_nll_loss};

}  // namespace

namespace ops {
const Op<Tensor(T, T, std::int64_t)> mse_loss{
    {"aten::mse_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor", Autocast::fp32, "self, target", kLossSource},
    structured_loss<"MseLossBackward0">};
}  // namespace ops
}  // namespace memest
