// Comparisons and logic of tensors (aten/src/ATen/native/BinaryOps.cpp, TensorCompare.cpp).
#include "ops/copy.h"
#include "ops/expression.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise_rules.h"
#include "ops/reductions.h"

namespace memest {
namespace {

constexpr BinaryRule kCompare{"", promote_bool, nullptr, uses_nothing, nullptr, uses_nothing};

/// derivatives.yaml eq_.Tensor: zeros_like(self) is the written self, which has the gradient's layout
Tensor compare_(T self, T other) {
  check_in_place(self, other);
  auto fn = node("EqBackward1", {self, other}, {}, [](Backward& w) {
    if (w.needs(1)) w.out[1] = empty(w.sizes(1), w.dtype(1));
    if (w.needs(0)) w.out[0] = empty_like(w.grad[0]);
  });
  fn.in_place(self);
  return self;
}
Tensor compare_number_(T self, const Scalar&) {
  node("EqBackward0", {self}, {}, [](Backward& w) { w.out[0] = empty_like(w.grad[0]); }).in_place(self);
  return self;
}

constexpr const char* kCompareSource = "aten/src/ATen/native/BinaryOps.cpp; derivatives.yaml eq_";
template <Text Name>
struct Comparison {
  static constexpr auto kTensor = Text("aten::") + Name + Text(".Tensor(Tensor self, Tensor other) -> Tensor");
  static constexpr auto kNumber = Text("aten::") + Name + Text(".Scalar(Tensor self, Scalar other) -> Tensor");
  const Op<Tensor(T, T)> tensor{{kTensor.value, Autocast::none, "", kCompareSource}, binary_op<kCompare>};
  const Op<Tensor(T, const Scalar&)> number{{kNumber.value, Autocast::none, "", kCompareSource}, scalar_op<kCompare, "">};
};
template <Text Name>
struct ComparisonInPlace {
  static constexpr auto kTensor = Text("aten::") + Name + Text("_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)");
  static constexpr auto kNumber = Text("aten::") + Name + Text("_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)");
  const Op<Tensor(T, T)> tensor{{kTensor.value, Autocast::none, "", kCompareSource}, compare_};
  const Op<Tensor(T, const Scalar&)> number{{kNumber.value, Autocast::none, "", kCompareSource}, compare_number_};
};
const Comparison<"eq"> eq;
const Comparison<"ne"> ne;
const Comparison<"lt"> lt;
const Comparison<"le"> le;
const Comparison<"gt"> gt;
const Comparison<"ge"> ge;
const ComparisonInPlace<"eq"> eq_;
const ComparisonInPlace<"ne"> ne_;
const ComparisonInPlace<"lt"> lt_;
const ComparisonInPlace<"le"> le_;
const ComparisonInPlace<"gt"> gt_;
const ComparisonInPlace<"ge"> ge_;
const ComparisonInPlace<"greater"> greater_;
const ComparisonInPlace<"greater_equal"> greater_equal_;
const ComparisonInPlace<"less"> less_;
const ComparisonInPlace<"less_equal"> less_equal_;
const ComparisonInPlace<"not_equal"> not_equal_;
const Comparison<"greater"> greater;
const Comparison<"greater_equal"> greater_equal;
const Comparison<"less"> less;
const Comparison<"less_equal"> less_equal;
const Comparison<"not_equal"> not_equal;

const Binary<"logical_and", "", kCompare> logical_and{"", kCompareSource};
const Binary<"logical_or", "", kCompare> logical_or{"", kCompareSource};
const Binary<"logical_xor", "", kCompare> logical_xor{"", kCompareSource};

/// native/TensorCompare.cpp isclose, line by line.
Tensor isclose(T self, T other, double, double, bool equal_nan) {
  const Tensor a = detached(self), b = detached(other);
  Tensor close = compare("aten::eq", a, b);
  if (equal_nan && is_floating(a.dtype())) {
    const Tensor both = compare("aten::bitwise_and", compare("aten::ne", a, a), compare("aten::ne", b, b));
  }
  const Tensor cast = is_integral(a.dtype(), true) ? ops::to(b, DType::float32) : b;
  const Tensor allowed = (Lazy(cast) * 1e-5).abs() + 1e-8;
  const Tensor actual = (a - Lazy(cast)).abs();
  const Tensor finite = Lazy("aten::isfinite", {actual}, [](auto in) {
                          return compare("aten::eq", in[0], in[0]) * compare("aten::ne", Lazy(in[0]).abs(), 0);
                        }).in_place("aten::__iand__", {compare("aten::le", actual, allowed)});
  return close;
}
const Op isclose_op{{"aten::isclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor",
                     Autocast::none, "", "native/TensorCompare.cpp isclose"},
                    isclose};
/// Reads a boolean of all elements back: the value is not known, so the answer is yes.
bool all_of(T mask) {
  const Tensor all = ops::reduce_kernel(mask, {}, false, DType::boolean, {.accumulator_size = 1, .input_size = 1, .output_size = 1});
  return true;
}
bool allclose(T self, T other, double rtol, double atol, bool equal_nan) {
  const Tensor close = isclose(self, other, rtol, atol, equal_nan);
  return all_of(close);
}
bool equal(T self, T other) {
  if (!(self.sizes() == other.sizes())) return false;
  const Tensor same = compare("aten::eq", detached(self), detached(other));
  return all_of(same);
}
const Op allclose_op{{"aten::allclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> bool",
                      Autocast::none, "", "native/TensorCompare.cpp allclose"},
                     allclose};
const Op equal_op{{"aten::equal(Tensor self, Tensor other) -> bool", Autocast::none, "", "native/cuda/Equal.cpp"}, equal};

}  // namespace
}  // namespace memest
