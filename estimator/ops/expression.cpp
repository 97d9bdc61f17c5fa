#include "ops/expression.h"

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/reductions.h"

namespace memest {

struct Lazy::Node {
  const char* op = "";
  Tensor leaf;
  std::vector<Lazy> operands;
  Compute compute;
  Order order = Order::right_to_left;
  bool conj = false;
};

/// A tensor and whether its conjugate is meant.
struct Lazy::Evaluated {
  Tensor tensor;
  bool conj = false;
};

namespace {

DType promoted(T a, const Scalar& b) { return ResultType().add(a).add(b).get(); }
DType floating(DType t) { return is_integral(t, true) ? DType::float32 : t; }

}  // namespace

Lazy::Lazy(T tensor) {
  auto node = std::make_shared<Node>();
  node->leaf = tensor;
  node_ = std::move(node);
}

Lazy::Lazy(const char* op, std::initializer_list<Lazy> operands, Compute compute, Order order) {
  auto node = std::make_shared<Node>();
  node->op = op;
  node->operands.assign(operands.begin(), operands.end());
  node->compute = std::move(compute);
  node->order = order;
  node_ = std::move(node);
}

Lazy Lazy::conj() const {
  Lazy result("aten::conj", {*this}, {});
  std::const_pointer_cast<Node>(result.node_)->conj = true;
  return result;
}

Lazy::Evaluated Lazy::evaluate(const Node& node, Temporaries& temporaries) {
  if (node.leaf) return {node.leaf, false};
  if (node.conj) {
    Evaluated inner = evaluate(*node.operands[0].node_, temporaries);
    if (is_complex(inner.tensor.dtype())) inner.conj = !inner.conj;
    return inner;
  }
  const std::size_t count = node.operands.size();
  std::vector<Evaluated> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = node.order == Order::left_to_right ? i : count - 1 - i;
    values[at] = evaluate(*node.operands[at].node_, temporaries);
  }
  Scoped<const char*> scope(runtime().op, node.op);
  std::vector<Tensor> operands;
  for (auto& v : values) operands.push_back(v.conj ? ops::clone(v.tensor, std::nullopt) : v.tensor);  // resolve_conj
  values.clear();
  Tensor result = node.compute(operands);
  while (!operands.empty()) operands.pop_back();
  temporaries.tensors_.push_back(result);
  return {result, false};
}

Tensor Lazy::within(Temporaries& temporaries) const {
  NoGrad guard;
  return evaluate(*node_, temporaries).tensor;
}
Lazy::operator Tensor() const {
  Temporaries temporaries;
  return within(temporaries);
}

Lazy Lazy::map(const char* op, bool to_float) const {
  return {op, {*this}, [to_float](auto in) { return elementwise({in[0]}, to_float ? floating(in[0].dtype()) : in[0].dtype()); }};
}
Lazy Lazy::in_place(const char* op, std::initializer_list<Lazy> others) const {
  std::vector<Lazy> all{*this};
  all.insert(all.end(), others.begin(), others.end());
  Lazy result(
      op, {}, [](auto in) { return in[0]; }, Order::left_to_right);
  std::const_pointer_cast<Node>(result.node_)->operands = std::move(all);
  return result;
}
// native/UnaryOps.cpp unary_op_impl_with_complex_to_float_out: a complex result, then its real part
Lazy Lazy::abs() const {
  return {"aten::abs", {*this}, [](auto in) {
            const DType type = in[0].dtype();
            Tensor result = elementwise({in[0]}, real_type(type));
            if (is_complex(type)) elementwise({in[0]}, type);
            return result;
          }};
}
Lazy Lazy::pow(const Scalar& exponent) const {
  return {"aten::pow", {*this}, [exponent](auto in) { return elementwise({in[0]}, promoted(in[0], exponent)); }};
}
Lazy Lazy::pow(const Lazy& exponent) const {
  return {"aten::pow",
          {*this, exponent},
          [](auto in) {
            return elementwise({in[0], in[1]}, result_type({in[0], in[1]}));
          },
          Order::left_to_right};
}
Lazy Lazy::div(const Lazy& other) const {
  return {"aten::div",
          {*this, other},
          [](auto in) {
            return elementwise({in[0], in[1]}, floating(result_type({in[0], in[1]})));
          },
          Order::left_to_right};
}
Lazy Lazy::div(const Lazy& other, const char*) const {
  return {"aten::div",
          {*this, other},
          [](auto in) {
            return elementwise({in[0], in[1]}, result_type({in[0], in[1]}));
          },
          Order::left_to_right};
}
Lazy Lazy::logical_not() const {
  return {"aten::logical_not", {*this}, [](auto in) { return elementwise({in[0]}, DType::boolean); }};
}
Lazy Lazy::logical_and(const Lazy& other) const {
  return {"aten::logical_and", {*this, other}, [](auto in) { return elementwise({in[0], in[1]}, DType::boolean); }, Order::left_to_right};
}
Lazy Lazy::logical_or(const Lazy& other) const {
  return {"aten::logical_or", {*this, other}, [](auto in) { return elementwise({in[0], in[1]}, DType::boolean); }, Order::left_to_right};
}
Lazy Lazy::isnan() const {
  return {"aten::isnan", {*this}, [](auto in) { return elementwise({in[0]}, DType::boolean); }};
}
Lazy Lazy::masked_fill(const Lazy& mask) const {  // native/TensorAdvancedIndexing.cpp: a contiguous clone of self, expanded to the mask
  return {"aten::masked_fill",
          {*this, mask},
          [](auto in) { return empty(broadcast(in[0].sizes(), in[1].sizes()), in[0].dtype()); },
          Order::left_to_right};
}
Lazy Lazy::sum(const Dims& dims, bool keepdim) const {
  return {"aten::sum", {*this}, [dims, keepdim](auto in) { return ops::sum_dim(in[0], dims, keepdim, std::nullopt); }};
}
Lazy Lazy::to(DType dtype) const {
  return {"aten::to", {*this}, [dtype](auto in) { return ops::to(in[0], dtype); }};
}

Lazy pointwise(const char* op, const Lazy& a, const Lazy& b) {
  return {op, {a, b}, [](auto in) { return elementwise({in[0], in[1]}, result_type({in[0], in[1]})); }};
}
namespace {
Lazy with_number(const char* op, const Lazy& a, const Scalar& b) {
  return {op, {a}, [b](auto in) { return elementwise({in[0]}, promoted(in[0], b)); }};
}
}  // namespace

Lazy operator-(const Lazy& a) { return a.neg(); }
Lazy operator+(const Lazy& a, const Lazy& b) { return pointwise("aten::add", a, b); }
Lazy operator-(const Lazy& a, const Lazy& b) { return pointwise("aten::sub", a, b); }
Lazy operator*(const Lazy& a, const Lazy& b) { return pointwise("aten::mul", a, b); }
Lazy operator/(const Lazy& a, const Lazy& b) {
  return {"aten::div", {a, b}, [](auto in) { return elementwise({in[0], in[1]}, floating(result_type({in[0], in[1]}))); }};
}
Lazy operator+(const Lazy& a, const Scalar& b) { return with_number("aten::add", a, b); }
Lazy operator-(const Lazy& a, const Scalar& b) { return with_number("aten::sub", a, b); }
Lazy operator*(const Lazy& a, const Scalar& b) { return with_number("aten::mul", a, b); }
Lazy operator/(const Lazy& a, const Scalar& b) {
  return {"aten::div", {a}, [b](auto in) { return elementwise({in[0]}, floating(promoted(in[0], b))); }};
}
Lazy operator+(const Scalar& a, const Lazy& b) { return with_number("aten::add", b, a); }
Lazy operator-(const Scalar&, const Lazy& b) {
  return {"aten::sub", {b}, [](auto in) { return empty_like(in[0]); }};
}
Lazy operator*(const Scalar& a, const Lazy& b) { return with_number("aten::mul", b, a); }
Lazy operator/(const Scalar&, const Lazy& b) {
  return {"aten::div", {b}, [](auto in) { return empty_like(in[0]); }};
}
Lazy masked_in_place(const Lazy& a, const Lazy& mask) {
  return {"aten::masked_fill_", {a, mask}, [](auto in) { return in[0]; }};
}

Lazy compare(const char* op, const Lazy& a, const Lazy& b) {
  return {op, {a, b}, [](auto in) { return elementwise({in[0], in[1]}, DType::boolean); }};
}
Lazy compare(const char* op, const Lazy& a, const Scalar&) {
  return {op, {a}, [](auto in) { return elementwise({in[0]}, DType::boolean); }};
}
Lazy where(const Lazy& condition, const Lazy& a, const Lazy& b) {
  return {"aten::where", {condition, a, b}, [](auto in) {  // a condition on the host is copied to the device
            const bool copied = in[0].on_host() && !(in[1].on_host() && in[2].on_host());
            const Tensor mask = copied ? empty(in[0].sizes(), DType::boolean) : in[0];
            return elementwise({mask, in[1], in[2]}, result_type({in[1], in[2]}));
          }};
}
Lazy where(const Lazy& condition, const Lazy& a, const Scalar& number) {
  return {"aten::where", {condition, a}, [number](auto in) {
            Tensor other = empty({}, promoted(in[1], number));
            return elementwise({in[0], in[1], other}, other.dtype());
          }};
}
Lazy where(const Lazy& condition, const Scalar& number, const Lazy& b) {
  return {"aten::where", {condition, b}, [number](auto in) {
            Tensor self = empty({}, promoted(in[1], number));
            return elementwise({in[0], self, in[1]}, self.dtype());
          }};
}
// native/Pow.cpp pow_Scalar_out
Lazy pow(const Scalar& base, const Lazy& exponent) {
  return {"aten::pow", {exponent}, [base](auto in) {
            Tensor result = elementwise({in[0]}, promoted(in[0], base));
            if (base.to_double() != 1) empty({}, base.dtype() == DType::int64 ? DType::int64 : DType::float64);  // for pow_out
            return result;
          }};
}
Tensor real_gradient(Tensor gradient, DType input) {
  if (is_complex(input) || !is_complex(gradient.dtype())) return gradient;
  Dims strides = gradient.strides();
  for (auto& s : strides) s *= 2;
  Tensor real = make_view(gradient, gradient.sizes(), strides, gradient->offset * 2);
  real->dtype = real_type(gradient.dtype());
  return real;
}
Lazy scalar_like(T like) {
  return {"aten::scalar_tensor", {}, [dtype = like.dtype()](auto) { return empty({}, dtype); }};
}

}  // namespace memest
