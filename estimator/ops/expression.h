// Derivative formulas as derivatives.yaml writes them. An expression is evaluated as GCC 13 runs PyTorch's: operands of an operator and
// arguments of a function from right to left, an object before its method's arguments. All temporaries live until the whole expression is
// done and go in reverse order, as C++ temporaries do. Below autograd only: nothing is recorded.
#pragma once
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "fake/tensor.h"
#include "ops/value.h"

namespace memest {

class Lazy {
 public:
  using Compute = std::function<Tensor(std::span<const Tensor> operands)>;
  enum class Order { right_to_left, left_to_right };

  Lazy(T tensor);  // implicit: formulas mix tensors and expressions
  /// A kernel: `op` names it in the trace.
  Lazy(const char* op, std::initializer_list<Lazy> operands, Compute compute, Order order = Order::right_to_left);
  /// Evaluates.
  operator Tensor() const;
  Tensor tensor() const { return *this; }
  /// Evaluates as a part of a larger expression, whose temporaries go together.
  class Temporaries {
   public:
    Temporaries() = default;
    ~Temporaries() {
      while (!tensors_.empty()) tensors_.pop_back();
    }
    Temporaries(const Temporaries&) = delete;
    Temporaries& operator=(const Temporaries&) = delete;

   private:
    friend class Lazy;
    std::vector<Tensor> tensors_;
  };
  Tensor within(Temporaries& temporaries) const;

  /// A lazy view of a complex tensor: the op that takes it makes a copy for its own time. A real tensor itself.
  Lazy conj() const;
  /// One elementwise kernel whose result has the input's type; integers become floats with `to_float`.
  Lazy map(const char* op, bool to_float = true) const;
  /// A kernel that writes into this very tensor with the help of others: masked_fill_, logical_and_.
  Lazy in_place(const char* op, std::initializer_list<Lazy> others = {}) const;
  /// at::abs: real of a complex tensor.
  Lazy abs() const;
  Lazy exp() const { return map("aten::exp"); }
  Lazy log() const { return map("aten::log"); }
  Lazy sin() const { return map("aten::sin"); }
  Lazy cos() const { return map("aten::cos"); }
  Lazy rsqrt() const { return map("aten::rsqrt"); }
  Lazy sgn() const { return map("aten::sgn", false); }
  Lazy reciprocal() const { return map("aten::reciprocal"); }
  Lazy neg() const { return map("aten::neg", false); }
  Lazy pow(const Scalar& exponent) const;
  Lazy pow(const Lazy& exponent) const;
  Lazy div(const Lazy& other) const;
  Lazy div(const Lazy& other, const char* rounding_mode) const;
  Lazy logical_not() const;
  Lazy logical_and(const Lazy& other) const;
  Lazy logical_or(const Lazy& other) const;
  Lazy isnan() const;
  Lazy masked_fill(const Lazy& mask) const;
  Lazy masked_fill_(const Lazy& mask) const { return in_place("aten::masked_fill_", {mask}); }
  Lazy sum(const Dims& dims, bool keepdim) const;
  Lazy to(DType dtype) const;

 private:
  struct Node;
  struct Evaluated;
  static Evaluated evaluate(const Node& node, Temporaries& temporaries);
  std::shared_ptr<const Node> node_;
};

Lazy operator-(const Lazy& a);
Lazy operator+(const Lazy& a, const Lazy& b);
Lazy operator-(const Lazy& a, const Lazy& b);
Lazy operator*(const Lazy& a, const Lazy& b);
Lazy operator/(const Lazy& a, const Lazy& b);
Lazy operator+(const Lazy& a, const Scalar& b);
Lazy operator-(const Lazy& a, const Scalar& b);
Lazy operator*(const Lazy& a, const Scalar& b);
Lazy operator/(const Lazy& a, const Scalar& b);
Lazy operator+(const Scalar& a, const Lazy& b);
/// A tensor like b filled with a, then b taken from it in place (aten/src/ATen/TensorOperators.h).
Lazy operator-(const Scalar& a, const Lazy& b);
Lazy operator*(const Scalar& a, const Lazy& b);
/// A tensor like b filled with a, then divided in place.
Lazy operator/(const Scalar& a, const Lazy& b);
/// FunctionsManual.cpp masked_fill_inplace_if_safe: written into `a`.
Lazy masked_in_place(const Lazy& a, const Lazy& mask);
/// One elementwise kernel of two tensors that gives booleans: ==, <, & of masks, ...
Lazy compare(const char* op, const Lazy& a, const Lazy& b);
Lazy compare(const char* op, const Lazy& a, const Scalar& b);
/// at::where of three tensors.
Lazy where(const Lazy& condition, const Lazy& a, const Lazy& b);
/// at::where(condition, a, number): the number becomes a tensor for the op's own time.
Lazy where(const Lazy& condition, const Lazy& a, const Scalar& number);
Lazy where(const Lazy& condition, const Scalar& number, const Lazy& b);
/// at::zeros({}, like.options()), at::scalar_tensor(number, like.options()): 0-d, on the device.
Lazy scalar_like(T like);
/// Elementwise kernels of two tensors by name, with type promotion.
Lazy pointwise(const char* op, const Lazy& a, const Lazy& b);
/// at::pow(number, exponent): the number becomes a tensor for the op's own time.
Lazy pow(const Scalar& base, const Lazy& exponent);
/// at::real of a complex gradient where the input is real (handle_r_to_c); else the gradient.
Tensor real_gradient(Tensor gradient, DType input);

}  // namespace memest
