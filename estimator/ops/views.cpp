#include "ops/views.h"

#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"

namespace memest {
namespace {
using I = std::int64_t;

constexpr I kMostPieces = 1'000'000;  // of a split: more is no model that anyone runs

/// at::infer_size: fills in a -1.
Dims inferred(T x, Dims to) {
  I known = 1;
  int hole = -1;
  for (int i = 0; i < to.size(); ++i) {
    if (to[i] == -1) {
      if (hole >= 0) throw Error("only one dimension can be inferred in " + to_string(to));
      hole = i;
    } else if (to[i] < 0) {
      throw Error("invalid shape dimension " + std::to_string(to[i]));
    } else {
      known = checked_mul(known, to[i]);
    }
  }
  const I numel = x.numel();
  const bool fits = hole >= 0 ? known > 0 && numel % known == 0 : known == numel;
  if (!fits) throw Error("shape " + to_string(to) + " is invalid for input of size " + std::to_string(numel) + ", " + describe(x));
  if (hole >= 0) to[hole] = numel / known;
  return to;
}

Tensor view_of(const char* name, T self, const Dims& sizes, const Dims& strides) {
  auto fn = node(name, {self}, {}, [](Backward& w) { w.out[0] = ops::reshape(w.grad[0], w.sizes(0)); });
  Tensor y = make_view(self, sizes, strides, self->offset);
  fn.outputs({y});
  return y;
}

Tensor view(T self, const Dims& size) {
  const Dims to = inferred(self, size);
  auto strides = view_strides(self.sizes(), self.strides(), to);
  if (!strides)
    throw Error(fmt::format("view size {} is not compatible with the input's size {} and stride {}", to_string(to), to_string(self.sizes()),
                            to_string(self.strides())),
                "use reshape");
  return view_of("ViewBackward0", self, to, *strides);
}

// _unsafe_view: the result's owner is given up, so it is no view
Tensor unsafe_view(T self, const Dims& size) {
  const Dims to = inferred(self, size);
  auto fn = node("UnsafeViewBackward0", {self}, {}, [](Backward& w) { w.out[0] = ops::reshape(w.grad[0], w.sizes(0)); });
  auto strides = view_strides(self.sizes(), self.strides(), to);
  if (!strides) throw Error("_unsafe_view of incompatible strides");
  Tensor y = share(self, to, *strides, self->offset);
  fn.outputs({y});
  return y;
}

Tensor reshape(T self, const Dims& shape) {
  const Dims to = inferred(self, shape);
  if (auto strides = view_strides(self.sizes(), self.strides(), to)) return ops::view(self, to);
  return ops::unsafe_view(ops::clone(self, MemoryFormat::contiguous), to);
}

Tensor flatten(T self, I start_dim, I end_dim) {
  const int start = wrap_dim(start_dim, self.dim()), end = wrap_dim(end_dim, self.dim());
  if (start > end) throw Error("flatten() has invalid args: start_dim cannot come after end_dim");
  if (self.dim() == 0) return ops::reshape(self, {1});
  if (start == end) return self;
  Dims to = self.sizes().slice(0, start);
  to.push_back(self.sizes().slice(start, end + 1).numel());
  return ops::reshape(self, to + self.sizes().slice(end + 1, self.dim()));
}

Tensor unflatten(T self, I dim, const Dims& sizes) {
  const int d = wrap_dim(dim, self.dim());
  Dims to = self.sizes().slice(0, d) + sizes + self.sizes().slice(d + 1, self.dim());
  return ops::view(self, to);
}

Tensor permuted(const char* name, T self, std::vector<int> order) {
  Dims sizes, strides;
  for (int d : order) sizes.push_back(self.sizes()[d]), strides.push_back(self.strides()[d]);
  std::vector<int> inverse(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) inverse[std::size_t(order[i])] = int(i);
  auto fn = node(name, {self}, {}, [inverse, name](Backward& w) { w.out[0] = permuted(name, w.grad[0], inverse); });
  Tensor y = make_view(self, sizes, strides, self->offset);
  fn.outputs({y});
  return y;
}

Tensor transpose(T self, I dim0, I dim1) {
  std::vector<int> order(std::size_t(self.dim()));
  for (int i = 0; i < self.dim(); ++i) order[std::size_t(i)] = i;
  const int a = wrap_dim(dim0, self.dim()), b = wrap_dim(dim1, self.dim());
  if (self.dim() > 0) std::swap(order[std::size_t(a)], order[std::size_t(b)]);
  return permuted("TransposeBackward0", self, order);
}
Tensor t(T self) {
  if (self.dim() > 2) throw Error("t() expects a tensor with <= 2 dimensions, but self is " + std::to_string(self.dim()) + "D");
  return self.dim() < 2 ? permuted("TBackward0", self, self.dim() ? std::vector<int>{0} : std::vector<int>{})
                        : permuted("TBackward0", self, {1, 0});
}
Tensor matrix_transpose(T self) {
  if (self.dim() < 2) throw Error("mT needs at least 2 dimensions, found " + describe(self));
  return ops::transpose(self, -2, -1);
}
Tensor permute(T self, const Dims& dims) {
  if (dims.size() != self.dim())
    throw Error("permute(dims): " + to_string(dims) + " for a tensor of " + std::to_string(self.dim()) + " dimensions");
  std::vector<int> order;
  std::vector<bool> seen(std::size_t(self.dim()));
  for (I d : dims) {
    const int i = wrap_dim(d, self.dim());
    if (seen[std::size_t(i)]) throw Error("permute(dims): duplicate dims are not allowed: " + to_string(dims));
    seen[std::size_t(i)] = true;
    order.push_back(i);
  }
  return permuted("PermuteBackward0", self, order);
}

Tensor expand(T self, const Dims& size, bool) {
  const int extra = size.size() - self.dim();
  if (extra < 0)
    throw Error("expand: the number of sizes " + to_string(size) + " must be at least the number of dimensions of " + describe(self));
  Dims to = size, strides = Dims::filled(size.size(), 0);
  for (int i = 0; i < size.size(); ++i) {
    const I own = i < extra ? 1 : self.sizes()[i - extra];
    if (to[i] == -1) {
      if (i < extra) throw Error("expand: -1 is not allowed in a leading, non-existing dimension");
      to[i] = own;
    }
    if (own != 1 && own != to[i])
      throw Error("expand: the expanded size " + to_string(size) + " must match the existing sizes of " + describe(self));
    strides[i] = i < extra || (own == 1 && to[i] != 1) ? 0 : self.strides()[i - extra];
  }
  auto fn = node("ExpandBackward0", {self}, {}, [](Backward& w) { w.out[0] = engine_ops.sum_to_size(w.grad[0], w.sizes(0)); });
  Tensor y = make_view(self, to, strides, self->offset);
  fn.outputs({y});
  return y;
}
Tensor expand_as(T self, T other) { return ops::expand(self, other.sizes(), false); }

Tensor unsqueeze(T self, I dim) {
  const int d = wrap_dim(dim, self.dim() + 1);
  Dims sizes = self.sizes(), strides = self.strides();
  const I stride = d < self.dim() ? sizes[d] * strides[d] : 1;
  sizes.insert(d, 1);
  strides.insert(d, stride);
  auto fn = node("UnsqueezeBackward0", {self}, {}, [d](Backward& w) { w.out[0] = ops::squeeze_dim(w.grad[0], d); });
  Tensor y = make_view(self, sizes, strides, self->offset);
  fn.outputs({y});
  return y;
}

Tensor squeezed(const char* name, T self, const std::vector<bool>& mask) {
  Dims sizes, strides;
  for (int i = 0; i < self.dim(); ++i)
    if (!(mask[std::size_t(i)] && self.sizes()[i] == 1)) sizes.push_back(self.sizes()[i]), strides.push_back(self.strides()[i]);
  Dims lost;
  for (int i = 0; i < self.dim(); ++i)
    if (mask[std::size_t(i)] && self.sizes()[i] == 1) lost.push_back(i);
  auto fn = node(name, {self}, {}, [lost](Backward& w) {  // unsqueeze_to
    w.out[0] = w.grad[0];
    for (I d : lost) w.out[0] = ops::unsqueeze(w.out[0], d);
  });
  Tensor y = make_view(self, sizes, strides, self->offset);
  fn.outputs({y});
  return y;
}
Tensor squeeze(T self) { return squeezed("SqueezeBackward0", self, std::vector<bool>(std::size_t(self.dim()), true)); }
Tensor squeeze_dim(T self, I dim) { return squeezed("SqueezeBackward1", self, reduction_mask(Dims{dim}, self.dim())); }
Tensor squeeze_dims(T self, const Dims& dim) {
  if (dim.empty()) return squeezed("SqueezeBackward2", self, std::vector<bool>(std::size_t(self.dim()), false));
  return squeezed("SqueezeBackward2", self, reduction_mask(dim, self.dim()));
}

/// A part of self; in backward zeros of self's size with the part's gradient copied in.
Tensor part(const char* name, T self, const Dims& sizes, const Dims& strides, I offset) {
  auto fn = node(name, {self}, {}, [](Backward& w) { w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype()); });
  Tensor y = make_view(self, sizes, strides, offset);
  fn.outputs({y});
  return y;
}

Tensor select(T self, I dim, I index) {
  if (self.dim() == 0) throw Error("select() cannot be applied to a 0-dim tensor");
  const int d = wrap_dim(dim, self.dim());
  const I n = self.sizes()[d];
  if (index < -n || index >= n)
    throw Error(fmt::format("select(): index {} out of range for tensor of size {} at dimension {}", index, to_string(self.sizes()), d));
  Dims sizes = self.sizes(), strides = self.strides();
  const I offset = self->offset + (index < 0 ? index + n : index) * strides[d];
  sizes.erase(d);
  strides.erase(d);
  return part("SelectBackward0", self, sizes, strides, offset);
}

Tensor slice(T self, I dim, std::optional<I> start, std::optional<I> end, I step) {
  if (self.dim() == 0) throw Error("slice() cannot be applied to a 0-dim tensor");
  if (step <= 0) throw Error("slice step must be positive");
  const int d = wrap_dim(dim, self.dim());
  const I n = self.sizes()[d];
  auto clamped = [n](I v) { return std::clamp<I>(v < 0 ? v + n : v, 0, n); };
  const I from = clamped(start.value_or(0)), to = std::max(from, clamped(end.value_or(n)));
  Dims sizes = self.sizes(), strides = self.strides();
  const I offset = self->offset + from * strides[d];
  sizes[d] = (to - from) / step + ((to - from) % step != 0);
  strides[d] = checked_mul(strides[d], step);
  return part("SliceBackward0", self, sizes, strides, offset);
}
Tensor narrow(T self, I dim, I start, I length) {
  const int d = wrap_dim(dim, self.dim());
  const I n = self.size(d), from = start < 0 ? start + n : start;
  if (length < 0 || from < 0 || from > n - length)
    throw Error(fmt::format("narrow(): start ({}) + length ({}) exceeds dimension size ({})", start, length, n));
  return ops::slice(self, d, from, from + length, 1);
}

/// Pieces of one dimension with these lengths, outputs of one node.
Tensors split_pieces(const char* name, T self, int d, const Dims& lengths) {
  auto fn = node(name, {self}, {}, [d, dtype = self.dtype(), lengths, sizes = self.sizes()](Backward& w) {  // split_with_sizes_backward
    Tensors pieces;
    for (std::size_t i = 0; i < w.grad.size(); ++i) {
      if (w.grad[i]) {
        pieces.push_back(w.grad[i]);
        continue;
      }
      Dims missing = sizes;
      missing[d] = lengths[int(i)];
      pieces.push_back(ops::zeros(missing, dtype));
    }
    w.out[0] = ops::cat(pieces, d);
  });
  Tensors pieces;
  I offset = self->offset;
  for (I length : lengths) {
    Dims sizes = self.sizes();
    sizes[d] = length;
    pieces.push_back(make_view(self, sizes, self.strides(), offset));
    offset += length * self.strides()[d];
  }
  fn.outputs(std::span<const Tensor>(pieces));
  return pieces;
}

Tensors split(T self, I split_size, I dim) {
  if (self.dim() == 0) throw Error("split expects at least a 1-dimensional tensor");
  const int d = wrap_dim(dim, self.dim());
  const I n = self.sizes()[d];
  if (split_size < 0 || (split_size == 0 && n != 0))
    throw Error("split expects split_size be non-negative, but got " + std::to_string(split_size));
  const I count = split_size ? std::max<I>(1, ceil_div(n, split_size)) : 1;
  if (count > kMostPieces) throw Error(fmt::format("split makes {} pieces", count));
  Dims lengths;
  for (I i = 0; i < count; ++i) lengths.push_back(i + 1 < count ? split_size : n - split_size * (count - 1));
  return split_pieces("SplitBackward0", self, d, lengths);
}
Tensors split_with_sizes(T self, const Dims& split_sizes, I dim) {
  const int d = wrap_dim(dim, self.dim());
  I total = 0;
  for (I s : split_sizes) total = checked_add(total, s);
  if (total != self.size(d))
    throw Error(fmt::format("split_with_sizes expects split_sizes to sum to {}, but got {}", self.size(d), to_string(split_sizes)));
  return split_pieces("SplitWithSizesBackward0", self, d, split_sizes);
}
Tensors split_sizes(T self, const Dims& split_size, I dim) { return ops::split_with_sizes(self, split_size, dim); }
Tensors chunk(T self, I chunks, I dim) {
  if (chunks <= 0) throw Error("chunk expects `chunks` to be greater than 0, got: " + std::to_string(chunks));
  const I n = self.size(dim), length = ceil_div(n, chunks);
  if (length == 0) return ops::split_with_sizes(self, Dims::filled(int(std::min<I>(chunks, kMostPieces)), 0), dim);
  return ops::split(self, length, dim);
}

Tensors unbind(T self, I dim) {
  if (self.dim() == 0) throw Error("Dimension specified as 0 but tensor has no dimensions");
  const int d = wrap_dim(dim, self.dim());
  const I n = self.size(d);
  if (n > kMostPieces) throw Error(fmt::format("unbind makes {} pieces", n));
  Dims sizes = self.sizes(), strides = self.strides();
  const I step = strides[d];
  sizes.erase(d);
  strides.erase(d);
  auto fn = node("UnbindBackward0", {self}, {}, [d, sizes, dtype = self.dtype()](Backward& w) {
    Tensors pieces;
    for (auto& g : w.grad) pieces.push_back(g ? g : ops::expand(ops::scalar_tensor(dtype), sizes, false));
    w.out[0] = ops::stack(pieces, d);
  });
  Tensors pieces;
  for (I i = 0; i < n; ++i) pieces.push_back(make_view(self, sizes, strides, self->offset + i * step));
  fn.outputs(std::span<const Tensor>(pieces));
  return pieces;
}

// aten/src/ATen/native/TensorShape.cpp: channels_last only where every input is
MemoryFormat cat_memory_format(const Tensors& tensors) {
  std::optional<MemoryFormat> format;
  for (auto& x : tensors) {
    const MemoryFormat f = suggest_memory_format(x);
    if (f == MemoryFormat::contiguous || (format && *format != f)) return MemoryFormat::contiguous;
    format = f;
  }
  return format.value_or(MemoryFormat::contiguous);
}

bool skipped(T x) { return x.dim() == 1 && x.sizes()[0] == 0; }  // legacy: an empty 1-d tensor joins any cat

Tensor cat(const Tensors& tensors, I dim) {
  if (tensors.empty()) throw Error("torch.cat(): expected a non-empty list of Tensors");
  const Tensor* like = nullptr;
  ResultType type;
  for (auto& x : tensors) {
    if (!x) throw Error("torch.cat(): a tensor is missing");
    if (!like && !skipped(x)) like = &x;
    type.add(x);
  }
  if (!like) return empty({0}, type.get());
  if (like->dim() == 0) throw Error("zero-dimensional tensor cannot be concatenated");
  const int d = wrap_dim(dim, like->dim());
  Dims sizes = like->sizes();
  sizes[d] = 0;
  Tensors real;
  for (auto& x : tensors) {
    if (skipped(x)) continue;
    for (int i = 0; i < std::max(sizes.size(), x.dim()); ++i)
      if (x.dim() != sizes.size() || (i != d && x.sizes()[i] != sizes[i]))
        throw Error(fmt::format("sizes of tensors must match except in dimension {}: {} and {}", d, to_string(like->sizes()),
                                to_string(x.sizes())));
    sizes[d] = checked_add(sizes[d], x.sizes()[d]);
    real.push_back(x);
  }
  Dims lengths;
  for (auto& x : tensors) lengths.push_back(skipped(x) ? 0 : x.sizes()[d]);
  auto fn = node("CatBackward0", std::span<const Tensor>(tensors), {}, [d, lengths](Backward& w) {
    I start = 0;
    for (std::size_t i = 0; i < w.out.size(); ++i) {
      if (w.needs(int(i)))
        w.out[i] = w.sizes(int(i)) == Dims{0} ? ops::zeros({0}, w.grad[0].dtype()) : ops::narrow(w.grad[0], d, start, lengths[int(i)]);
      start += lengths[int(i)];
    }
  });
  Tensor y = empty(sizes, type.get(), cat_memory_format(real));
  fn.outputs({y});
  return y;
}

Tensor stack(const Tensors& tensors, I dim) {
  if (tensors.empty()) throw Error("stack expects a non-empty TensorList");
  const int d = wrap_dim(dim, tensors[0].dim() + 1);
  ResultType type;
  for (auto& x : tensors) {
    if (!(x.sizes() == tensors[0].sizes()))
      throw Error("stack expects each tensor to be equal size, but got " + to_string(tensors[0].sizes()) + " and " + to_string(x.sizes()));
    type.add(x);
  }
  auto fn = node("StackBackward0", std::span<const Tensor>(tensors), {}, [d](Backward& w) {
    Tensors pieces = ops::unbind(w.grad[0], d);
    for (std::size_t i = 0; i < w.out.size(); ++i)
      if (w.needs(int(i))) w.out[i] = pieces[i];
  });
  Dims sizes = tensors[0].sizes();
  sizes.insert(d, I(tensors.size()));
  Tensor y = empty(sizes, type.get());
  fn.outputs({y});
  return y;
}

constexpr const char* kShape = "aten/src/ATen/native/TensorShape.cpp";
}  // namespace

namespace ops {
const Op<Tensor(T, const Dims&)> view{{"aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)", Autocast::none, "", kShape}, memest::view};
const Op<Tensor(T, const Dims&)> reshape{{"aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)", Autocast::none, "", kShape},
                                         memest::reshape};
const Op<Tensor(T, const Dims&)> unsafe_view{{"aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor", Autocast::none, "", kShape},
                                             memest::unsafe_view};
const Op<Tensor(T, I, I)> flatten{
    {"aten::flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)", Autocast::none, "", kShape},
    memest::flatten};
const Op<Tensor(T, I, I)> transpose{{"aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", Autocast::none, "", kShape},
                                    memest::transpose};
const Op<Tensor(T)> t{{"aten::t(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kShape}, memest::t};
const Op<Tensor(T, const Dims&)> permute{{"aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)", Autocast::none, "", kShape},
                                         memest::permute};
const Op<Tensor(T, const Dims&, bool)> expand{
    {"aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)", Autocast::none, "", kShape}, memest::expand};
const Op<Tensor(T, I)> unsqueeze{{"aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", Autocast::none, "", kShape}, memest::unsqueeze};
const Op<Tensor(T, I)> squeeze_dim{{"aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)", Autocast::none, "", kShape},
                                   memest::squeeze_dim};
const Op<Tensor(T, I, I)> select{{"aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)", Autocast::none, "", kShape},
                                 memest::select};
const Op<Tensor(T, I, std::optional<I>, std::optional<I>, I)> slice{
    {"aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)", Autocast::none, "",
     kShape},
    memest::slice};
const Op<Tensor(T, I, I, I)> narrow{
    {"aten::narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)", Autocast::none, "", kShape}, memest::narrow};
const Op<Tensors(T, I, I)> split{
    {"aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]", Autocast::none, "", kShape}, memest::split};
const Op<Tensors(T, const Dims&, I)> split_with_sizes{
    {"aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]", Autocast::none, "", kShape},
    memest::split_with_sizes};
const Op<Tensors(T, I, I)> chunk{{"aten::chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]", Autocast::none, "", kShape},
                                 memest::chunk};
const Op<Tensors(T, I)> unbind{{"aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]", Autocast::none, "", kShape},
                               memest::unbind};
const Op<Tensor(const Tensors&, I)> cat{
    {"aten::cat(Tensor[] tensors, int dim=0) -> Tensor", Autocast::none, "", "derivatives.yaml cat; aten/src/ATen/native/cuda/Shape.cu"},
    memest::cat};
const Op<Tensor(const Tensors&, I)> stack{
    {"aten::stack(Tensor[] tensors, int dim=0) -> Tensor", Autocast::none, "", "derivatives.yaml stack"}, memest::stack};
}  // namespace ops

namespace {
const Op squeeze_op{{"aten::squeeze(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kShape}, squeeze};
const Op squeeze_dims_op{{"aten::squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)", Autocast::none, "", kShape}, squeeze_dims};
const Op expand_as_op{{"aten::expand_as(Tensor(a) self, Tensor other) -> Tensor(a)", Autocast::none, "", kShape}, expand_as};
const Op unflatten_op{{"aten::unflatten.int(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)", Autocast::none, "", kShape}, unflatten};
const Op mt_op{{"aten::mT(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kShape}, matrix_transpose};
const Op split_sizes_op{
    {"aten::split.sizes(Tensor(a -> *) self, SymInt[] split_size, int dim=0) -> Tensor(a)[]", Autocast::none, "", kShape}, split_sizes};
}  // namespace
}  // namespace memest
