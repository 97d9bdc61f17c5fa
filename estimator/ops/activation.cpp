// torch.nn's activations (derivatives.yaml; aten/src/ATen/native/Activation.cpp, GatedLinearUnit.cpp): one kernel each way.
#include "ops/activation.h"

#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/pointwise_rules.h"
#include "ops/views.h"

namespace memest {
namespace {

template <Text Kernel>
Tensor fused(T g, T kept) {
  return ops::binary(Kernel.value, g, kept);
}
/// threshold_backward adds its input to the iterator before the gradient, so that the input's strides decide.
Tensor threshold_backward(T g, T kept) { return ops::binary("aten::threshold_backward", kept, g); }
/// An op with numbers that change nothing here: only the tensor counts.
template <Text Name, Text Kernel, class... Numbers>
Tensor activation(T self, Numbers...) {
  return unary_op<Name, Keeps::input, fused<Kernel>, same_result>(self);
}
template <Text Name, Text Kernel, Keeps Kept, class... Numbers>
Tensor activation_(T self, Numbers...) {
  return unary_op_<Name, Kept, fused<Kernel>>(self);
}
using Number = const Scalar&;

#define MEMEST_ACTIVATION(NAME, KERNEL, ARGUMENTS, ...)                                                                  \
  const Op NAME##_op{{"aten::" #NAME "(Tensor self" ARGUMENTS ") -> Tensor", Autocast::none, "self", kActivationSource}, \
                     activation<#NAME, "aten::" #KERNEL "_backward" __VA_OPT__(, ) __VA_ARGS__>};
#define MEMEST_ACTIVATION_(NAME, KERNEL, KEPT, ARGUMENTS, ...)                                                                 \
  const Op NAME##_in_place{                                                                                                    \
      {"aten::" #NAME "_(Tensor(a!) self" ARGUMENTS ") -> Tensor(a!)", Autocast::none, saves(Keeps::KEPT), kActivationSource}, \
      activation_<#NAME, "aten::" #KERNEL "_backward", Keeps::KEPT __VA_OPT__(, ) __VA_ARGS__>};
MEMEST_ACTIVATION(hardshrink, hardshrink, ", Scalar lambd=0.5", Number)
MEMEST_ACTIVATION(softshrink, softshrink, ", Scalar lambd=0.5", Number)
MEMEST_ACTIVATION(selu, elu, "")
MEMEST_ACTIVATION_(selu, elu, result, "")
MEMEST_ACTIVATION(relu6, hardtanh, "")
MEMEST_ACTIVATION_(relu6, hardtanh, input, "")
MEMEST_ACTIVATION_(gelu, gelu, input, ", *, str approximate='none'", const std::string&)
#undef MEMEST_ACTIVATION
#undef MEMEST_ACTIVATION_

// ---- GLU: the input is twice as large as the output ----------------------------------------------------------------------
Tensor glu(T self, std::int64_t dim) {
  const int d = wrap_dim(dim, self.dim());
  if (self.dim() == 0 || self.sizes()[d] % 2)
    throw Error("glu: dimension " + std::to_string(d) + " must have an even size, found " + describe(self));
  auto fn = node("GluBackward0", {self}, {self}, [](Backward& w, T x) { w.out[0] = empty(x.sizes(), x.dtype()); });
  const Tensor x = detached(self);
  const std::int64_t half = self.sizes()[d] / 2;
  Tensor y = elementwise({ops::narrow(x, d, 0, half), ops::narrow(x, d, half, half)}, self.dtype());
  fn.outputs({y});
  return y;
}
const Op glu_op{
    {"aten::glu(Tensor self, int dim=-1) -> Tensor", Autocast::none, "self", "derivatives.yaml glu; native/GatedLinearUnit.cpp"}, glu};

// ---- PReLU ---------------------------------------------------------------------------------------------------------------
/// The weight's gradient is collected at full size; the engine sums it.
Tensor prelu_kernel(T self, T weight) {
  auto fn = node("PreluKernelBackward0", {self, weight}, {self, weight}, [](Backward& w, T x, T) {
    Tensor of_self = elementwise({w.grad[0], x}, x.dtype());
    Tensor of_weight = elementwise({w.grad[0], x}, x.dtype());
    w.out[0] = of_self, w.out[1] = of_weight;
  });
  Tensor y = elementwise({self, weight}, self.dtype());
  fn.outputs({y});
  return y;
}
const Op prelu_kernel_op{{"aten::_prelu_kernel(Tensor self, Tensor weight) -> Tensor", Autocast::none, "self, weight",
                          "derivatives.yaml _prelu_kernel; native/Activation.cpp"},
                         prelu_kernel};
Tensor prelu(T self, T weight) {
  Tensor w = weight;
  if (weight.dim() > 1) throw Error("prelu: the weight must be a number or a list of them, found " + describe(weight));
  if (weight.numel() != 1 && (self.dim() == 0 || self.sizes()[self.dim() > 1 ? 1 : 0] != weight.numel()))
    throw Error("prelu: " + std::to_string(weight.numel()) + " weights do not match the channels of " + describe(self));
  if (self.dim() != weight.dim()) {
    Dims sizes = Dims::filled(self.dim(), 1);
    if (self.dim() > 1) sizes[1] = weight.numel();
    w = ops::reshape(weight, sizes);
  }
  return prelu_kernel_op(self, w);
}

// ---- RReLU ---------------------------------------------------------------------------------------------------------------
constexpr const char* kRrelu = "derivatives.yaml rrelu_with_noise; native/Activation.cpp rrelu";
Tensor rrelu_with_noise(T self, T noise, Number, Number, bool) {
  auto fn = node("RreluWithNoiseBackward0", {self}, {noise, self}, [](Backward& w, T, T x) {
    w.out[0] = elementwise({w.grad[0], x}, x.dtype());
  });
  Tensor y = empty_like(self);
  fn.outputs({y});
  return y;
}
Tensor rrelu_with_noise_(T self, T noise, Number, Number, bool) {
  auto fn = node("RreluWithNoiseBackward1", {self}, {noise}, [](Backward& w, T, T y) {
    w.out[0] = elementwise({w.grad[0], y}, y.dtype());
  });
  fn.in_place(self, {self});
  return self;
}
const Op rrelu_with_noise_op{{"aten::rrelu_with_noise(Tensor self, Tensor(b!) noise, Scalar lower=0.125, Scalar upper=0.3333333333333333, "
                              "bool training=False, Generator? generator=None) -> Tensor",
                              Autocast::none, "self, noise", kRrelu},
                             rrelu_with_noise};
const Op rrelu_with_noise_in_place{{"aten::rrelu_with_noise_(Tensor(a!) self, Tensor(b!) noise, Scalar lower=0.125, Scalar "
                                    "upper=0.3333333333333333, bool training=False, Generator? generator=None) -> "
                                    "Tensor(a!)",
                                    Autocast::none, "noise, result", kRrelu},
                                   rrelu_with_noise_};
Tensor rrelu(T self, Number lower, Number upper, bool training) {
  Tensor noise = empty_like(self);
  return rrelu_with_noise_op(self, noise, lower, upper, training);
}
Tensor rrelu_(T self, Number lower, Number upper, bool training) {
  Tensor noise = empty_like(self);
  return rrelu_with_noise_in_place(self, noise, lower, upper, training);
}

/// log_sigmoid's buffer is empty on CUDA.
Tensor log_sigmoid(T self) { return activation<"log_sigmoid", "aten::log_sigmoid_backward">(self); }

}  // namespace

namespace ops {
#define MEMEST_RECORD(NAME, PARAMETERS, SCHEMA, SAVES, IMPLEMENTATION) \
  const Op<Tensor PARAMETERS> NAME{{"aten::" #NAME SCHEMA, Autocast::none, SAVES, kActivationSource}, IMPLEMENTATION};
MEMEST_RECORD(relu, (T), "(Tensor self) -> Tensor", "result", (unary_op<"relu", Keeps::result, threshold_backward, same_result>))
MEMEST_RECORD(relu_, (T), "(Tensor(a!) self) -> Tensor(a!)", "result", (unary_op_<"relu", Keeps::result, threshold_backward>))
MEMEST_RECORD(silu, (T), "(Tensor self) -> Tensor", "self", (activation<"silu", "aten::silu_backward">))
MEMEST_RECORD(silu_, (T), "(Tensor(a!) self) -> Tensor(a!)", "self", (activation_<"silu", "aten::silu_backward", Keeps::input>))
MEMEST_RECORD(mish, (T), "(Tensor self) -> Tensor", "self", (activation<"mish", "aten::mish_backward">))
MEMEST_RECORD(mish_, (T), "(Tensor(a!) self) -> Tensor(a!)", "self", (activation_<"mish", "aten::mish_backward", Keeps::input>))
MEMEST_RECORD(hardswish, (T), "(Tensor self) -> Tensor", "self", (activation<"hardswish", "aten::hardswish_backward">))
MEMEST_RECORD(hardswish_, (T), "(Tensor(a!) self) -> Tensor(a!)", "self",
              (activation_<"hardswish", "aten::hardswish_backward", Keeps::input>))
MEMEST_RECORD(hardsigmoid, (T), "(Tensor self) -> Tensor", "self", (activation<"hardsigmoid", "aten::hardsigmoid_backward">))
MEMEST_RECORD(hardsigmoid_, (T), "(Tensor(a!) self) -> Tensor(a!)", "self",
              (activation_<"hardsigmoid", "aten::hardsigmoid_backward", Keeps::input>))
MEMEST_RECORD(log_sigmoid, (T), "(Tensor self) -> Tensor", "self", memest::log_sigmoid)
MEMEST_RECORD(gelu, (T, const std::string&), "(Tensor self, *, str approximate='none') -> Tensor", "self",
              (activation<"gelu", "aten::gelu_backward", const std::string&>))
MEMEST_RECORD(hardtanh, (T, Number, Number), "(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor", "self",
              (activation<"hardtanh", "aten::hardtanh_backward", Number, Number>))
MEMEST_RECORD(hardtanh_, (T, Number, Number), "(Tensor(a!) self, Scalar min_val=-1, Scalar max_val=1) -> Tensor(a!)", "self",
              (activation_<"hardtanh", "aten::hardtanh_backward", Keeps::input, Number, Number>))
MEMEST_RECORD(elu, (T, Number, Number, Number), "(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor", "self",
              (activation<"elu", "aten::elu_backward", Number, Number, Number>))
MEMEST_RECORD(elu_, (T, Number, Number, Number), "(Tensor(a!) self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor(a!)",
              "result", (activation_<"elu", "aten::elu_backward", Keeps::result, Number, Number, Number>))
MEMEST_RECORD(celu, (T, Number), "(Tensor self, Scalar alpha=1.0) -> Tensor", "self", (activation<"celu", "aten::elu_backward", Number>))
MEMEST_RECORD(celu_, (T, Number), "(Tensor(a!) self, Scalar alpha=1.0) -> Tensor(a!)", "result",
              (activation_<"celu", "aten::elu_backward", Keeps::result, Number>))
MEMEST_RECORD(leaky_relu, (T, Number), "(Tensor self, Scalar negative_slope=0.01) -> Tensor", "self",
              (activation<"leaky_relu", "aten::leaky_relu_backward", Number>))
MEMEST_RECORD(leaky_relu_, (T, Number), "(Tensor(a!) self, Scalar negative_slope=0.01) -> Tensor(a!)", "result",
              (activation_<"leaky_relu", "aten::leaky_relu_backward", Keeps::result, Number>))
MEMEST_RECORD(threshold, (T, Number, Number), "(Tensor self, Scalar threshold, Scalar value) -> Tensor", "self",
              (activation<"threshold", "aten::threshold_backward", Number, Number>))
MEMEST_RECORD(threshold_, (T, Number, Number), "(Tensor(a!) self, Scalar threshold, Scalar value) -> Tensor(a!)", "self",
              (activation_<"threshold", "aten::threshold_backward", Keeps::input, Number, Number>))
#undef MEMEST_RECORD
const Op<Tensor(T, Number, Number)> softplus{
    {"aten::softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor", Autocast::fp32, "self", kActivationSource},
    activation<"softplus", "aten::softplus_backward", Number, Number>};
const Op<Tensor(T, T)> prelu{{"aten::prelu(Tensor self, Tensor weight) -> Tensor", Autocast::lower, "", "native/Activation.cpp prelu"},
                             memest::prelu};
const Op<Tensor(T, Number, Number, bool)> rrelu{{"aten::rrelu(Tensor self, Scalar lower=0.125, Scalar upper=0.3333333333333333, bool "
                                                 "training=False, Generator? generator=None) -> Tensor",
                                                 Autocast::none, "", kRrelu},
                                                memest::rrelu};
const Op<Tensor(T, Number, Number, bool)> rrelu_{{"aten::rrelu_(Tensor(a!) self, Scalar lower=0.125, Scalar upper=0.3333333333333333, bool "
                                                  "training=False, Generator? generator=None) -> Tensor(a!)",
                                                  Autocast::none, "", kRrelu},
                                                 memest::rrelu_};
}  // namespace ops
}  // namespace memest
