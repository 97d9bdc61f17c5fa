// where, masked_fill, clamp, lerp, addcmul, addcdiv, fill (derivatives.yaml; FunctionsManual.cpp; aten/src/ATen/native/TensorCompare.cpp,
// TensorAdvancedIndexing.cpp, PointwiseOps.cpp, Lerp.cpp, Fill.cpp).
#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/pointwise_rules.h"
#include "ops/reduction_kernels.h"
#include "ops/reductions.h"

#include <cmath>

namespace memest {
namespace {

constexpr const char* kWhere = "derivatives.yaml where.self; native/TensorCompare.cpp where";
constexpr const char* kClamp = "derivatives.yaml clamp; FunctionsManual.cpp clamp_backward";

// ---- where -----------------------------------------------------------------------------------------------------------------
Tensor where_self(T condition, T self, T other) {
  auto fn = node("WhereBackward0", {self, other}, {condition}, [](Backward& w, T c) {
    if (w.needs(1)) w.out[1] = where(c, 0, w.grad[0]);
    if (w.needs(0)) w.out[0] = where(c, w.grad[0], 0);
  });
  const DType type = promote(self, other);
  auto promoted = [type](T x) { return x.dtype() == type || x.on_host() ? x : elementwise({x}, type); };
  Tensor y;
  {
    const Tensor a = promoted(self), b = promoted(other);
    y = elementwise({condition, a, b}, type);
  }
  fn.outputs({y});
  return y;
}
Tensor where_tensors(T condition, T self, T other);
/// The number becomes a tensor on the device, of the result's type.
Tensor where_self_number(T condition, const Scalar& self, T other) {
  Tensor number = empty({}, ResultType().add(other).add(self).get());
  return where_tensors(condition, number, other);
}
Tensor where_other_number(T condition, T self, const Scalar& other) {
  Tensor number = empty({}, ResultType().add(self).add(other).get());
  return where_tensors(condition, self, number);
}
Tensor where_numbers(T condition, const Scalar& self, const Scalar& other) {
  const DType type = promote_types(self.dtype(), other.dtype());
  Tensor a = empty({}, type), b = empty({}, type);
  return where_tensors(condition, a, b);
}
/// The overloads that take numbers stand before those that take tensors, since a number can be a tensor.
const Op where_numbers_op{{"aten::where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor", Autocast::none, "", kWhere},
                          where_numbers};
const Op where_self_number_op{{"aten::where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor", Autocast::none, "", kWhere},
                              where_self_number};
const Op where_other_number_op{
    {"aten::where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor", Autocast::none, "", kWhere}, where_other_number};
const Op where_self_op{{"aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor", Autocast::none, "condition", kWhere},
                       where_self};
Tensor where_tensors(T condition, T self, T other) { return where_self_op(condition, self, other); }

// ---- masked_fill -----------------------------------------------------------------------------------------------------------
constexpr const char* kMaskedFill = "derivatives.yaml masked_fill; native/TensorAdvancedIndexing.cpp masked_fill";

Tensor masked_fill_number(T self, T mask, const Scalar&) {
  auto fn = node("MaskedFillBackward0", {self}, {mask}, [](Backward& w, T m) { w.out[0] = Lazy(w.grad[0]).masked_fill(m); });
  Tensor y = Lazy(detached(self)).masked_fill(mask);
  fn.outputs({y});
  return y;
}
/// masked_fill_backward of the value is a masked_select, whose size depends on the mask: only its sum is counted.
template <bool InPlace>
Tensor masked_fill_value(T self, T mask, T value) {
  auto fn = node("MaskedFillBackward1", {self, value}, {mask}, [](Backward& w, T m) {
    if (w.needs(0)) w.out[0] = Lazy(w.grad[0]).masked_fill(m);
    if (w.needs(1)) w.out[1] = empty({}, w.grad[0].dtype());
  });
  if constexpr (InPlace) {
    check_in_place(self, mask);
    fn.in_place(self);
    return self;
  } else {
    Tensor y = Lazy(detached(self)).masked_fill(mask);
    fn.outputs({y});
    return y;
  }
}
Tensor masked_fill_number_(T self, T mask, const Scalar&) {
  check_in_place(self, mask);
  node("MaskedFillBackward0", {self}, {mask}, [](Backward& w, T m) { w.out[0] = Lazy(w.grad[0]).masked_fill(m); }).in_place(self);
  return self;
}
const Op masked_fill_number_op{
    {"aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor", Autocast::none, "mask", kMaskedFill},
    masked_fill_number};
const Op masked_fill_value_op{
    {"aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor", Autocast::none, "mask", kMaskedFill},
    masked_fill_value<false>};
const Op masked_fill_number_in_place{
    {"aten::masked_fill_.Scalar(Tensor(a!) self, Tensor mask, Scalar value) -> Tensor(a!)", Autocast::none, "mask", kMaskedFill},
    masked_fill_number_};
const Op masked_fill_value_in_place{
    {"aten::masked_fill_.Tensor(Tensor(a!) self, Tensor mask, Tensor value) -> Tensor(a!)", Autocast::none, "mask", kMaskedFill},
    masked_fill_value<true>};

// ---- clamp with numbers ----------------------------------------------------------------------------------------------------
using Bound = std::optional<Scalar>;

/// clamp_backward: where(self in range, grad, 0), the zero made first and kept to the end.
auto clamp_formula(bool min, bool max) {
  return [min, max](Backward& w, T x) {
    T g = w.grad[0];
    if (!min && !max) {
      w.out[0] = g;
      return;
    }
    const Tensor zero = empty({}, g.dtype());
    if (min && max)
      w.out[0] = where(compare("aten::ge", x, 0).in_place("aten::logical_and_", {compare("aten::le", x, 0)}), g, zero);
    else
      w.out[0] = where(compare(min ? "aten::ge" : "aten::le", x, 0), g, zero);
  };
}
Tensor clamp(T self, const Bound& min, const Bound& max) {
  if (!min && !max) throw Error("clamp: at least one of min or max must not be None");
  auto fn = node("ClampBackward1", {self}, {self}, clamp_formula(bool(min), bool(max)));
  ResultType type;
  type.add(self);
  if (min) type.add(*min);
  if (max) type.add(*max);
  Tensor converted = type.get() == self.dtype() ? Tensor() : elementwise({self}, type.get());
  Tensor y = elementwise({self}, type.get());
  fn.outputs({y});
  return y;
}
Tensor clamp_(T self, const Bound& min, const Bound& max) {
  Tensor original = original_of(self, self.requires_grad());
  auto fn = node("ClampBackward1", {self}, {original}, clamp_formula(bool(min), bool(max)));
  original.reset();
  fn.in_place(self);
  return self;
}
/// clamp_min's own formula: the zero is a temporary of the expression.
template <Text Node, bool InPlace>
Tensor clamp_number(T self, const Scalar& bound) {
  Tensor original = InPlace ? original_of(self, self.requires_grad()) : Tensor();
  auto fn = node(Node.value, {self}, {InPlace ? original : self},
                 [](Backward& w, T x) { w.out[0] = where(compare("aten::gt", x, 0), w.grad[0], scalar_like(w.grad[0])); });
  original.reset();
  if constexpr (InPlace) {
    fn.in_place(self);
    return self;
  } else {
    Tensor y = elementwise({self}, ResultType().add(self).add(bound).get());
    fn.outputs({y});
    return y;
  }
}
const Op clamp_op{{"aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor", Autocast::none, "self", kClamp}, clamp};
const Op clamp_in_place{{"aten::clamp_(Tensor(a!) self, Scalar? min=None, Scalar? max=None) -> Tensor(a!)", Autocast::none, "self", kClamp},
                        clamp_};
const Op clip_op{{"aten::clip(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor", Autocast::none, "self", kClamp}, clamp};
const Op clip_in_place{{"aten::clip_(Tensor(a!) self, Scalar? min=None, Scalar? max=None) -> Tensor(a!)", Autocast::none, "self", kClamp},
                       clamp_};
const Op clamp_min_op{{"aten::clamp_min(Tensor self, Scalar min) -> Tensor", Autocast::none, "self", kClamp},
                      clamp_number<"ClampMinBackward0", false>};
const Op clamp_max_op{{"aten::clamp_max(Tensor self, Scalar max) -> Tensor", Autocast::none, "self", kClamp},
                      clamp_number<"ClampMaxBackward0", false>};
const Op clamp_min_in_place{{"aten::clamp_min_(Tensor(a!) self, Scalar min) -> Tensor(a!)", Autocast::none, "self", kClamp},
                            clamp_number<"ClampMinBackward0", true>};
const Op clamp_max_in_place{{"aten::clamp_max_(Tensor(a!) self, Scalar max) -> Tensor(a!)", Autocast::none, "self", kClamp},
                            clamp_number<"ClampMaxBackward0", true>};

// ---- clamp with tensors ----------------------------------------------------------------------------------------------------
/// A tie shares the gradient between the input and the bound.
Tensor clamp_tie(T g, T x, T bound) {
  return masked_in_place(where(compare("aten::eq", x, bound), Lazy(g) / 2, g), compare("aten::lt", x, bound));
}
constexpr BinaryRule kClampBound{"ClampMinBackward1",
                                 promote,
                                 [](T g, T x, T b, T) { return clamp_tie(g, x, b); },
                                 uses_self | uses_other,
                                 [](T g, T x, T b, T) { return clamp_tie(g, x, b); },
                                 uses_self | uses_other};

Tensor mask(T a, T b) { return compare("aten::lt", a, b); }
Lazy masks(T x, T min, T max, int count) {  // `count` comparisons of the input with the bounds in one expression
  Lazy all = compare("aten::eq", x, min);
  for (int i = 1; i < count; ++i) all = all.logical_or(compare("aten::eq", x, max));
  return all;
}
/// Both bounds: gradients of min and max in one function, then that of self. Recorded from PyTorch 2.15, whose ties are shared.
void clamp_both_backward(Backward& w, T x, T min, T max) {
  T g = w.grad[0];
  if (w.needs(1) || w.needs(2)) {
    const Tensor below = mask(min, max), above = mask(min, max);
    if (w.needs(1)) {
      const Tensor tie = masks(x, min, max, 3);
      w.out[1] = masked_in_place(where(compare("aten::eq", x, min), Lazy(g) / 2, g), compare("aten::lt", x, min));
    }
    if (w.needs(2)) {
      const Tensor over = mask(min, max), tie = masks(x, min, max, 3).logical_and(x).tensor();
      w.out[2] = masked_in_place(where(compare("aten::eq", x, max).logical_and(tie), Lazy(g) / 2, g), compare("aten::lt", x, max));
    }
  }
  if (w.needs(0)) {
    const Tensor over = mask(min, max);
    const Tensor inside = masks(x, min, max, 2).logical_or(x).tensor(), ties = masks(x, min, max, 2).tensor();
    w.out[0] = where(ties, g, Lazy(g) / 2);
  }
}
template <bool InPlace>
Tensor clamp_tensors(T self, T min, T max) {
  if (!min && !max) throw Error("clamp: at least one of min or max must not be None");
  if (!min || !max) return InPlace ? apply_binary_(kClampBound, self, min ? min : max) : apply_binary(kClampBound, self, min ? min : max);
  Tensor original = InPlace ? original_of(self, self.requires_grad() || min.requires_grad() || max.requires_grad()) : Tensor();
  auto fn = node("ClampBackward0", {self, min, max}, {max, min, InPlace ? original : self},
                 [](Backward& w, T b, T a, T x) { clamp_both_backward(w, x, a, b); });
  original.reset();
  if constexpr (InPlace) {
    fn.in_place(self);
    return self;
  } else {
    Tensor y = elementwise({self, min, max}, result_type({self, min, max}));
    fn.outputs({y});
    return y;
  }
}
const Op clamp_tensors_op{
    {"aten::clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor", Autocast::none, "self, min, max", kClamp},
    clamp_tensors<false>};
const Op clamp_tensors_in_place{
    {"aten::clamp_.Tensor(Tensor(a!) self, Tensor? min=None, Tensor? max=None) -> Tensor(a!)", Autocast::none, "self, min, max", kClamp},
    clamp_tensors<true>};
const Op clip_tensors_op{
    {"aten::clip.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor", Autocast::none, "self, min, max", kClamp},
    clamp_tensors<false>};
const Op clamp_min_tensor{{"aten::clamp_min.Tensor(Tensor self, Tensor min) -> Tensor", Autocast::none, "self, min", kClamp},
                          binary_op<kClampBound>};
const Op clamp_max_tensor{{"aten::clamp_max.Tensor(Tensor self, Tensor max) -> Tensor", Autocast::none, "self, max", kClamp},
                          binary_op<kClampBound>};
const Op clamp_min_tensor_in_place{
    {"aten::clamp_min_.Tensor(Tensor(a!) self, Tensor min) -> Tensor(a!)", Autocast::none, "self, min", kClamp}, binary_op_<kClampBound>};
const Op clamp_max_tensor_in_place{
    {"aten::clamp_max_.Tensor(Tensor(a!) self, Tensor max) -> Tensor(a!)", Autocast::none, "self, max", kClamp}, binary_op_<kClampBound>};

// ---- addcmul, addcdiv ------------------------------------------------------------------------------------------------------
constexpr const char* kPointwise = "derivatives.yaml; native/PointwiseOps.cpp";

template <bool Divides, bool InPlace>
Tensor addc(T self, T tensor1, T tensor2, const Scalar& value) {
  const bool one = tensor1.requires_grad(), two = tensor2.requires_grad();
  auto fn = node(Divides ? "AddcdivBackward0" : "AddcmulBackward0", {self, tensor1, tensor2},
                 {two ? tensor1 : Tensor(), Divides || one ? tensor2 : Tensor()}, [value](Backward& w, T a, T b) {
                   T g = w.grad[0];
                   if (w.needs(0)) w.out[0] = g;
                   if (w.needs(1)) {
                     if constexpr (Divides)
                       w.out[1] = g * (value / Lazy(b)).conj();
                     else
                       w.out[1] = g * (Lazy(b) * value).conj();
                   }
                   if (w.needs(2)) {
                     if constexpr (Divides)
                       w.out[2] = -Lazy(g) * (value * Lazy(a) / (Lazy(b) * b)).conj();
                     else
                       w.out[2] = g * (Lazy(a) * value).conj();
                   }
                 });
  if constexpr (InPlace) {
    fn.in_place(self);
    return self;
  } else {
    Tensor y = elementwise({self, tensor1, tensor2}, result_type({self, tensor1, tensor2}));
    fn.outputs({y});
    return y;
  }
}
const Op addcmul_op{{"aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor", Autocast::promote,
                     "tensor1, tensor2", kPointwise},
                    addc<false, false>};
const Op addcdiv_op{{"aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor", Autocast::promote,
                     "tensor1, tensor2", kPointwise},
                    addc<true, false>};
const Op addcmul_in_place{{"aten::addcmul_(Tensor(a!) self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor(a!)",
                           Autocast::none, "tensor1, tensor2", kPointwise},
                          addc<false, true>};
const Op addcdiv_in_place{{"aten::addcdiv_(Tensor(a!) self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor(a!)",
                           Autocast::none, "tensor1, tensor2", kPointwise},
                          addc<true, true>};

// ---- lerp ------------------------------------------------------------------------------------------------------------------
constexpr const char* kLerp = "derivatives.yaml lerp; native/Lerp.cpp";

template <bool InPlace>
Tensor lerp_tensor(T self, T end, T weight) {
  const bool of_weight = weight.requires_grad();
  Tensor original = InPlace ? original_of(self, of_weight) : Tensor();
  auto fn = node("LerpBackward1", {self, end, weight},
                 {of_weight ? end : Tensor(),
                  InPlace     ? original
                  : of_weight ? self
                              : Tensor(),
                  weight},
                 [](Backward& w, T b, T a, T t) {
                   T g = w.grad[0];
                   if (w.needs(1)) w.out[1] = g * Lazy(t).conj();
                   if (w.needs(0)) w.out[0] = g * (1 - Lazy(t)).conj();
                   if (w.needs(2)) w.out[2] = g * (Lazy(b) - a).conj();
                 });
  original.reset();
  if constexpr (InPlace) {
    fn.in_place(self);
    return self;
  } else {
    Tensor y = elementwise({self, end, weight}, self.dtype());
    fn.outputs({y});
    return y;
  }
}
template <bool InPlace>
Tensor lerp_number(T self, T end, const Scalar&) {
  auto fn = node("LerpBackward0", {self, end}, {}, [](Backward& w) {
    if (w.needs(1)) w.out[1] = ops::unary("aten::mul", w.grad[0]);
    if (w.needs(0)) w.out[0] = ops::unary("aten::mul", w.grad[0]);
  });
  if constexpr (InPlace) {
    fn.in_place(self);
    return self;
  } else {
    Tensor y = elementwise({self, end}, self.dtype());
    fn.outputs({y});
    return y;
  }
}
const Op lerp_tensor_op{{"aten::lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor", Autocast::none, "self, end, weight", kLerp},
                        lerp_tensor<false>};
const Op lerp_number_op{{"aten::lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor", Autocast::none, "", kLerp},
                        lerp_number<false>};
const Op lerp_tensor_in_place{
    {"aten::lerp_.Tensor(Tensor(a!) self, Tensor end, Tensor weight) -> Tensor(a!)", Autocast::none, "self, end, weight", kLerp},
    lerp_tensor<true>};
const Op lerp_number_in_place{{"aten::lerp_.Scalar(Tensor(a!) self, Tensor end, Scalar weight) -> Tensor(a!)", Autocast::none, "", kLerp},
                              lerp_number<true>};

// ---- fill ------------------------------------------------------------------------------------------------------------------
constexpr const char* kFill = "derivatives.yaml fill; native/Fill.cpp";

void zeros_of_self(Backward& w) { w.out[0] = empty_like(w.grad[0]); }
Tensor fill_number(T self, const Scalar&) {
  auto fn = node("FillBackward0", {self}, {}, [](Backward& w) { zeros_of_self(w); });
  Tensor y = empty_like(self);
  fn.outputs({y});
  return y;
}
Tensor fill_number_(T self, const Scalar&) {
  node("FillBackward0", {self}, {}, [](Backward& w) { zeros_of_self(w); }).in_place(self);
  return self;
}
template <bool InPlace>
Tensor fill_value(T self, T value) {
  auto fn = node("FillBackward1", {self, value}, {}, [](Backward& w) {
    if (w.needs(0)) zeros_of_self(w);
    if (w.needs(1)) w.out[1] = ops::sum(w.grad[0], std::nullopt);
  });
  if constexpr (InPlace) {
    fn.in_place(self);
    return self;
  } else {
    Tensor y = empty_like(self);
    fn.outputs({y});
    return y;
  }
}
Tensor zero_(T self) {
  node("ZeroBackward0", {self}, {}, [](Backward& w) { zeros_of_self(w); }).in_place(self);
  return self;
}
const Op fill_number_op{{"aten::fill.Scalar(Tensor self, Scalar value) -> Tensor", Autocast::none, "", kFill}, fill_number};
const Op fill_value_op{{"aten::fill.Tensor(Tensor self, Tensor value) -> Tensor", Autocast::none, "", kFill}, fill_value<false>};
const Op fill_number_in_place{{"aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)", Autocast::none, "", kFill}, fill_number_};
const Op fill_value_in_place{{"aten::fill_.Tensor(Tensor(a!) self, Tensor value) -> Tensor(a!)", Autocast::none, "", kFill},
                             fill_value<true>};
const Op zero_in_place{{"aten::zero_(Tensor(a!) self) -> Tensor(a!)", Autocast::none, "", kFill}, zero_};

// ---- isin: native/TensorCompare.cpp isin_default_kernel_gpu for few elements, else isin_sorting
// -----------------------------------------------------
constexpr const char* kIsin = "native/TensorCompare.cpp isin";
/// Values are not known: none is taken to occur twice among the elements, nor among the tests.
void isin_sorting(T given_elements, T given_tests) {
  const auto call = [](const char* op, const Values& arguments, const KeywordArguments& keywords = {}) {
    Tensors results;
    collect_tensors(call_op(op, arguments, keywords), results);
    return results;
  };
  const auto unique = [&](T x, bool inverse) { return call("aten::_unique2", {x, false, inverse, false}); };
  Tensor elements, unique_order, tests;
  {
    Tensors of_elements = unique(given_elements, true);
    elements = of_elements[0], unique_order = of_elements[1];
  }
  tests = unique(given_tests, false)[0];
  const Tensor all_elements = call("aten::cat", {make_list({elements, tests})})[0];
  const Tensors sorted = call("aten::sort", {all_elements}, {{"stable", true}, {"dim", std::int64_t{0}}});
  const Tensor duplicate_mask = empty(all_elements.sizes(), DType::boolean);
  { const Tensor equal = empty({all_elements.numel() - 1}, DType::boolean); }
  const Tensor mask = empty(duplicate_mask.sizes(), DType::boolean);
  call("aten::index_copy_", {mask, std::int64_t{0}, sorted[1], duplicate_mask});
  call("aten::index", {mask, make_list({unique_order})});
}
Tensor isin(T elements, T test_elements, bool, bool) {
  Tensor y = empty(elements.sizes(), DType::boolean);
  const double most = 10.0 * std::pow(double(elements.numel()), 0.145);
  if (double(test_elements.numel()) >= most) {
    if (runtime().settings.kernel_scratch()) isin_sorting(elements, test_elements);
    return y;
  }
  if (runtime().settings.kernel_scratch()) {  // elements.unsqueeze(-1).eq(test_elements).any(-1)
    const Tensor equal = empty(elements.sizes() + Dims{test_elements.numel()}, DType::boolean);
    std::vector<bool> last(std::size_t(equal.dim()), false);
    last.back() = true;
    const Tensor any = reduced(equal, last, false, DType::boolean, {1});
  }
  return y;
}
Tensor isin_number(T element, const Scalar&, bool, bool) { return elementwise({element}, DType::boolean); }
const Op isin_op{
    {"aten::isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor",
     Autocast::none, "", kIsin},
    isin};
const Op isin_number_op{
    {"aten::isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor",
     Autocast::none, "", kIsin},
    isin_number};

}  // namespace
}  // namespace memest
