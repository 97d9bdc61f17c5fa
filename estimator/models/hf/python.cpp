#include "models/hf/python.h"

namespace memest::hf {

X aten(const char* name, Values arguments, KeywordArguments keywords) {
  return Unbox<Tensor>::from(call_op(std::string("aten::") + name, arguments, keywords));
}
std::vector<X> aten_list(const char* name, Values arguments) {
  return X::list(Unbox<Tensors>::from(call_op(std::string("aten::") + name, arguments, {})));
}

Tensor indexed_slice(Tensor self, I dim, std::optional<I> from, std::optional<I> to, I step) {
  const bool alone = dim == 0;  // x[from:to] is a slice whatever its bounds
  if (!alone && step == 1 && from.value_or(0) == 0) {
    const I length = self.size(int(dim < 0 ? dim + self.dim() : dim));
    const bool older = runtime().settings.torch.full_slice_records_node();
    if (older ? to == length : to.value_or(length) >= length) return aten("alias", {std::move(self)});
  }
  return ops::slice(std::move(self), dim, from, to, step);
}

X arange(I count, DType dtype) { return Unbox<Tensor>::from(call_op("aten::arange", {count}, {{"dtype", dtype}})); }
X zeros(const Dims& sizes, DType dtype) { return ops::zeros(sizes, dtype); }
X ones(const Dims& sizes, DType dtype) { return Unbox<Tensor>::from(call_op("aten::ones", {list_of(sizes)}, {{"dtype", dtype}})); }
namespace {
Value number(const Scalar& s) {
  return std::visit([](auto v) { return Value(v); }, s.value);
}
}  // namespace
X full(const Dims& sizes, Scalar value, DType dtype) {
  return Unbox<Tensor>::from(call_op("aten::full", {list_of(sizes), number(value)}, {{"dtype", dtype}}));
}
X where(X condition, X self, X other) { return aten("where", {std::move(condition), std::move(self), std::move(other)}); }
X where(X condition, X self, Scalar other) { return aten("where", {std::move(condition), std::move(self), number(other)}); }
X where(X condition, Scalar self, X other) { return aten("where", {std::move(condition), number(self), std::move(other)}); }

}  // namespace memest::hf
