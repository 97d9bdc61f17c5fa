// Generators of pointwise op records: what the derivative of a family looks at decides what is saved, in place what is cloned.
#pragma once
#include <algorithm>

#include "ops/op.h"

namespace memest {

/// A text that can be a template argument.
template <std::size_t N>
struct Text {
  char value[N] = {};
  consteval Text(const char (&text)[N]) { std::copy_n(text, N, value); }
  consteval Text() = default;
};
template <std::size_t N, std::size_t M>
consteval Text<N + M - 1> operator+(const Text<N>& a, const Text<M>& b) {
  Text<N + M - 1> joined;
  std::copy_n(a.value, N - 1, joined.value);
  std::copy_n(b.value, M, joined.value + N - 1);
  return joined;
}
/// "log1p" to "Log1PBackward0": Python's str.title() of each part (torchgen/api/autograd.py).
template <std::size_t N>
consteval auto node_name(const Text<N>& op) {
  Text<N + 9> name;
  std::size_t n = 0;
  bool letter_before = false;
  for (std::size_t i = 0; i + 1 < N; ++i) {
    const char c = op.value[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c != '_') name.value[n++] = letter && !letter_before && c >= 'a' ? char(c - 'a' + 'A') : c;
    letter_before = letter;
  }
  for (char c : {'B', 'a', 'c', 'k', 'w', 'a', 'r', 'd', '0'}) name.value[n++] = c;
  return name;
}

// ---- one tensor --------------------------------------------------------------------------------------------------------

/// What the derivative looks at.
enum class Keeps { nothing, input, result };
constexpr const char* saves(Keeps kept) { return kept == Keeps::nothing ? "" : kept == Keeps::input ? "self" : "result"; }

/// Types of results: integers become floats, as the functions of analysis have it; the same; booleans.
inline DType float_result(DType t) { return is_integral(t, true) ? DType::float32 : t; }
inline DType same_result(DType t) { return t; }
inline DType bool_result(DType) { return DType::boolean; }
using ResultRule = DType (*)(DType);

/// The gradient of the input from that of the output and what was kept. Null where there is no derivative.
using UnaryGradient = Tensor (*)(T gradient, T kept);

Tensor apply_unary(const char* node, Keeps kept, UnaryGradient gradient, ResultRule result, T self);
/// A formula that needs the input keeps a clone of it, one that needs the result keeps that.
Tensor apply_unary_(const char* node, Keeps kept, UnaryGradient gradient, T self);

template <Text Op, Keeps Kept, UnaryGradient Gradient, ResultRule Result>
Tensor unary_op(T self) {
  static constexpr auto name = node_name(Op);
  return apply_unary(name.value, Kept, Gradient, Result, self);
}
template <Text Op, Keeps Kept, UnaryGradient Gradient>
Tensor unary_op_(T self) {
  static constexpr auto name = node_name(Op);
  return apply_unary_(name.value, Kept, Gradient, self);
}

/// The records "aten::NAME(Tensor self) -> Tensor" and "aten::NAME_".
template <Text Name, Keeps Kept, UnaryGradient Gradient, ResultRule Result = float_result>
struct Unary {
  static constexpr auto kOut = Text("aten::") + Name + Text("(Tensor self) -> Tensor");
  static constexpr auto kInPlace = Text("aten::") + Name + Text("_(Tensor(a!) self) -> Tensor(a!)");
  explicit Unary(const char* source, Autocast autocast = Autocast::none)
      : out({kOut.value, autocast, saves(Kept), source}, unary_op<Name, Kept, Gradient, Result>),
        in_place({kInPlace.value, Autocast::none, saves(Kept), source}, unary_op_<Name, Kept, Gradient>) {}
  const Op<Tensor(T)> out, in_place;
};
/// Only "aten::NAME_", for families whose out-of-place record stands in a header.
template <Text Name, Keeps Kept, UnaryGradient Gradient>
struct UnaryInPlace {
  static constexpr auto kInPlace = Text("aten::") + Name + Text("_(Tensor(a!) self) -> Tensor(a!)");
  explicit UnaryInPlace(const char* source)
      : in_place({kInPlace.value, Autocast::none, saves(Kept), source}, unary_op_<Name, Kept, Gradient>) {}
  const Op<Tensor(T)> in_place;
};
/// Only "aten::NAME".
template <Text Name, Keeps Kept, UnaryGradient Gradient, ResultRule Result = float_result>
struct UnaryOut {
  static constexpr auto kOut = Text("aten::") + Name + Text("(Tensor self) -> Tensor");
  explicit UnaryOut(const char* source, Autocast autocast = Autocast::none)
      : out({kOut.value, autocast, saves(Kept), source}, unary_op<Name, Kept, Gradient, Result>) {}
  const Op<Tensor(T)> out;
};

// ---- two tensors -------------------------------------------------------------------------------------------------------

/// What one of the two gradients looks at, as bits. `is_zeros`, of the other's: zeros_like(other), which keeps its sizes only.
enum Uses : unsigned { uses_nothing = 0, uses_self = 1, uses_other = 2, uses_result = 4, is_zeros = 8 };

using PromotionRule = DType (*)(T self, T other);
DType promote(T self, T other);
DType promote_float(T self, T other);  ///< integers become floats
DType promote_bool(T self, T other);

struct BinaryRule {
  const char* node;
  PromotionRule type;
  /// Null where the op is not differentiable in it.
  Tensor (*self_gradient)(T gradient, T self, T other, T result);
  unsigned self_uses;
  Tensor (*other_gradient)(T gradient, T self, T other, T result);
  unsigned other_uses;
};
Tensor apply_binary(const BinaryRule& rule, T self, T other);
Tensor apply_binary_(const BinaryRule& rule, T self, T other);
/// With one tensor and a number: the self part of the rule. The number is `other` as a wrapped 0-d tensor.
Tensor apply_scalar(const BinaryRule& rule, const char* node, T self, const Scalar& number);
Tensor apply_scalar_(const BinaryRule& rule, const char* node, T self, const Scalar& number);

template <const BinaryRule& Rule>
Tensor binary_op(T self, T other) {
  return apply_binary(Rule, self, other);
}
template <const BinaryRule& Rule>
Tensor binary_op_(T self, T other) {
  return apply_binary_(Rule, self, other);
}
template <const BinaryRule& Rule, Text Node>
Tensor scalar_op(T self, const Scalar& number) {
  return apply_scalar(Rule, Node.value, self, number);
}
template <const BinaryRule& Rule, Text Node>
Tensor scalar_op_(T self, const Scalar& number) {
  return apply_scalar_(Rule, Node.value, self, number);
}

/// The records "aten::NAMEOVERLOAD(Tensor self, Tensor other) -> Tensor" and its in-place form; Overload is "" or ".Tensor".
template <Text Name, Text Overload, const BinaryRule& Rule>
struct Binary {
  static constexpr auto kOut = Text("aten::") + Name + Overload + Text("(Tensor self, Tensor other) -> Tensor");
  static constexpr auto kInPlace = Text("aten::") + Name + Text("_") + Overload + Text("(Tensor(a!) self, Tensor other) -> Tensor(a!)");
  explicit Binary(const char* saved, const char* source, Autocast autocast = Autocast::none)
      : out({kOut.value, autocast, saved, source}, binary_op<Rule>),
        in_place({kInPlace.value, Autocast::none, saved, source}, binary_op_<Rule>) {}
  const Op<Tensor(T, T)> out, in_place;
};
template <Text Name, Text Overload, const BinaryRule& Rule>
struct BinaryOut {
  static constexpr auto kOut = Text("aten::") + Name + Overload + Text("(Tensor self, Tensor other) -> Tensor");
  explicit BinaryOut(const char* saved, const char* source, Autocast autocast = Autocast::none)
      : out({kOut.value, autocast, saved, source}, binary_op<Rule>) {}
  const Op<Tensor(T, T)> out;
};
/// The same with a number: "aten::NAMEOVERLOAD(Tensor self, Scalar other) -> Tensor", ".Scalar" as a rule. Node: "RemainderBackward0".
template <Text Name, Text Overload, const BinaryRule& Rule, Text Node>
struct WithScalar {
  static constexpr auto kOut = Text("aten::") + Name + Overload + Text("(Tensor self, Scalar other) -> Tensor");
  static constexpr auto kInPlace = Text("aten::") + Name + Text("_") + Overload + Text("(Tensor(a!) self, Scalar other) -> Tensor(a!)");
  explicit WithScalar(const char* saved, const char* source, Autocast autocast = Autocast::none)
      : out({kOut.value, autocast, saved, source}, scalar_op<Rule, Node>),
        in_place({kInPlace.value, Autocast::none, saved, source}, scalar_op_<Rule, Node>) {}
  const Op<Tensor(T, const Scalar&)> out, in_place;
};

/// Writes into self: throws Error where other does not broadcast to it.
void check_in_place(T self, T other);
/// The clone of self that an in-place op keeps for a formula, made where `needed`.
Tensor original_of(T self, bool needed);

constexpr const char* kBinarySource = "derivatives.yaml; aten/src/ATen/native/BinaryOps.cpp";
constexpr const char* kUnarySource = "derivatives.yaml; aten/src/ATen/native/UnaryOps.cpp";
constexpr const char* kActivationSource = "derivatives.yaml; aten/src/ATen/native/Activation.cpp";

}  // namespace memest
