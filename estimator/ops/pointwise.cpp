#include "ops/pointwise.h"

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"

namespace memest {
namespace {

/// A text that can be a template argument.
template <std::size_t N>
struct Text {
  char value[N];
  consteval Text(const char (&text)[N]) { std::copy_n(text, N, value); }
};

// ---- two tensors -------------------------------------------------------------------------------------------------------

Tensor iterate(T a, T b) { return elementwise({a, b}, result_type({a, b})); }

/// Writes into self: other must broadcast to it and promote to something that self can hold.
void check_in_place(T self, T other) {
  if (!(broadcast(self.sizes(), other.sizes()) == self.sizes()))
    throw Error("output with shape " + to_string(self.sizes()) + " doesn't match the broadcast shape " +
                to_string(broadcast(self.sizes(), other.sizes())));
}

Tensor add(T self, T other, const Scalar& alpha) {
  const bool scaled = alpha.to_double() != 1;
  auto fn = node("AddBackward0", {self, other}, {}, [scaled](Backward& w) {
    if (w.needs(1)) w.out[1] = scaled ? ops::unary("aten::mul", w.grad[0]) : w.grad[0];
    if (w.needs(0)) w.out[0] = w.grad[0];
  });
  Tensor y = iterate(self, other);
  fn.outputs({y});
  return y;
}
Tensor add_(T self, T other, const Scalar& alpha) {
  check_in_place(self, other);
  const bool scaled = alpha.to_double() != 1;
  auto fn = node("AddBackward0", {self, other}, {}, [scaled](Backward& w) {
    if (w.needs(1)) w.out[1] = scaled ? ops::unary("aten::mul", w.grad[0]) : w.grad[0];
    if (w.needs(0)) w.out[0] = w.grad[0];
  });
  fn.in_place(self);
  return self;
}
Tensor sub(T self, T other, const Scalar&) {
  auto fn = node("SubBackward0", {self, other}, {}, [](Backward& w) {
    if (w.needs(1)) w.out[1] = ops::neg(w.grad[0]);
    if (w.needs(0)) w.out[0] = w.grad[0];
  });
  Tensor y = iterate(self, other);
  fn.outputs({y});
  return y;
}
Tensor sub_(T self, T other, const Scalar&) {
  check_in_place(self, other);
  auto fn = node("SubBackward0", {self, other}, {}, [](Backward& w) {
    if (w.needs(1)) w.out[1] = ops::neg(w.grad[0]);
    if (w.needs(0)) w.out[0] = w.grad[0];
  });
  fn.in_place(self);
  return self;
}

void mul_backward(Backward& w, T self, T other) {  // "other" before "self": formulas run in alphabetical order
  if (w.needs(1)) w.out[1] = ops::mul(w.grad[0], self);
  if (w.needs(0)) w.out[0] = ops::mul(w.grad[0], other);
}
Tensor mul(T self, T other) {
  auto fn = node("MulBackward0", {self, other}, {save_if(self, other), save_if(other, self)},
                 [](Backward& w, T a, T b) { mul_backward(w, a, b); });
  Tensor y = iterate(self, other);
  fn.outputs({y});
  return y;
}
Tensor mul_(T self, T other) {
  check_in_place(self, other);
  Tensor original = runtime().grad_mode && other.requires_grad() ? ops::clone(self, std::nullopt) : Tensor();
  auto fn = node("MulBackward0", {self, other}, {original, save_if(other, self)}, [](Backward& w, T a, T b) { mul_backward(w, a, b); });
  fn.in_place(self);
  return self;
}

DType true_div_type(T self, T other) {
  DType type = result_type({self, other});
  return is_integral(type, true) ? DType::float32 : type;
}
void div_backward(Backward& w, T self, T other) {  // FunctionsManual.cpp div_tensor_other_grad: -grad * ((self / other) / other)
  if (w.needs(1)) {
    Tensor negative = ops::neg(w.grad[0]);
    Tensor quotient = ops::div(self, other);
    Tensor twice = ops::div(quotient, other);
    w.out[1] = ops::mul(negative, twice);
  }
  if (w.needs(0)) w.out[0] = ops::div(w.grad[0], other);
}
Tensor div(T self, T other) {
  auto fn = node("DivBackward0", {self, other}, {save_if(self, other), other}, [](Backward& w, T a, T b) { div_backward(w, a, b); });
  Tensor y = elementwise({self, other}, true_div_type(self, other));
  fn.outputs({y});
  return y;
}
Tensor div_(T self, T other) {
  check_in_place(self, other);
  Tensor original = runtime().grad_mode && other.requires_grad() ? ops::clone(self, std::nullopt) : Tensor();
  auto fn = node("DivBackward0", {self, other}, {original, other}, [](Backward& w, T a, T b) { div_backward(w, a, b); });
  fn.in_place(self);
  return self;
}

// ---- one tensor --------------------------------------------------------------------------------------------------------

/// What a derivative formula of one tensor looks at.
enum class Keeps { nothing, input, result };

/// Integers become floats, as the functions of analysis have it.
DType float_result(T x) { return is_integral(x.dtype(), true) ? DType::float32 : x.dtype(); }
DType same_result(T x) { return x.dtype(); }

/// Out of place: `Formula` is void(Backward&, T saved), or void(Backward&) where nothing is kept.
template <Text Name, Keeps Kept, auto Formula, auto Result = same_result>
Tensor of_one(T self) {
  if constexpr (Kept == Keeps::nothing) {
    auto fn = node(Name.value, {self}, {}, [](Backward& w) { Formula(w); });
    Tensor y = elementwise({self}, Result(self));
    fn.outputs({y});
    return y;
  } else {
    constexpr auto formula = [](Backward& w, T saved) { Formula(w, saved); };
    auto fn = node(Name.value, std::span(&self, 1), Kept == Keeps::input ? std::span(&self, 1) : std::span<const Tensor>(), formula);
    Tensor y = elementwise({self}, Result(self));
    fn.outputs(std::span(&y, 1), Kept == Keeps::result ? std::span(&y, 1) : std::span<const Tensor>());
    return y;
  }
}
/// In place: a formula that needs the input keeps a clone of it, one that needs the result keeps that.
template <Text Name, Keeps Kept, auto Formula>
Tensor of_one_(T self) {
  if constexpr (Kept == Keeps::nothing) {
    auto fn = node(Name.value, {self}, {}, [](Backward& w) { Formula(w); });
    fn.in_place(self);
  } else if constexpr (Kept == Keeps::input) {
    Tensor original = runtime().grad_mode && self.requires_grad() ? ops::clone(self, std::nullopt) : Tensor();
    auto fn = node(Name.value, {self}, {original}, [](Backward& w, T saved) { Formula(w, saved); });
    original.reset();
    fn.in_place(self);
  } else {
    auto fn = node(Name.value, {self}, {}, [](Backward& w, T saved) { Formula(w, saved); });
    fn.in_place(self, {self});
  }
  return self;
}

/// One kernel of the gradient and the saved tensor: relu's threshold_backward, gelu_backward, ...
template <Text Kernel>
void fused_backward(Backward& w, T saved) {
  w.out[0] = ops::binary(Kernel.value, w.grad[0], saved);
}
void neg_backward(Backward& w) { w.out[0] = ops::neg(w.grad[0]); }
void exp_backward(Backward& w, T result) { w.out[0] = ops::mul(w.grad[0], result); }
void log_backward(Backward& w, T self) { w.out[0] = ops::div(w.grad[0], self); }
void sqrt_backward(Backward& w, T result) {  // grad / (2 * result)
  Tensor twice = ops::mul_scalar(result, 2);
  w.out[0] = ops::div(w.grad[0], twice);
}
void rsqrt_backward(Backward& w, T result) {  // -0.5 * grad * result.pow(3)
  Tensor half = ops::mul_scalar(w.grad[0], -0.5);
  Tensor cube = ops::pow_scalar(result, 3);
  w.out[0] = ops::mul(half, cube);
}

Tensor pow_scalar(T self, const Scalar& exponent) {
  auto fn = node("PowBackward0", {self}, {self}, [exponent](Backward& w, T x) {  // FunctionsManual.cpp pow_backward
    const double p = exponent.to_double();
    if (p == 0) {
      w.out[0] = ops::zeros_like(x, std::nullopt, std::nullopt);
      return;
    }
    // grad * (exponent * self.pow(exponent - 1))
    Tensor power = ops::pow_scalar(x, p - 1);
    Tensor scaled = ops::mul_scalar(power, exponent);
    w.out[0] = ops::mul(w.grad[0], scaled);
  });
  ResultType type;
  Tensor y = elementwise({self}, type.add(self).add(exponent).get());
  fn.outputs({y});
  return y;
}

Tensor gelu(T self, const std::string&) {
  auto fn = node("GeluBackward0", {self}, {self}, [](Backward& w, T x) { w.out[0] = ops::binary("aten::gelu_backward", w.grad[0], x); });
  Tensor y = elementwise({self}, self.dtype());
  fn.outputs({y});
  return y;
}

Tensor hardtanh(T self, const Scalar&, const Scalar&) {
  return of_one<"HardtanhBackward0", Keeps::input, fused_backward<"aten::hardtanh_backward">>(self);
}
Tensor hardtanh_(T self, const Scalar&, const Scalar&) {
  return of_one_<"HardtanhBackward0", Keeps::input, fused_backward<"aten::hardtanh_backward">>(self);
}

constexpr const char* kBinary = "derivatives.yaml; aten/src/ATen/native/BinaryOps.cpp";
constexpr const char* kUnary = "derivatives.yaml; aten/src/ATen/native/UnaryOps.cpp";
constexpr const char* kActivation = "derivatives.yaml; aten/src/ATen/native/Activation.cpp";

}  // namespace

namespace ops {
const Op<Tensor(T, T, const Scalar&)> add{
    {"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Autocast::none, "", kBinary}, memest::add};
const Op<Tensor(T, T, const Scalar&)> sub{
    {"aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Autocast::none, "", kBinary}, memest::sub};
const Op<Tensor(T, T)> mul{{"aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", Autocast::none, "self, other", kBinary}, memest::mul};
const Op<Tensor(T, T)> div{{"aten::div.Tensor(Tensor self, Tensor other) -> Tensor", Autocast::none, "self, other", kBinary}, memest::div};
const Op<Tensor(T, T, const Scalar&)> add_{
    {"aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)", Autocast::none, "", kBinary}, memest::add_};
const Op<Tensor(T, T, const Scalar&)> sub_{
    {"aten::sub_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)", Autocast::none, "", kBinary}, memest::sub_};
const Op<Tensor(T, T)> mul_{{"aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", Autocast::none, "self, other", kBinary},
                            memest::mul_};
const Op<Tensor(T, T)> div_{{"aten::div_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)", Autocast::none, "self, other", kBinary},
                            memest::div_};
const Op<Tensor(T)> neg{{"aten::neg(Tensor self) -> Tensor", Autocast::none, "", kUnary},
                        of_one<"NegBackward0", Keeps::nothing, neg_backward>};
const Op<Tensor(T, const Scalar&)> pow_scalar{
    {"aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", Autocast::fp32, "self", kUnary}, memest::pow_scalar};
const Op<Tensor(T)> exp{{"aten::exp(Tensor self) -> Tensor", Autocast::fp32, "result", kUnary},
                        of_one<"ExpBackward0", Keeps::result, exp_backward, float_result>};
const Op<Tensor(T)> log{{"aten::log(Tensor self) -> Tensor", Autocast::fp32, "self", kUnary},
                        of_one<"LogBackward0", Keeps::input, log_backward, float_result>};
const Op<Tensor(T)> sqrt{{"aten::sqrt(Tensor self) -> Tensor", Autocast::none, "result", kUnary},
                         of_one<"SqrtBackward0", Keeps::result, sqrt_backward, float_result>};
const Op<Tensor(T)> rsqrt{{"aten::rsqrt(Tensor self) -> Tensor", Autocast::fp32, "result", kUnary},
                          of_one<"RsqrtBackward0", Keeps::result, rsqrt_backward, float_result>};
const Op<Tensor(T)> tanh{{"aten::tanh(Tensor self) -> Tensor", Autocast::none, "result", kUnary},
                         of_one<"TanhBackward0", Keeps::result, fused_backward<"aten::tanh_backward">, float_result>};
const Op<Tensor(T)> sigmoid{{"aten::sigmoid(Tensor self) -> Tensor", Autocast::none, "result", kUnary},
                            of_one<"SigmoidBackward0", Keeps::result, fused_backward<"aten::sigmoid_backward">, float_result>};
const Op<Tensor(T)> relu{{"aten::relu(Tensor self) -> Tensor", Autocast::none, "result", kActivation},
                         of_one<"ReluBackward0", Keeps::result, fused_backward<"aten::threshold_backward">>};
const Op<Tensor(T)> relu_{{"aten::relu_(Tensor(a!) self) -> Tensor(a!)", Autocast::none, "result", kActivation},
                          of_one_<"ReluBackward0", Keeps::result, fused_backward<"aten::threshold_backward">>};
const Op<Tensor(T)> silu{{"aten::silu(Tensor self) -> Tensor", Autocast::none, "self", kActivation},
                         of_one<"SiluBackward0", Keeps::input, fused_backward<"aten::silu_backward">>};
const Op<Tensor(T)> silu_{{"aten::silu_(Tensor(a!) self) -> Tensor(a!)", Autocast::none, "self", kActivation},
                          of_one_<"SiluBackward0", Keeps::input, fused_backward<"aten::silu_backward">>};
const Op<Tensor(T, const std::string&)> gelu{
    {"aten::gelu(Tensor self, *, str approximate='none') -> Tensor", Autocast::none, "self", kActivation}, memest::gelu};
const Op<Tensor(T, const Scalar&, const Scalar&)> hardtanh{
    {"aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor", Autocast::none, "self", kActivation}, memest::hardtanh};
const Op<Tensor(T, const Scalar&, const Scalar&)> hardtanh_{
    {"aten::hardtanh_(Tensor(a!) self, Scalar min_val=-1, Scalar max_val=1) -> Tensor(a!)", Autocast::none, "self", kActivation},
    memest::hardtanh_};

Tensor mul_scalar(T x, const Scalar& number) { return mul(x, wrapped_number(number.dtype())); }
Tensor add_scalar(T x, const Scalar& number) { return add(x, wrapped_number(number.dtype()), 1); }
Tensor div_scalar(T x, const Scalar& number) { return div(x, wrapped_number(number.dtype())); }
Tensor binary(const char* op, T a, T b) { return binary(op, a, b, result_type({a, b})); }
Tensor binary(const char* op, T a, T b, DType dtype) {
  Scoped<const char*> scope(runtime().op, op);
  return elementwise({a, b}, dtype);
}
Tensor unary(const char* op, T x) {
  Scoped<const char*> scope(runtime().op, op);
  return elementwise({x}, x.dtype());
}
}  // namespace ops
}  // namespace memest
