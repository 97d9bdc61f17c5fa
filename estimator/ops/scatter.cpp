// Sources: derivatives.yaml; FunctionsManual.cpp scatter_reduce_backward; aten/src/ATen/native/{TensorAdvancedIndexing,Scatter...}.cpp,
// native/cuda/ScatterGatherKernel.cu of 2.15.
#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/indexing.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

void check_scatter(const char* name, T self, I dim, T index) {
  wrap_dim(dim, self.dim());
  if (!is_integral(index.dtype(), false)) throw Error(fmt::format("{}: expected an integer index, found {}", name, describe(index)));
  if (index.numel() > 0 && std::max(index.dim(), 1) != std::max(self.dim(), 1))
    throw Error(fmt::format("{}: index tensor must have the same number of dimensions as self, found {} and {}", name, describe(index),
                            describe(self)));
}

Tensor gather(T self, I dim, T index, bool) {
  check_scatter("gather", self, dim, index);
  auto fn =
      node("GatherBackward0", {self}, {index, self}, [](Backward& w, T, T x) { w.out[0] = ops::zeros(x.sizes(), w.grad[0].dtype()); });
  Tensor y = empty(index.sizes(), self.dtype());
  fn.outputs({y});
  return y;
}
Tensor take_along_dim(T self, T indices, std::optional<I> dim) {
  if (indices.dtype() != DType::int64)
    throw Error("torch.take_along_dim(): dtype of indices should be Long but got " + std::string(name_of(indices.dtype())));
  if (!dim) {
    Tensor flat = ops::view(ops::contiguous_tensor(self), {-1});
    Tensor positions = ops::view(ops::contiguous_tensor(indices), {-1});
    return ops::gather(flat, 0, positions, false);
  }
  const int d = wrap_dim(*dim, self.dim());
  if (self.dim() != indices.dim())
    throw Error("torch.take_along_dim(): input and indices should have the same number of dimensions, found " + describe(self) + " and " +
                describe(indices));
  Dims sizes = self.sizes(), of_index = indices.sizes();
  sizes[d] = 1, of_index[d] = 1;
  const Dims common = broadcast(sizes, of_index);
  sizes = common, of_index = common;
  sizes[d] = self.sizes()[d], of_index[d] = indices.sizes()[d];
  Tensor x = ops::expand(self, sizes, false);
  Tensor positions = elementwise({ops::expand(indices, of_index, false)}, DType::int64);  // negative ones count from the end
  return ops::gather(x, d, positions, false);
}
const Op take_along_dim_op{{"aten::take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor", Autocast::none, "",
                            "native/TensorAdvancedIndexing.cpp take_along_dim"},
                           take_along_dim};

enum class Kind { src, value, add };
template <Kind K>
Tensor scatter_any(T self, I dim, T index, T src, bool in_place) {
  check_scatter("scatter", self, dim, index);
  auto formula = [dim](Backward& w, T i) {
    (void)dim, (void)i;
    if (w.needs(0)) {
      if constexpr (K == Kind::add)
        w.out[0] = w.grad[0];
      else
        w.out[0] = empty(w.grad[0].sizes(), w.grad[0].dtype());  // grad.scatter(dim, index, 0)
    }
    if constexpr (K != Kind::value)
      if (w.needs(1)) w.out[1] = ops::gather(w.grad[0], dim, i, false);
  };
  auto fn = node(K == Kind::src     ? "ScatterBackward0"
                 : K == Kind::value ? "ScatterBackward1"
                                    : "ScatterAddBackward0",
                 {self, src}, {index}, formula);
  if (in_place) {
    fn.in_place(self);
    return self;
  }
  Tensor y = empty(self.sizes(), self.dtype());
  fn.outputs({y});
  return y;
}
Tensor scatter_src(T self, I dim, T index, T src) { return scatter_any<Kind::src>(self, dim, index, src, false); }
Tensor scatter_src_(T self, I dim, T index, T src) { return scatter_any<Kind::src>(self, dim, index, src, true); }
Tensor scatter_value(T self, I dim, T index, const Scalar&) { return scatter_any<Kind::value>(self, dim, index, {}, false); }
Tensor scatter_value_(T self, I dim, T index, const Scalar&) { return scatter_any<Kind::value>(self, dim, index, {}, true); }
Tensor scatter_add(T self, I dim, T index, T src) { return scatter_any<Kind::add>(self, dim, index, src, false); }
Tensor scatter_add_(T self, I dim, T index, T src) { return scatter_any<Kind::add>(self, dim, index, src, true); }

Tensor product(T a, T b) { return ops::binary("aten::mul", a, b, a.dtype()); }

/// FunctionsManual.cpp scatter_reduce_backward: which of self and src made each result, and shares of the gradient for them.
void scatter_reduce_formula(Backward& w, I dim, const std::string& reduce, bool include_self, T index, T self, T src, T result) {
  Tensor grad_self, grad_src;
  const Tensor& grad = w.grad[0];
  Scoped<const char*> scope(runtime().op, "ScatterReduceBackward0");
  if (reduce == "sum") {
    grad_self = grad;
    grad_src = ops::gather(grad, dim, index, false);
  } else if (reduce == "mean") {
    Tensor n = empty_like(grad);
    {
      Tensor ones = empty_like(src);
      Tensor counted = empty(n.sizes(), n.dtype());
      n = counted;
    }
    { Tensor none = elementwise({n}, DType::boolean); }
    grad_self = ops::binary("aten::div", grad, n);
    Tensor n_src = ops::gather(n, dim, index, false);
    {
      Tensor picked = ops::gather(grad, dim, index, false);
      grad_src = ops::binary("aten::div", picked, n_src);
    }
    n_src.reset();
    n.reset();
  } else if (reduce == "amax" || reduce == "amin") {
    Tensor value = ops::gather(result, dim, index, false);
    Tensor self_is_result, src_is_result;
    {
      Tensor equal = elementwise({self, result}, DType::boolean);
      self_is_result = elementwise({equal}, self.dtype());
    }
    {
      Tensor equal = elementwise({src, value}, DType::boolean);
      src_is_result = elementwise({equal}, src.dtype());
    }
    Tensor n = empty(self_is_result.sizes(), self_is_result.dtype());
    Tensor distributed = ops::binary("aten::div", grad, n);
    {
      Tensor equal = elementwise({self, result}, DType::boolean);
      grad_self = product(distributed, equal);
    }
    {
      Tensor picked = ops::gather(distributed, dim, index, false);
      Tensor equal = elementwise({src, value}, DType::boolean);
      grad_src = product(picked, equal);
      equal.reset();
      picked.reset();
    }
    distributed.reset();
    n.reset();
    src_is_result.reset();
    self_is_result.reset();
    value.reset();
  } else {  // prod: products without the zeros, and what the others make of each
    Tensor masked_self, masked_result;
    {
      Tensor self_zero = elementwise({self}, DType::boolean);
      masked_self = elementwise({self, self_zero}, self.dtype());
    }
    masked_result = empty(self.sizes(), self.dtype());
    {
      Tensor numerator = product(grad, masked_result);
      grad_self = ops::binary("aten::div", numerator, masked_self);
    }
    Tensor src_zero = elementwise({src}, DType::boolean), zeros_met;
    {
      std::optional<Tensor> none(empty(self.sizes(), self.dtype())), as_number(elementwise({src_zero}, self.dtype())),
          added(empty(self.sizes(), self.dtype()));
      zeros_met = ops::gather(*added, dim, index, false);
    }
    Tensor single_zero;
    {
      Tensor one = elementwise({zeros_met}, DType::boolean);
      single_zero = elementwise({src_zero, one}, DType::boolean);
    }
    Tensor masked_src = elementwise({src, single_zero}, src.dtype());
    Tensor masked_src_result = empty(self.sizes(), self.dtype());
    {
      std::vector<Tensor> parts;  // the branches of where(), its last argument first
      parts.push_back(elementwise({src, src_zero}, src.dtype()));
      parts.push_back(product(grad, result));
      parts.push_back(ops::gather(parts[1], dim, index, false));
      parts.push_back(ops::binary("aten::div", parts[2], parts[0]));
      parts.push_back(product(grad, masked_src_result));
      parts.push_back(ops::gather(parts[4], dim, index, false));
      grad_src = elementwise({single_zero, parts[5], parts[3]}, src.dtype());
      while (!parts.empty()) parts.pop_back();
    }
  }
  if (!include_self && reduce != "sum") {
    Tensor filled = empty(grad_self.sizes(), grad_self.dtype());
    grad_self = filled;
  } else if (!include_self) {
    grad_self = empty(grad.sizes(), grad.dtype());
  }
  if (w.needs(0)) w.out[0] = grad_self;
  if (w.needs(1)) w.out[1] = grad_src;
}
Tensor scatter_reduce_any(T self, I dim, T index, T src, const std::string& reduce, bool include_self, bool in_place) {
  check_scatter("scatter_reduce", self, dim, index);
  if (reduce != "sum" && reduce != "prod" && reduce != "mean" && reduce != "amax" && reduce != "amin")
    throw Error("reduce argument must be either sum, prod, mean, amax or amin, got '" + reduce + "'");
  const bool wanted = runtime().grad_mode && (self.requires_grad() || src.requires_grad());
  Tensor original = in_place && wanted ? ops::clone(self, std::nullopt) : Tensor(self);
  auto fn = node("ScatterReduceBackward0", {self, src}, {index, original, src},
                 [dim, reduce, include_self](Backward& w, T i, T s, T from, T result) {
                   scatter_reduce_formula(w, dim, reduce, include_self, i, s, from, result);
                 });
  original.reset();
  Tensor y = in_place ? Tensor(self) : empty(self.sizes(), self.dtype());
  if (reduce == "mean") {
    NoGrad below;
    Tensor ones = empty_like(src);
    Tensor count = empty_like(y);
    { Tensor none = elementwise({count}, DType::boolean); }
    count.reset();
    ones.reset();
  }
  if (in_place)
    fn.in_place(self, {self});
  else
    fn.outputs({y}, {y});
  return y;
}
Tensor scatter_reduce(T self, I dim, T index, T src, const std::string& reduce, bool include_self) {
  return scatter_reduce_any(self, dim, index, src, reduce, include_self, false);
}
Tensor scatter_reduce_(T self, I dim, T index, T src, const std::string& reduce, bool include_self) {
  return scatter_reduce_any(self, dim, index, src, reduce, include_self, true);
}

constexpr const char* kScatter = "derivatives.yaml scatter; native/TensorAdvancedIndexing.cpp";
const Op scatter_src_op{{"aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", Autocast::none, "index", kScatter},
                        scatter_src};
const Op scatter_src_in_place_op{
    {"aten::scatter_.src(Tensor(a!) self, int dim, Tensor index, Tensor src) -> Tensor(a!)", Autocast::none, "index", kScatter},
    scatter_src_};
const Op scatter_value_op{
    {"aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", Autocast::none, "index", kScatter}, scatter_value};
const Op scatter_value_in_place_op{
    {"aten::scatter_.value(Tensor(a!) self, int dim, Tensor index, Scalar value) -> Tensor(a!)", Autocast::none, "index", kScatter},
    scatter_value_};
const Op scatter_add_in_place_op{{"aten::scatter_add_(Tensor(a!) self, int dim, Tensor index, Tensor src) -> Tensor(a!)", Autocast::none,
                                  "index", "derivatives.yaml scatter_add"},
                                 scatter_add_};
const Op scatter_reduce_op{
    {"aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor",
     Autocast::none, "index, self, src, result", "derivatives.yaml scatter_reduce; FunctionsManual.cpp scatter_reduce_backward"},
    scatter_reduce};
const Op scatter_reduce_in_place_op{
    {"aten::scatter_reduce_.two(Tensor(a!) self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor(a!)",
     Autocast::none, "index, self, src, result", "derivatives.yaml scatter_reduce; FunctionsManual.cpp scatter_reduce_backward"},
    scatter_reduce_};
}  // namespace

namespace ops {
const Op<Tensor(T, I, T, bool)> gather{{"aten::gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor",
                                        Autocast::none, "index, self", "derivatives.yaml gather; native/cuda/ScatterGatherKernel.cu"},
                                       memest::gather};
const Op<Tensor(T, I, T, T)> scatter_add{{"aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", Autocast::promote,
                                          "index", "derivatives.yaml scatter_add"},
                                         memest::scatter_add};
}  // namespace ops
}  // namespace memest
