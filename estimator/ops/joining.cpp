// Joining, repeating and rearranging: hstack and its kin, repeat, tile, meshgrid, roll, flip, tril, one_hot.
// Sources: derivatives.yaml; FunctionsManual.cpp; aten/src/ATen/native/{TensorShape,TensorTransformations,Repeat,Onehot,Itertools}.cpp,
// native/cuda/{TensorTransformations,TriangularOps}.cu of 2.15.
#include <fmt/format.h>

#include <algorithm>

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/indexing.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

// ---- stacks ----------------------------------------------------------------------------------------------------------------

Tensors at_least(const Tensors& tensors, const char* op) {
  Tensors out;
  for (auto& x : tensors) out.push_back(Unbox<Tensor>::from(call_op(op, {x}, {})));
  return out;
}
Tensor hstack(const Tensors& tensors) {
  if (tensors.empty()) throw Error("hstack expects a non-empty TensorList");
  const Tensors rows = at_least(tensors, "aten::atleast_1d");
  return ops::cat(rows, rows[0].dim() == 1 ? 0 : 1);
}
Tensor vstack(const Tensors& tensors) {
  if (tensors.empty()) throw Error("vstack expects a non-empty TensorList");
  return ops::cat(at_least(tensors, "aten::atleast_2d"), 0);
}
Tensor dstack(const Tensors& tensors) {
  if (tensors.empty()) throw Error("dstack expects a non-empty TensorList");
  return ops::cat(at_least(tensors, "aten::atleast_3d"), 2);
}
Tensor column_stack(const Tensors& tensors) {
  if (tensors.empty()) throw Error("column_stack expects a non-empty TensorList");
  Tensors columns;
  for (auto& x : tensors) columns.push_back(x.dim() <= 1 ? ops::reshape(x, {x.numel(), 1}) : x);
  return hstack(columns);
}
Tensor concatenated(const Tensors& tensors, I dim) { return ops::cat(tensors, dim); }
constexpr const char* kStack = "aten/src/ATen/native/TensorShape.cpp";
const Op concat_op{{"aten::concat(Tensor[] tensors, int dim=0) -> Tensor", Autocast::none, "", kStack}, concatenated};
const Op concatenate_op{{"aten::concatenate(Tensor[] tensors, int dim=0) -> Tensor", Autocast::none, "", kStack}, concatenated};
const Op hstack_op{{"aten::hstack(Tensor[] tensors) -> Tensor", Autocast::none, "", kStack}, hstack};
const Op vstack_op{{"aten::vstack(Tensor[] tensors) -> Tensor", Autocast::none, "", kStack}, vstack};
const Op row_stack_op{{"aten::row_stack(Tensor[] tensors) -> Tensor", Autocast::none, "", kStack}, vstack};
const Op dstack_op{{"aten::dstack(Tensor[] tensors) -> Tensor", Autocast::none, "", kStack}, dstack};
const Op column_stack_op{{"aten::column_stack(Tensor[] tensors) -> Tensor", Autocast::none, "", kStack}, column_stack};

Tensor block_diag(const Tensors& tensors) {
  I rows = 0, columns = 0;
  ResultType type;
  std::vector<std::pair<I, I>> sizes;
  for (auto& x : tensors) {
    if (x.dim() > 2) throw Error("torch.block_diag: input tensors must have 2 or fewer dimensions, found " + describe(x));
    const I r = x.dim() == 2 ? x.sizes()[0] : 1, c = x.dim() == 0 ? 1 : x.sizes().back();
    sizes.emplace_back(r, c);
    rows = checked_add(rows, r), columns = checked_add(columns, c);
    type.add(x);
  }
  auto fn = node("BlockDiagBackward0", std::span<const Tensor>(tensors), {}, [sizes](Backward& w) {
    I row = 0, column = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (w.needs(int(i)))
        w.out[i] = ops::slice(ops::slice(w.grad[0], 0, row, row + sizes[i].first, 1), 1, column, column + sizes[i].second, 1);
      row += sizes[i].first, column += sizes[i].second;
    }
  });
  Tensor y = empty({rows, columns}, type.get());
  fn.outputs({y});
  return y;
}
const Op block_diag_op{
    {"aten::block_diag(Tensor[] tensors) -> Tensor", Autocast::none, "", "derivatives.yaml block_diag; native/TensorShape.cpp"},
    block_diag};

// ---- repeats -----------------------------------------------------------------------------------------------------------------

/// FunctionsManual.cpp repeat_backward.
Tensor repeat_gradient(Tensor grad, const Dims& repeats, const Dims& sizes) {
  for (I r : repeats)
    if (r == 0) return ops::zeros(sizes, grad.dtype());
  const int extra = grad.dim() - sizes.size();
  if (extra > 0) {
    Dims leading;
    for (int i = 0; i < extra; ++i) leading.push_back(i);
    grad = ops::sum_dim(grad, leading, false, std::nullopt);
  }
  Dims split, dims;
  for (int i = 0; i < sizes.size(); ++i) {
    const I r = repeats[i + extra];
    if (r != 1) {
      dims.push_back(split.size());
      split.push_back(r);
    }
    split.push_back(sizes[i]);
  }
  if (dims.empty()) return grad;
  Tensor shaped = ops::reshape(grad, split);
  return ops::sum_dim(shaped, dims, false, std::nullopt);
}
Tensor repeat(T self, const Dims& repeats) {
  if (repeats.size() < self.dim())
    throw Error("repeat: number of dimensions of repeat dims " + to_string(repeats) + " can not be smaller than that of " + describe(self));
  const int extra = repeats.size() - self.dim();
  Dims sizes;
  for (int i = 0; i < repeats.size(); ++i) {
    if (repeats[i] < 0) throw Error("repeat: negative repeats are not allowed, found " + to_string(repeats));
    sizes.push_back(checked_mul(repeats[i], i < extra ? 1 : self.sizes()[i - extra]));
  }
  auto fn = node("RepeatBackward0", {self}, {}, [repeats](Backward& w) { w.out[0] = repeat_gradient(w.grad[0], repeats, w.sizes(0)); });
  Tensor y = empty(sizes, self.dtype());
  fn.outputs({y});
  return y;
}
const Op<Tensor(T, const Dims&)> repeat_op{
    {"aten::repeat(Tensor self, SymInt[] repeats) -> Tensor", Autocast::none, "", "derivatives.yaml repeat; native/TensorShape.cpp"},
    repeat};
const Op tile_op{{"aten::tile(Tensor self, SymInt[] dims) -> Tensor", Autocast::none, "", "native/TensorShape.cpp tile"},
                 +[](T self, const Dims& dims) {
                   Dims repeats = Dims::filled(std::max(0, self.dim() - dims.size()), 1) + dims;
                   return repeat_op(self, repeats);
                 }};
Tensor repeat_interleave(T self_, I repeats, std::optional<I> dim, std::optional<I>) {
  if (repeats < 0) throw Error("repeats can not be negative");
  Tensor self = dim ? self_ : ops::flatten(self_, 0, -1);
  const int d = wrap_dim(dim.value_or(0), self.dim());
  if (self.dim() == 0) self = ops::unsqueeze(self, 0);
  Dims sizes = self.sizes();
  sizes.insert(d + 1, repeats);
  Tensor copy = ops::clone(ops::expand(ops::unsqueeze(self, d + 1), sizes, false), MemoryFormat::contiguous);
  return ops::flatten(copy, d, d + 1);
}
const Op repeat_interleave_op{
    {"aten::repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor", Autocast::none,
     "", "native/Repeat.cpp"},
    repeat_interleave};
Tensor repeat_interleave_positions(T repeats, std::optional<I> output_size) {
  if (repeats.dim() != 1) throw Error("repeat_interleave only accept 1D vector as repeat");
  if (!output_size) ops::note_data_dependent("aten::repeat_interleave", "each element is repeated once");
  NoGrad below;
  Tensor contiguous = ops::contiguous(repeats, MemoryFormat::contiguous);
  const Tensor ends = Unbox<Tensor>::from(call_op("aten::cumsum", {repeats, I{0}}, {}));
  call_op("aten::min", {repeats}, {});  // none is negative
  return empty({output_size.value_or(repeats.numel())}, repeats.dtype());
}
const Op repeat_interleave_tensor_op{
    {"aten::repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor", Autocast::none, "", "native/cuda/Repeat.cu"},
    repeat_interleave_positions};

// ---- grids ---------------------------------------------------------------------------------------------------------------------

Tensors meshgrid(const Tensors& tensors, const std::string& indexing) {
  if (indexing != "ij" && indexing != "xy")
    throw Error("torch.meshgrid: indexing must be one of \"xy\" or \"ij\", but received: " + indexing);
  if (tensors.empty()) throw Error("meshgrid expects a non-empty TensorList");
  Tensors in = tensors;
  const bool swap = indexing == "xy" && in.size() >= 2;
  if (swap) std::swap(in[0], in[1]);
  Dims sizes;
  for (auto& x : in) {
    if (x.dim() > 1) throw Error("torch.meshgrid: expected scalar or 1D tensors, found " + describe(x));
    sizes.push_back(x.numel());
  }
  Tensors grids;
  for (std::size_t i = 0; i < in.size(); ++i) {
    Dims view = Dims::filled(int(in.size()), 1);
    view[int(i)] = sizes[int(i)];
    grids.push_back(ops::expand(ops::view(in[i], view), sizes, false));
  }
  if (swap) {
    for (auto& g : grids) g = ops::transpose(g, 0, 1);
    std::swap(grids[0], grids[1]);
  }
  return grids;
}
const Op meshgrid_indexing_op{
    {"aten::meshgrid.indexing(Tensor[] tensors, *, str indexing) -> Tensor[]", Autocast::none, "", "native/TensorShape.cpp meshgrid"},
    meshgrid};
const Op meshgrid_op{{"aten::meshgrid(Tensor[] tensors) -> Tensor[]", Autocast::none, "", "native/TensorShape.cpp meshgrid"},
                     +[](const Tensors& tensors) { return meshgrid(tensors, "ij"); }};
const Op cartesian_prod_op{{"aten::cartesian_prod(Tensor[] tensors) -> Tensor", Autocast::none, "", "native/Itertools.cpp"},
                           +[](const Tensors& tensors) {
                             if (tensors.size() == 1) return tensors[0];
                             Tensors grids = meshgrid(tensors, "ij");
                             for (auto& g : grids) g = ops::flatten(g, 0, -1);
                             return ops::stack(grids, 1);
                           }};

// ---- rearranging -----------------------------------------------------------------------------------------------------------------

Tensor rolled(T self, const Dims& shifts, const Dims& dims) {
  if (dims.size() == 1 && shifts.size() == 1) {  // roll_cuda
    Tensor in = ops::contiguous_tensor(self);
    return empty(self.sizes(), self.dtype());
  }
  if (shifts.empty()) throw Error("roll: `shifts` required");
  if (dims.empty() && shifts.size() == 1) {
    Tensor flat = ops::reshape(self, {self.numel()});
    Tensor y = rolled(flat, shifts, {0});
    return ops::view(y, self.sizes());
  }
  if (shifts.size() != dims.size())
    throw Error("roll: shifts and dimensions must align, found " + to_string(shifts) + " and " + to_string(dims));
  Tensor first = rolled(self, {shifts[0]}, {dims[0]});
  return rolled(first, shifts.slice(1, shifts.size()), dims.slice(1, dims.size()));
}
Tensor roll(T self, const Dims& shifts, const Dims& dims) {
  for (I d : dims) wrap_dim(d, self.dim());
  Dims back_shifts, back_dims;
  for (int i = shifts.size(); i-- > 0;) back_shifts.push_back(-shifts[i]);
  for (int i = dims.size(); i-- > 0;) back_dims.push_back(dims[i]);
  auto fn =
      node("RollBackward0", {self}, {}, [back_shifts, back_dims](Backward& w) { w.out[0] = rolled(w.grad[0], back_shifts, back_dims); });
  Tensor y;
  {
    NoGrad below;
    y = rolled(self, shifts, dims);
  }
  fn.outputs({y});
  return y;
}
const Op roll_op{{"aten::roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor", Autocast::none, "",
                  "derivatives.yaml roll; native/cuda/TensorTransformations.cu"},
                 roll};

Tensor flip(T self, const Dims& dims) {
  reduction_mask(dims, self.dim());
  auto fn = node("FlipBackward0", {self}, {}, [](Backward& w) { w.out[0] = empty_like(w.grad[0]); });
  Tensor y = empty_like(self);
  fn.outputs({y});
  return y;
}
const Op<Tensor(T, const Dims&)> flip_op{
    {"aten::flip(Tensor self, int[] dims) -> Tensor", Autocast::none, "", "derivatives.yaml flip; native/TensorTransformations.cpp"}, flip};
const Op fliplr_op{{"aten::fliplr(Tensor self) -> Tensor", Autocast::none, "", "native/TensorTransformations.cpp"},
                   +[](T self) { return flip_op(self, {1}); }};
const Op flipud_op{{"aten::flipud(Tensor self) -> Tensor", Autocast::none, "", "native/TensorTransformations.cpp"},
                   +[](T self) { return flip_op(self, {0}); }};

Tensor rotated(T x, I k, int a, int b) {
  k = ((k % 4) + 4) % 4;
  if (k == 0) return empty(x.sizes(), x.dtype());
  Tensor flipped = empty_like(x);
  return k == 2 ? flipped : ops::transpose(flipped, a, b);
}
Tensor rot90(T self, I k, const Dims& dims) {
  if (dims.size() != 2 || self.dim() < 2)
    throw Error("rot90: expected total rotation dims == 2 and at least 2 dimensions, found " + to_string(dims) + " for " + describe(self));
  const int a = wrap_dim(dims[0], self.dim()), b = wrap_dim(dims[1], self.dim());
  if (a == b) throw Error("rot90: expected rotation dims to be different, found " + to_string(dims));
  auto fn = node("Rot90Backward0", {self}, {}, [k, a, b](Backward& w) { w.out[0] = rotated(w.grad[0], -k, a, b); });
  Tensor y;
  {
    NoGrad below;
    y = rotated(self, k, a, b);
  }
  y->base.reset();
  fn.outputs({y});
  return y;
}
const Op rot90_op{{"aten::rot90(Tensor self, int k=1, int[] dims=[0,1]) -> Tensor", Autocast::none, "",
                   "derivatives.yaml rot90; native/TensorTransformations.cpp"},
                  rot90};

// ---- triangles -------------------------------------------------------------------------------------------------------------------

Tensor triangle(const char* name, T self) {
  if (self.dim() < 2) throw Error("tril and triu: input tensor must have at least 2 dimensions, found " + describe(self));
  auto fn = node(name, {self}, {}, [](Backward& w) { w.out[0] = empty(w.grad[0].sizes(), w.grad[0].dtype()); });
  Tensor y = empty(self.sizes(), self.dtype());
  fn.outputs({y});
  return y;
}
Tensor triangle_(const char* name, T self) {
  if (self.dim() < 2) throw Error("tril_ and triu_: input tensor must have at least 2 dimensions, found " + describe(self));
  auto fn = node(name, {self}, {}, [](Backward& w) { w.out[0] = empty(w.grad[0].sizes(), w.grad[0].dtype()); });
  fn.in_place(self);
  return self;
}
constexpr const char* kTriangle = "derivatives.yaml tril, triu; native/cuda/TriangularOps.cu";
const Op tril_op{{"aten::tril(Tensor self, SymInt diagonal=0) -> Tensor", Autocast::none, "", kTriangle},
                 +[](T self, I) { return triangle("TrilBackward0", self); }};
const Op triu_op{{"aten::triu(Tensor self, SymInt diagonal=0) -> Tensor", Autocast::none, "", kTriangle},
                 +[](T self, I) { return triangle("TriuBackward0", self); }};
const Op tril_in_place_op{{"aten::tril_(Tensor(a!) self, SymInt diagonal=0) -> Tensor(a!)", Autocast::none, "", kTriangle},
                          +[](T self, I) { return triangle_("TrilBackward0", self); }};
const Op triu_in_place_op{{"aten::triu_(Tensor(a!) self, SymInt diagonal=0) -> Tensor(a!)", Autocast::none, "", kTriangle},
                          +[](T self, I) { return triangle_("TriuBackward0", self); }};

// native/Onehot.cpp: zeros, then scatter_
Tensor one_hot(T self, I num_classes) {
  if (self.dtype() != DType::int64) throw Error("one_hot is only applicable to index tensors of type int64, found " + describe(self));
  if (num_classes <= 0)
    throw Error("one_hot: without num_classes the result's size depends on values, which memest does not have", "give num_classes");
  return ops::zeros(self.sizes() + Dims{num_classes}, DType::int64);
}
const Op one_hot_op{{"aten::one_hot(Tensor self, int num_classes=-1) -> Tensor", Autocast::none, "", "native/Onehot.cpp"}, one_hot};

}  // namespace
}  // namespace memest
