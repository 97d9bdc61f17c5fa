// Views beside those of views.cpp: diagonals, windows, strides, parts of complex tensors, and the other names of views.
// Sources: derivatives.yaml; FunctionsManual.cpp;
// aten/src/ATen/native/{TensorShape,Unfold2d,ComplexHelper,UnaryOps,TensorTransformations}.cpp, native/UnfoldBackward.h of 2.15.
#include <fmt/format.h>

#include <algorithm>

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

constexpr const char* kShape = "aten/src/ATen/native/TensorShape.cpp";

// ---- order of dimensions -------------------------------------------------------------------------------------------------

Tensor movedim(T self, const Dims& source, const Dims& destination) {
  const int n = self.dim();
  if (source.size() != destination.size())
    throw Error("movedim: source " + to_string(source) + " and destination " + to_string(destination) +
                " should contain the same number of dims");
  std::vector<int> order(std::size_t(n), -1);
  std::vector<bool> taken(std::size_t(n), false);
  for (int i = 0; i < source.size(); ++i) {
    const int from = wrap_dim(source[i], n), to = wrap_dim(destination[i], n);
    if (n == 0) return ops::permute(self, {});
    if (order[std::size_t(to)] >= 0 || taken[std::size_t(from)])
      throw Error("movedim: repeated dim in " + to_string(source) + " or " + to_string(destination));
    order[std::size_t(to)] = from;
    taken[std::size_t(from)] = true;
  }
  int next = 0;
  for (int& d : order)
    if (d < 0) {
      while (taken[std::size_t(next)]) ++next;
      taken[std::size_t(next)] = true;
      d = next;
    }
  Dims dims;
  for (int d : order) dims.push_back(d);
  return ops::permute(self, dims);
}
Tensor movedim_int(T self, I source, I destination) { return ops::movedim(self, {source}, {destination}); }
Tensor reversed(T self) {
  Dims dims;
  for (int i = self.dim(); i-- > 0;) dims.push_back(i);
  return ops::permute(self, dims);
}
Tensor swapped(T self, I axis0, I axis1) { return ops::transpose(self, axis0, axis1); }
Tensor adjoint(T self) {
  if (self.dim() == 0) return ops::alias(self);
  if (self.dim() < 2) throw Error("tensor.adjoint() is only supported on matrices or batches of matrices, found " + describe(self));
  return ops::transpose(self, -2, -1);
}

#define MEMEST_MOVE(NAME)                                                                                                               \
  const Op NAME##_list_op{                                                                                                              \
      {"aten::" #NAME ".intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)", Autocast::none, "", kShape},            \
      +[](T self, const Dims& source, const Dims& destination) { return ops::movedim(self, source, destination); }};                    \
  const Op NAME##_int_op{{"aten::" #NAME ".int(Tensor(a) self, int source, int destination) -> Tensor(a)", Autocast::none, "", kShape}, \
                         movedim_int};
MEMEST_MOVE(moveaxis)
#undef MEMEST_MOVE
const Op movedim_int_op{{"aten::movedim.int(Tensor(a) self, int source, int destination) -> Tensor(a)", Autocast::none, "", kShape},
                        movedim_int};
const Op swapaxes_op{{"aten::swapaxes(Tensor(a) self, int axis0, int axis1) -> Tensor(a)", Autocast::none, "", kShape}, swapped};
const Op swapdims_op{{"aten::swapdims(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", Autocast::none, "", kShape}, swapped};
const Op numpy_t_op{{"aten::numpy_T(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kShape}, reversed};
const Op adjoint_op{{"aten::adjoint(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kShape}, adjoint};
const Op mh_op{{"aten::mH(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kShape}, adjoint};
const Op matrix_h_op{{"aten::matrix_H(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kShape}, adjoint};

// ---- diagonals -------------------------------------------------------------------------------------------------------------

Tensor diagonal(T self, I offset, I dim1, I dim2) {
  const int a = wrap_dim(dim1, self.dim()), b = wrap_dim(dim2, self.dim());
  if (a == b) throw Error(fmt::format("diagonal dimensions cannot be identical {}, {}", dim1, dim2));
  const I rows = self.sizes()[a], columns = self.sizes()[b];
  const I length = std::max<I>(0, offset >= 0 ? std::min(rows, columns - offset) : std::min(rows + offset, columns));
  const I start = length == 0 ? 0 : offset >= 0 ? offset * self.strides()[b] : -offset * self.strides()[a];
  Dims sizes = self.sizes(), strides = self.strides();
  const I step = checked_add(strides[a], strides[b]);
  sizes.erase(std::max(a, b)), strides.erase(std::max(a, b));
  sizes.erase(std::min(a, b)), strides.erase(std::min(a, b));
  sizes.push_back(length), strides.push_back(step);
  auto fn = node("DiagonalBackward0", {self}, {}, [](Backward& w) { w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype()); });
  Tensor y = make_view(self, sizes, strides, self->offset + start);
  fn.outputs({y});
  return y;
}
Tensor diagonal_copy(T self, I offset, I dim1, I dim2) {
  auto fn = node("DiagonalBackward0_copy", {self}, {}, [](Backward& w) { w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype()); });
  Tensor y;
  {
    NoGrad below;
    Tensor view = ops::diagonal(self, offset, dim1, dim2);
    y = empty(view.sizes(), view.dtype());
  }
  fn.outputs({y});
  return y;
}
Tensor diag_embed(T self, I offset, I dim1, I dim2) {
  const int rank = self.dim() + 1;
  const int a = wrap_dim(dim1, rank), b = wrap_dim(dim2, rank);
  if (a == b || self.dim() == 0) throw Error(fmt::format("diagonal dimensions cannot be identical {}, {}", dim1, dim2));
  auto fn = node("DiagEmbedBackward0", {self}, {}, [offset, a, b](Backward& w) { w.out[0] = ops::diagonal(w.grad[0], offset, a, b); });
  const I length = checked_add(self.sizes().back(), std::abs(offset));
  Dims sizes = self.sizes().slice(0, self.dim() - 1);
  sizes.insert(std::min(a, b), length);
  sizes.insert(std::max(a, b), length);
  Tensor y = empty(sizes, self.dtype());
  fn.outputs({y});
  return y;
}
const Op<Tensor(T, I, I, I)> diag_embed_op{
    {"aten::diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor", Autocast::none, "", "derivatives.yaml diag_embed"},
    diag_embed};
const Op<Tensor(T, I, I, I)> diagonal_copy_op{
    {"aten::diagonal_copy(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor", Autocast::none, "", "derivatives.yaml diagonal"},
    diagonal_copy};
Tensor diag(T self, I diagonal) {
  if (self.dim() == 1) return diag_embed_op(self, diagonal, 0, 1);
  if (self.dim() != 2) throw Error("diag(): supports 1D or 2D tensors, found " + describe(self));
  return diagonal_copy_op(self, diagonal, 0, 1);
}
const Op<Tensor(T, I)> diag_op{{"aten::diag(Tensor self, int diagonal=0) -> Tensor", Autocast::none, "", "native/TensorShape.cpp diag"},
                               diag};
const Op diagflat_op{{"aten::diagflat(Tensor self, int offset=0) -> Tensor", Autocast::none, "", "native/TensorShape.cpp diagflat"},
                     +[](T self, I offset) { return diag_op(ops::view(ops::contiguous_tensor(self), {-1}), offset); }};

// ---- windows and strides -----------------------------------------------------------------------------------------------------

Tensor unfold(T self, I dimension, I size, I step) {
  const int d = wrap_dim(dimension, self.dim());
  const I n = self.dim() ? self.sizes()[d] : 1;
  if (size < 0 || size > n || step <= 0) throw Error(fmt::format("unfold: windows of {} with step {} in a dimension of {}", size, step, n));
  // unfold_backward: zeros, and a kernel over the positions of the dimension
  auto fn = node("UnfoldBackward0", {self}, {}, [size, step, seen = (n - size) / step * step + size](Backward& w) {
    w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype());
    if (step < size) Tensor positions = empty({seen}, DType::int64);  // windows that do not overlap are copied
  });
  Dims sizes = self.sizes(), strides = self.strides();
  const I stride = self.dim() ? strides[d] : 1;
  if (self.dim()) {
    sizes[d] = (n - size) / step + 1;
    strides[d] = checked_mul(stride, step);
  }
  sizes.push_back(size), strides.push_back(stride);
  Tensor y = make_view(self, sizes, strides, self->offset);
  fn.outputs({y});
  return y;
}

/// FunctionsManual.cpp _maybe_overlapping_memory.
bool maybe_overlapping(const Dims& sizes, const Dims& strides) {
  std::vector<int> order;
  for (int i = 0; i < sizes.size(); ++i) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return strides[a] < strides[b]; });
  I last = 0;
  for (int i : order) {
    if (sizes[i] == 1) continue;
    if (strides[i] <= last) return true;
    last = checked_add(last, checked_mul(strides[i], sizes[i] - 1));
  }
  return false;
}
I elements_reached(const Dims& sizes, const Dims& strides, I offset) {
  I last = checked_add(offset, 1);
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last = checked_add(last, checked_mul(sizes[i] - 1, strides[i]));
  }
  return last;
}
struct Geometry {
  Dims sizes, strides;
  I offset;
};
/// as_strided_backward: the gradient is laid into a storage of the base's size, added where it overlaps.
Tensor as_strided_gradient(Tensor grad, Geometry in, Geometry out) {
  for (int i = out.sizes.size(); i-- > 0;) {
    if (out.sizes[i] == 0) return ops::zeros(in.sizes, grad.dtype());
    if (out.sizes[i] == 1) {
      grad = ops::squeeze_dim(grad, i);
      out.sizes.erase(i), out.strides.erase(i);
    } else if (out.strides[i] == 0) {
      Dims left = out.sizes;
      left.erase(i);
      grad = engine_ops.sum_to_size(grad, [&] {
        Dims kept = grad.sizes();
        kept[i] = 1;
        return kept;
      }());
      grad = ops::squeeze_dim(grad, i);
      out.sizes.erase(i), out.strides.erase(i);
    }
  }
  const bool out_overlaps = maybe_overlapping(out.sizes, out.strides), in_overlaps = maybe_overlapping(in.sizes, in.strides);
  const I shared = std::min(in.offset, out.offset);
  const I base =
      std::max(elements_reached(in.sizes, in.strides, in.offset - shared), elements_reached(out.sizes, out.strides, out.offset - shared));
  Tensor storage = ops::zeros({base}, grad.dtype());
  Tensor positions;
  if (out_overlaps || in_overlaps) positions = empty({base}, DType::int64);
  auto picked = [&](const Geometry& g) {  // positions.as_strided(...).reshape(-1)
    Tensor view = share(positions, g.sizes, g.strides, g.offset - shared);
    return ops::reshape(view, {-1});
  };
  if (out_overlaps) {
    Tensor flat = ops::reshape(grad, {-1});  // index_add_(0, out_indices.reshape(-1), grad.reshape(-1)): the last argument is made first
    Tensor indices = picked(out);
  }
  if (in_overlaps) {
    Tensor count = ops::zeros({base}, grad.dtype());
    Tensor indices = picked(in);
    Tensor ones = empty({1}, grad.dtype());
  }
  return share(storage, in.sizes, in.strides, in.offset - shared);
}
Tensor as_strided(T self, const Dims& size, const Dims& stride, std::optional<I> storage_offset) {
  if (size.size() != stride.size())
    throw Error("as_strided: mismatch in length of strides " + to_string(stride) + " and shape " + to_string(size));
  for (I s : stride)
    if (s < 0) throw Error("as_strided: negative strides are not supported, got " + to_string(stride));
  for (I s : size)
    if (s < 0) throw Error("as_strided: negative sizes are not supported, got " + to_string(size));
  const I offset = storage_offset.value_or(self->offset);
  const I reached = elements_reached(size, stride, offset);
  if (offset < 0 || checked_mul(reached, item_size(self.dtype())) > self->storage->bytes)
    throw Error(fmt::format("as_strided: sizes {}, strides {} and offset {} reach beyond a storage of {} bytes", to_string(size),
                            to_string(stride), offset, self->storage->bytes));
  const Geometry in{self.sizes(), self.strides(), self->offset}, out{size, stride, offset};
  auto fn = node("AsStridedBackward0", {self}, {}, [in, out](Backward& w) { w.out[0] = as_strided_gradient(w.grad[0], in, out); });
  Tensor y = make_view(self, size, stride, offset);
  fn.outputs({y});
  return y;
}

// ---- other types over the same bytes -------------------------------------------------------------------------------------------

/// A view whose elements are of another type.
Tensor retyped(T self, DType dtype, const Dims& sizes, const Dims& strides, I offset) {
  Tensor y = make_view(self, sizes, strides, offset);
  y->dtype = dtype;
  return y;
}
Tensor view_dtype(T self, DType dtype) {
  const int from = item_size(self.dtype()), to = item_size(dtype);
  Dims sizes = self.sizes(), strides = self.strides();
  I offset = self->offset;
  if (from != to && self.dim() == 0) throw Error("self.dim() cannot be 0 to view " + describe(self) + " as another element size");
  if (from > to) {
    const int ratio = from / to;
    if (strides.back() != 1) throw Error("view(dtype): the last dimension must be contiguous, found strides " + to_string(strides));
    for (int i = 0; i + 1 < strides.size(); ++i) strides[i] = checked_mul(strides[i], ratio);
    sizes[-1] = checked_mul(sizes.back(), ratio);
    offset = checked_mul(offset, ratio);
  } else if (to > from) {
    const int ratio = to / from;
    bool fits = sizes.back() % ratio == 0 && offset % ratio == 0 && strides.back() == 1;
    for (int i = 0; i + 1 < strides.size(); ++i) fits &= strides[i] % ratio == 0;
    if (!fits)
      throw Error("view(dtype): " + describe(self) + " with strides " + to_string(strides) + " cannot be seen as " +
                  std::string(name_of(dtype)));
    for (int i = 0; i + 1 < strides.size(); ++i) strides[i] /= ratio;
    sizes[-1] /= ratio;
    offset /= ratio;
  }
  return retyped(self, dtype, sizes, strides, offset);
}

Tensor view_as_real(T self) {
  if (!is_complex(self.dtype())) throw Error("view_as_real is only supported for complex tensors, found " + describe(self));
  Dims sizes = self.sizes(), strides = self.strides();
  for (I& s : strides) s = checked_mul(s, 2);
  sizes.push_back(2), strides.push_back(1);
  auto fn = node("ViewAsRealBackward0", {self}, {}, [](Backward& w) {
    Tensor grad = ops::contiguous_tensor(w.grad[0]);
    w.out[0] = ops::view_as_complex(grad);
  });
  Tensor y = retyped(self, real_type(self.dtype()), sizes, strides, checked_mul(self->offset, 2));
  fn.outputs({y});
  return y;
}
Tensor view_as_complex(T self) {
  if (!is_floating(self.dtype()) || self.dtype() == DType::bfloat16)
    throw Error("view_as_complex is only supported for half, float and double tensors, found " + describe(self));
  if (self.dim() == 0 || self.sizes().back() != 2 || self.strides().back() != 1)
    throw Error("view_as_complex: the tensor must have a last dimension of size 2 and stride 1, found " + describe(self));
  Dims sizes = self.sizes().slice(0, self.dim() - 1), strides = self.strides().slice(0, self.dim() - 1);
  for (I& s : strides) {
    if (s % 2 != 0)
      throw Error("view_as_complex: the tensor must have a stride divisible by 2 for all but the last dimension, found " +
                  to_string(self.strides()));
    s /= 2;
  }
  if (self->offset % 2 != 0) throw Error("view_as_complex: the storage offset must be divisible by 2");
  auto fn = node("ViewAsComplexBackward0", {self}, {}, [](Backward& w) {
    Tensor grad = ops::contiguous_tensor(w.grad[0]);
    w.out[0] = ops::view_as_real(grad);
  });
  Tensor y = retyped(self, complex_type(self.dtype()), sizes, strides, self->offset / 2);
  fn.outputs({y});
  return y;
}
Tensor real(T self) {
  if (!is_complex(self.dtype())) return self;
  return ops::select(ops::view_as_real(self), self.dim(), 0);
}
Tensor imag(T self) {
  if (!is_complex(self.dtype())) throw Error("imag is not implemented for tensors with non-complex dtypes, found " + describe(self));
  return ops::select(ops::view_as_real(self), self.dim(), 1);
}
const Op view_dtype_op{
    {"aten::view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)", Autocast::none, "", "native/TensorConversions.cpp view_dtype"},
    view_dtype};
const Op real_op{{"aten::real(Tensor(a) self) -> Tensor(a)", Autocast::none, "", "native/UnaryOps.cpp real"}, real};
const Op imag_op{{"aten::imag(Tensor(a) self) -> Tensor(a)", Autocast::none, "", "native/UnaryOps.cpp imag"}, imag};

// ---- other names ---------------------------------------------------------------------------------------------------------------

Tensor alias(T self) {
  auto fn = node("AliasBackward0", {self}, {}, [](Backward& w) { w.out[0] = w.grad[0]; });
  Tensor y = make_view(self, self.sizes(), self.strides(), self->offset);
  fn.outputs({y});
  return y;
}
Tensor broadcast_to(T self, const Dims& size) { return ops::expand(self, size, false); }
Tensors broadcast_tensors(const Tensors& tensors) {
  const Dims sizes = broadcast(std::span<const Tensor>(tensors));
  Tensors out;
  for (auto& x : tensors) out.push_back(x.sizes() == sizes ? x : ops::expand(x, sizes, false));
  return out;
}
Tensor ravel(T self) { return ops::view(ops::contiguous_tensor(self), {-1}); }
const Op view_as_op{{"aten::view_as(Tensor(a) self, Tensor other) -> Tensor(a)", Autocast::none, "", kShape},
                    +[](T self, T other) { return ops::view(self, other.sizes()); }};
const Op reshape_as_op{{"aten::reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)", Autocast::none, "", kShape},
                       +[](T self, T other) { return ops::reshape(self, other.sizes()); }};
const Op broadcast_to_op{{"aten::broadcast_to(Tensor(a) self, SymInt[] size) -> Tensor(a)", Autocast::none, "", kShape}, broadcast_to};
const Op broadcast_tensors_op{{"aten::broadcast_tensors(Tensor[] tensors) -> Tensor[]", Autocast::none, "", kShape}, broadcast_tensors};
const Op ravel_op{{"aten::ravel(Tensor(a) self) -> Tensor(a)", Autocast::none, "", kShape}, ravel};
const Op resolve_conj_op{{"aten::resolve_conj(Tensor(a) self) -> Tensor(a)", Autocast::none, "", "native/TensorConversions.cpp"},
                         +[](T self) { return Tensor(self); }};
const Op resolve_neg_op{{"aten::resolve_neg(Tensor(a) self) -> Tensor(a)", Autocast::none, "", "native/TensorConversions.cpp"},
                        +[](T self) { return Tensor(self); }};

Tensor atleast(T self, int rank) {
  if (self.dim() >= rank) return self;
  if (rank == 1) return ops::reshape(self, {1});
  if (rank == 2) return self.dim() == 0 ? ops::reshape(self, {1, 1}) : ops::unsqueeze(self, 0);
  if (self.dim() == 0) return ops::reshape(self, {1, 1, 1});
  return self.dim() == 1 ? ops::unsqueeze(ops::unsqueeze(self, 0), -1) : ops::unsqueeze(self, -1);
}
const Op atleast_1d_op{{"aten::atleast_1d(Tensor self) -> Tensor", Autocast::none, "", "native/TensorTransformations.cpp"},
                       +[](T self) { return atleast(self, 1); }};
const Op atleast_2d_op{{"aten::atleast_2d(Tensor self) -> Tensor", Autocast::none, "", "native/TensorTransformations.cpp"},
                       +[](T self) { return atleast(self, 2); }};
const Op atleast_3d_op{{"aten::atleast_3d(Tensor self) -> Tensor", Autocast::none, "", "native/TensorTransformations.cpp"},
                       +[](T self) { return atleast(self, 3); }};

// ---- pieces ----------------------------------------------------------------------------------------------------------------------

constexpr I kMostPieces = 1'000'000;

Tensors tensor_split(T self, I sections, I dim) {
  if (sections <= 0 || sections > kMostPieces) throw Error("number of sections must be larger than 0, got " + std::to_string(sections));
  const I n = self.size(dim), least = n / sections, longer = n % sections;
  Tensors pieces;
  for (I i = 0, start = 0; i < sections; ++i) {
    const I length = least + (i < longer);
    pieces.push_back(ops::slice(self, dim, start, start + length, 1));
    start += length;
  }
  return pieces;
}
Tensors tensor_split_at(T self, const Dims& indices, I dim) {
  Tensors pieces;
  I start = 0;
  for (I end : indices) {
    pieces.push_back(ops::slice(self, dim, start, end, 1));
    start = end;
  }
  pieces.push_back(ops::slice(self, dim, start, self.size(dim), 1));
  return pieces;
}
int split_axis(const char* name, T self) {  // hsplit: the second dimension, of a 1-D tensor the first; vsplit: the first; dsplit: the third
  const int least = name[0] == 'h' ? 1 : name[0] == 'v' ? 2 : 3;
  if (self.dim() < least)
    throw Error(fmt::format("torch.{} requires a tensor with at least {} dimensions, but got {}", name, least, self.dim()));
  return name[0] == 'h' ? (self.dim() == 1 ? 0 : 1) : name[0] == 'v' ? 0 : 2;
}
Tensors even_split(const char* name, T self, I sections) {
  const int axis = split_axis(name, self);
  if (sections <= 0 || self.sizes()[axis] % sections != 0)
    throw Error(fmt::format(
        "torch.{} attempted to split along dimension {}, but the size of the dimension {} is not divisible by the split_size {}", name,
        axis, self.sizes()[axis], sections));
  return tensor_split(self, sections, axis);
}
const Op tensor_split_op{
    {"aten::tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]", Autocast::none, "", kShape},
    tensor_split};
const Op tensor_split_at_op{
    {"aten::tensor_split.indices(Tensor(a -> *) self, SymInt[] indices, int dim=0) -> Tensor(a)[]", Autocast::none, "", kShape},
    tensor_split_at};
#define MEMEST_SPLIT(NAME)                                                                                                        \
  const Op NAME##_op{{"aten::" #NAME ".int(Tensor(a -> *) self, int sections) -> Tensor(a)[]", Autocast::none, "", kShape},       \
                     +[](T self, I sections) { return even_split(#NAME, self, sections); }};                                      \
  const Op NAME##_at_op{{"aten::" #NAME ".array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]", Autocast::none, "", kShape}, \
                        +[](T self, const Dims& indices) { return tensor_split_at(self, indices, split_axis(#NAME, self)); }};
MEMEST_SPLIT(hsplit)
MEMEST_SPLIT(vsplit)
MEMEST_SPLIT(dsplit)
#undef MEMEST_SPLIT
/// No views for autograd: each piece may be written in place.
Tensors unsafe(Tensors pieces) {
  for (auto& piece : pieces) piece->base.reset();
  return pieces;
}
const Op unsafe_split_op{{"aten::unsafe_split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]", Autocast::none, "", kShape},
                         +[](T self, I split_size, I dim) { return unsafe(ops::split(self, split_size, dim)); }};
const Op unsafe_split_sizes_op{
    {"aten::unsafe_split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]", Autocast::none, "", kShape},
    +[](T self, const Dims& split_sizes, I dim) { return unsafe(ops::split_with_sizes(self, split_sizes, dim)); }};
const Op unsafe_chunk_op{{"aten::unsafe_chunk(Tensor self, int chunks, int dim=0) -> Tensor[]", Autocast::none, "", kShape},
                         +[](T self, I chunks, I dim) { return unsafe(ops::chunk(self, chunks, dim)); }};

// ---- in place: the tensor itself gets the view's geometry ------------------------------------------------------------------------

Tensor become(T self, const Tensor& view) {
  self->sizes = view.sizes();
  self->strides = view.strides();
  self->grad_fn = view->grad_fn;
  self->output_nr = view->output_nr;
  return self;
}
const Op squeeze_op{{"aten::squeeze_(Tensor(a!) self) -> Tensor(a!)", Autocast::none, "", kShape},
                    +[](T self) { return become(self, Unbox<Tensor>::from(call_op("aten::squeeze", {self}, {}))); }};
const Op squeeze_dim_op{{"aten::squeeze_.dim(Tensor(a!) self, int dim) -> Tensor(a!)", Autocast::none, "", kShape},
                        +[](T self, I dim) { return become(self, ops::squeeze_dim(self, dim)); }};
const Op unsqueeze_op{{"aten::unsqueeze_(Tensor(a!) self, int dim) -> Tensor(a!)", Autocast::none, "", kShape},
                      +[](T self, I dim) { return become(self, ops::unsqueeze(self, dim)); }};
const Op t_op{{"aten::t_(Tensor(a!) self) -> Tensor(a!)", Autocast::none, "", kShape}, +[](T self) { return become(self, ops::t(self)); }};
const Op transpose_op{{"aten::transpose_(Tensor(a!) self, int dim0, int dim1) -> Tensor(a!)", Autocast::none, "", kShape},
                      +[](T self, I dim0, I dim1) { return become(self, ops::transpose(self, dim0, dim1)); }};

}  // namespace

namespace ops {
const Op<Tensor(T, const Dims&, const Dims&)> movedim{
    {"aten::movedim.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)", Autocast::none, "", kShape}, memest::movedim};
const Op<Tensor(T, I, I, I)> diagonal{{"aten::diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)", Autocast::none,
                                       "", "derivatives.yaml diagonal; native/TensorShape.cpp"},
                                      memest::diagonal};
const Op<Tensor(T, I, I, I)> unfold{{"aten::unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)", Autocast::none, "",
                                     "derivatives.yaml unfold; native/UnfoldBackward.h"},
                                    memest::unfold};
const Op<Tensor(T, const Dims&, const Dims&, std::optional<I>)> as_strided{
    {"aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)", Autocast::none, "",
     "derivatives.yaml as_strided; FunctionsManual.cpp as_strided_backward"},
    memest::as_strided};
const Op<Tensor(T)> alias{{"aten::alias(Tensor(a) self) -> Tensor(a)", Autocast::none, "", "derivatives.yaml alias"}, memest::alias};
const Op<Tensor(T)> view_as_real{
    {"aten::view_as_real(Tensor(a) self) -> Tensor(a)", Autocast::none, "", "derivatives.yaml view_as_real; native/ComplexHelper.h"},
    memest::view_as_real};
const Op<Tensor(T)> view_as_complex{
    {"aten::view_as_complex(Tensor(a) self) -> Tensor(a)", Autocast::none, "", "derivatives.yaml view_as_complex; native/ComplexHelper.h"},
    memest::view_as_complex};
}  // namespace ops
}  // namespace memest
