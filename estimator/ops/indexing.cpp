// Sources: derivatives.yaml; FunctionsManual.cpp;
// aten/src/ATen/native/{TensorAdvancedIndexing,TensorAdvancedIndexingUtils,IndexingUtils}.{cpp,h},
// native/cuda/{Indexing,Nonzero,IndexKernel}.cu of 2.15.
#include "ops/indexing.h"

#include <fmt/format.h>

#include <utility>

#include "ops/copy.h"
#include "ops/cub.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/pointwise.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;

bool is_mask(T x) { return x.dtype() == DType::boolean || x.dtype() == DType::uint8; }

thread_local std::optional<I> assumed_selection;
/// How many of the elements are there.
I selected(I elements) { return std::min(assumed_selection.value_or(elements), elements); }
void note_selection(const char* op, const char* assumption) {
  if (!assumed_selection) ops::note_data_dependent(op, assumption);
}

/// The kernels of nonzero: a count, and the indices of the elements that are kept, [count, dimensions] in column order.
Tensor nonzero_kernel(T self) {
  const I n = self.numel();
  const bool real = runtime().settings.kernel_scratch();
  std::optional<Scratch> self_;  // self.contiguous()
  if (n > 0 && !is_contiguous(self)) self_.emplace(checked_mul(n, item_size(self.dtype())));
  Tensor count;
  if (real && n > 0) {
    CategoryScope workspace(Category::workspace);
    count = empty(Dims{}, DType::int32);
    Scratch reduce(cub_reduce(n));
  }
  const I found = selected(n);
  const Dims shape{I{self.dim()}, found};
  Tensor columns = empty(shape, DType::int64);
  if (n > 0) Scratch select(cub_select(n));
  return share(columns, {found, I{self.dim()}}, {1, found}, 0);
}

// ---- what an index becomes ---------------------------------------------------------------------------------------------------

/// expandTensors: masks become the positions of their elements, other integers int64.
Tensors expand_indices(T self, const Tensors& indices) {
  Tensors out;
  for (auto& index : indices) {
    if (!index) {
      out.emplace_back();
    } else if (is_mask(index)) {
      for (int j = 0; j < index.dim(); ++j) {
        const int d = int(out.size()) + j;
        if (d >= self.dim() || index.sizes()[j] != self.sizes()[d])
          throw Error(fmt::format("the shape of the mask {} at index {} does not match the shape of the indexed tensor {}",
                                  to_string(index.sizes()), j, to_string(self.sizes())));
      }
      note_selection("indexing with a mask", "every element is taken");
      NoGrad below;
      const Tensor positions = nonzero_kernel(index);
      for (int j = 0; j < index.dim(); ++j) out.push_back(share(positions, {positions.sizes()[0]}, {1}, j * positions.sizes()[0]));
    } else if (is_integral(index.dtype(), false)) {
      NoGrad below;
      const Tensor on_device = index.on_host() && !self.on_host() ? empty(index.sizes(), index.dtype()) : index;
      out.push_back(on_device.dtype() == DType::int64 ? on_device : ops::to(on_device, DType::int64));
    } else {
      throw Error("tensors used as indices must be long, int, byte or bool tensors, found " + describe(index));
    }
  }
  if (int(out.size()) > self.dim())
    throw Error(fmt::format("too many indices for tensor of dimension {} (got {})", self.dim(), out.size()));
  return out;
}

/// expand_outplace: all that are there to their common sizes.
void broadcast_indices(Tensors& indices) {
  Dims common;
  for (auto& x : indices)
    if (x) common = broadcast(common, x.sizes());
  NoGrad below;
  for (auto& x : indices)
    if (x && !(x.sizes() == common)) x = ops::expand(x, common, false);
}
bool adjacent(const Tensors& indices) {
  int first = -1, last = -1, found = 0;
  for (int i = 0; i < int(indices.size()); ++i)
    if (indices[std::size_t(i)]) {
      if (first < 0) first = i;
      last = i;
      ++found;
    }
  return found == 0 || last - first + 1 == found;
}

/// AdvancedIndex: the source with its indexed dimensions replaced, and the result's sizes.
struct Indexed {
  Tensor source;    ///< of the result's sizes, strides of 0 where an index goes
  Tensors indices;  ///< of the result's rank
};
Indexed advanced_index(T self, const Tensors& indices_) {
  Tensors indices = indices_;
  indices.resize(std::size_t(self.dim()));
  Dims sizes = self.sizes(), strides = self.strides();
  if (!adjacent(indices)) {  // transposeToFront
    Dims front_sizes, front_strides;
    Tensors front;
    for (int pass = 0; pass < 2; ++pass)
      for (int d = 0; d < self.dim(); ++d)
        if (bool(indices[std::size_t(d)]) == (pass == 0)) {
          front_sizes.push_back(sizes[d]), front_strides.push_back(strides[d]);
          front.push_back(indices[std::size_t(d)]);
        }
    sizes = front_sizes, strides = front_strides;
    indices = front;
  }
  Dims common;
  int before = 0;
  bool any = false;
  for (int d = 0; d < sizes.size(); ++d)
    if (indices[std::size_t(d)]) {
      common = indices[std::size_t(d)].sizes();
      if (!any) before = d;
      any = true;
    }
  Dims out_sizes, out_strides, lead = Dims::filled(before, 1), tail;
  I taken = 1;
  for (int d = 0; d < sizes.size(); ++d) {
    if (indices[std::size_t(d)]) {
      taken = checked_mul(taken, sizes[d]);
      continue;
    }
    if (d >= before) tail.push_back(1);
  }
  for (int d = 0; d < before; ++d) out_sizes.push_back(sizes[d]), out_strides.push_back(strides[d]);
  for (I s : common) out_sizes.push_back(s), out_strides.push_back(0);
  for (int d = before; d < sizes.size(); ++d)
    if (!indices[std::size_t(d)]) out_sizes.push_back(sizes[d]), out_strides.push_back(strides[d]);
  if (taken == 0 && common.numel() != 0) throw Error("index is out of bounds for dimension with size 0");
  Indexed result{share(self, out_sizes, out_strides, self->offset), {}};
  for (auto& x : indices) {
    if (!x) continue;
    NoGrad below;
    const Tensor on_device = x.on_host() ? empty(x.sizes(), x.dtype()) : Tensor(x);
    result.indices.push_back(ops::reshape(on_device, lead + common + tail));
  }
  if (result.indices.size() >= 2) {  // CUDA kernels want one striding for all indices
    bool match = true;
    for (auto& x : result.indices) match &= x.strides() == result.indices[0].strides();
    if (!match)
      for (auto& x : result.indices) x = ops::contiguous_tensor(x);
  }
  return result;
}

// ---- index_put_ with accumulation: sorted linear positions -----------------------------------------------------------------------

/// index_put_with_sort_kernel's memory, but for a copy of the values.
void accumulate_scratch(T self, const Tensors& given, T values) {
  if (!runtime().settings.kernel_scratch() || self.numel() == 0) return;
  NoGrad below;
  CategoryScope category(Category::workspace);
  Tensors indices = expand_indices(self, given);
  broadcast_indices(indices);
  const bool in_front = adjacent(indices);
  indices.resize(std::size_t(self.dim()));
  Tensor linear;
  I slice = 1;
  bool seen = false, host = false;
  for (int d = 0; d < self.dim(); ++d) {
    const Tensor& x = indices[std::size_t(d)];
    if (!x) {
      if (seen) slice = checked_mul(slice, self.sizes()[d]);
      continue;
    }
    host |= x.on_host();
    Tensor wrapped = x.on_host() ? host_tensor(x.sizes(), DType::int64) : empty(x.sizes(), DType::int64);
    Tensor product = x.on_host() ? host_tensor(x.sizes(), DType::int64) : empty(x.sizes(), DType::int64);
    wrapped.reset();
    if (!seen) linear = product;
    seen = true;
  }
  indices.clear();
  if (!seen) return;
  if (host) linear = empty(linear.sizes(), DType::int64);
  const I count = linear.numel();
  Tensor expanded_values = ops::contiguous_tensor(values);
  Tensor source;
  if (!in_front) source = empty(self.sizes(), self.dtype());  // the transposed tensor, contiguous
  if (count > 0) {
    Tensor sorted = empty({count}, DType::int64), original = empty({count}, DType::int64);
    {
      Tensor range = empty({count}, DType::int64);
      const I largest = self.numel() - 1;
      Scratch sort(cub_radix_sort(count, 8, 8, bits_of(largest / std::max<I>(1, slice))));
    }
    original.reset();
    sorted.reset();
  }
  source.reset();
  expanded_values.reset();
}

Tensor index(T self, const Tensors& indices) {
  std::vector<Tensor> saved(indices.begin(), indices.end());
  auto fn = node("IndexBackward0", std::span<const Tensor>(&self, 1), std::span<const Tensor>(saved),
                 [taken = assumed_selection](Backward& w, const Tensors& kept) {
                   const Scoped<std::optional<I>> as_before(assumed_selection, taken);
                   w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype());
                   Scoped<const char*> scope(runtime().op, "aten::_index_put_impl_");
                   accumulate_scratch(w.out[0], kept, w.grad[0]);
                 });
  Tensors expanded = expand_indices(self, indices);
  broadcast_indices(expanded);
  Indexed info = advanced_index(self, expanded);
  Tensors operands{info.source};
  for (auto& x : info.indices) operands.push_back(x);
  Tensor y = elementwise(std::span<const Tensor>(operands), self.dtype());
  operands.clear();
  // the copies that make the indices alike go last first
  while (!info.indices.empty()) info.indices.pop_back();
  fn.outputs({y});
  return y;
}

/// canDispatchToMaskedFill: one mask and one value.
bool is_masked_fill(const Tensors& indices, T values) {
  int masks = 0;
  for (auto& x : indices) {
    if (!x) continue;
    if (!is_mask(x)) return false;
    ++masks;
  }
  return masks == 1 && values.numel() == 1 && values.on_host();
}
void index_put_kernel(T self, const Tensors& indices, T values, bool accumulate) {
  if (self.dtype() != values.dtype() && !values->wrapped_number)
    throw Error("index put requires the source and destination dtypes match, got " + std::string(name_of(self.dtype())) +
                " for the destination and " + std::string(name_of(values.dtype())) + " for the source");
  if (!accumulate && is_masked_fill(indices, values)) return;
  NoGrad below;
  Tensor on_device = values.on_host() ? empty(values.sizes(), self.dtype()) : Tensor(values);
  if (accumulate) {
    if (runtime().settings.kernel_scratch())
      for (auto& x : indices) {
        if (!x || is_mask(x) || x.numel() == 0) continue;
        std::optional<Scratch> least(8), most(8);  // the range check
        { Scratch too_low(1); }
        { Scratch too_high(1); }
        least.reset();
        most.reset();
      }
    accumulate_scratch(self, indices, on_device);
    return;
  }
  Tensors expanded = expand_indices(self, indices);
  broadcast_indices(expanded);
  Indexed info = advanced_index(self, expanded);
  if (!(broadcast(values.sizes(), info.source.sizes()) == info.source.sizes()))
    throw Error("shape mismatch: value tensor of shape " + to_string(values.sizes()) + " cannot be broadcast to indexing result of shape " +
                to_string(info.source.sizes()));
}
/// zeros_like(values) of the formula keeps their sizes and type only.
auto index_put_node(T self, const Tensors& indices, T values, bool accumulate) {
  const Tensor inputs[] = {self, values};
  return node("IndexPutBackward0", std::span<const Tensor>(inputs), std::span<const Tensor>(indices),
              [accumulate, sizes = values.sizes(), type = values.dtype(), taken = assumed_selection](Backward& w, const Tensors& saved) {
                const Scoped<std::optional<I>> as_before(assumed_selection, taken);
                if (w.needs(0)) {
                  if (accumulate) {
                    w.out[0] = w.grad[0];
                  } else {
                    const Tensor zeros = ops::zeros(sizes, type);
                    w.out[0] = ops::clone(w.grad[0], std::nullopt);
                    index_put_kernel(w.out[0], saved, zeros, false);
                  }
                }
                if (w.needs(1)) w.out[1] = ops::index(w.grad[0], saved);
              });
}
Tensor index_put(T self, const Tensors& indices, T values, bool accumulate) {
  auto fn = index_put_node(self, indices, values, accumulate);
  Tensor y;
  {
    NoGrad below;
    y = ops::clone(self, std::nullopt);
    index_put_kernel(y, indices, values, accumulate);
  }
  fn.outputs({y});
  return y;
}
Tensor index_put_(T self, const Tensors& indices, T values, bool accumulate) {
  auto fn = index_put_node(self, indices, values, accumulate);
  index_put_kernel(self, indices, values, accumulate);
  fn.in_place(self);
  return self;
}
constexpr const char* kIndexing = "derivatives.yaml; native/TensorAdvancedIndexing.cpp, native/cuda/Indexing.cu";
const Op index_put_op{{"aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor", Autocast::promote,
                       "indices", kIndexing},
                      index_put};

// ---- one index for one dimension ---------------------------------------------------------------------------------------------------

void check_index(const char* name, T self, I dim, T index) {
  wrap_dim(dim, self.dim());
  if (index.dim() > 1 || !is_integral(index.dtype(), false))
    throw Error(fmt::format("{}: expected an integer vector as index, found {}", name, describe(index)));
}
Dims with_size(T self, I dim, I size) {
  Dims sizes = self.sizes();
  if (!sizes.empty()) sizes[wrap_dim(dim, self.dim())] = size;
  return sizes;
}

Tensor index_select(T self, I dim, T index) {
  check_index("index_select", self, dim, index);
  auto fn = node("IndexSelectBackward0", {self}, {index}, [](Backward& w, T) { w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype()); });
  Tensor y = empty(with_size(self, dim, index.numel()), self.dtype());
  fn.outputs({y});
  return y;
}

Tensor scaled(T x, const Scalar& alpha) { return alpha.to_double() == 1 ? Tensor(x) : ops::mul_scalar(x, alpha); }
Tensor index_add_any(T self, I dim, T index, T source, const Scalar& alpha, bool in_place) {
  check_index("index_add", self, dim, index);
  if (source.dtype() != self.dtype())
    throw Error("index_add_(): self and source must have the same scalar type, found " + describe(self) + " and " + describe(source));
  auto fn = node("IndexAddBackward0", {self, source}, {save_if(index, source), save_if(source, source)}, [dim, alpha](Backward& w, T i, T) {
    if (w.needs(0)) w.out[0] = w.grad[0];
    if (w.needs(1)) {
      Tensor picked = ops::index_select(w.grad[0], dim, i);
      w.out[1] = scaled(picked, alpha);
    }
  });
  if (in_place) {
    fn.in_place(self);
    return self;
  }
  Tensor y = empty(self.sizes(), self.dtype());
  fn.outputs({y});
  return y;
}
Tensor index_add(T self, I dim, T index, T source, const Scalar& alpha) { return index_add_any(self, dim, index, source, alpha, false); }
Tensor index_add_(T self, I dim, T index, T source, const Scalar& alpha) { return index_add_any(self, dim, index, source, alpha, true); }

Tensor index_copy_any(T self, I dim, T index, T source, bool in_place) {
  check_index("index_copy", self, dim, index);
  if (source.dtype() != self.dtype())
    throw Error("index_copy_(): self and source expected to have the same dtype, found " + describe(self) + " and " + describe(source));
  auto fn = node("IndexCopyBackward0", {self, source}, {index, save_if(source, source)}, [dim](Backward& w, T i, T) {
    if (w.needs(0)) w.out[0] = ops::clone(w.grad[0], std::nullopt);
    if (w.needs(1)) w.out[1] = ops::index_select(w.grad[0], dim, i);
  });
  if (in_place) {
    fn.in_place(self);
    return self;
  }
  Tensor y = empty(self.sizes(), self.dtype());
  fn.outputs({y});
  return y;
}
Tensor index_copy(T self, I dim, T index, T source) { return index_copy_any(self, dim, index, source, false); }
Tensor index_copy_(T self, I dim, T index, T source) { return index_copy_any(self, dim, index, source, true); }

Tensor index_fill(T self, I dim, T index, const Scalar&) {
  check_index("index_fill", self, dim, index);
  auto fn = node("IndexFillBackward0", {self}, {index}, [](Backward& w, T) { w.out[0] = ops::clone(w.grad[0], std::nullopt); });
  Tensor y = empty_like(self);
  fn.outputs({y});
  return y;
}
Tensor index_fill_(T self, I dim, T index, const Scalar&) {
  check_index("index_fill_", self, dim, index);
  auto fn = node("IndexFillBackward0", {self}, {index}, [](Backward& w, T) { w.out[0] = ops::clone(w.grad[0], std::nullopt); });
  fn.in_place(self);
  return self;
}
const Op index_add_op{{"aten::index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor", Autocast::none,
                       "index, source", "derivatives.yaml index_add"},
                      index_add};
const Op index_add_in_place_op{{"aten::index_add_(Tensor(a!) self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor(a!)",
                                Autocast::none, "index, source", "derivatives.yaml index_add"},
                               index_add_};
const Op index_copy_op{{"aten::index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor", Autocast::none, "index, source",
                        "derivatives.yaml index_copy"},
                       index_copy};
const Op index_copy_in_place_op{{"aten::index_copy_(Tensor(a!) self, int dim, Tensor index, Tensor source) -> Tensor(a!)", Autocast::none,
                                 "index, source", "derivatives.yaml index_copy"},
                                index_copy_};
const Op index_fill_op{{"aten::index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", Autocast::none, "index",
                        "derivatives.yaml index_fill"},
                       index_fill};
const Op index_fill_in_place_op{{"aten::index_fill_.int_Scalar(Tensor(a!) self, int dim, Tensor index, Scalar value) -> Tensor(a!)",
                                 Autocast::none, "index", "derivatives.yaml index_fill"},
                                index_fill_};

// ---- values by position ---------------------------------------------------------------------------------------------------------------

Tensor take(T self, T index) {
  auto fn = node("TakeBackward0", {self}, {index, self}, [](Backward& w, T, T x) { w.out[0] = empty_like(x); });
  Tensor y = empty(index.sizes(), self.dtype());
  fn.outputs({y});
  return y;
}
const Op<Tensor(T, T)> take_op{{"aten::take(Tensor self, Tensor index) -> Tensor", Autocast::none, "index, self",
                                "derivatives.yaml take; FunctionsManual.cpp take_backward"},
                               take};

Tensor put(T self, T index, T source, bool accumulate) {
  auto fn = node("PutBackward0", {self, source}, {index, source}, [accumulate](Backward& w, T i, T s) {
    if (w.needs(0)) {
      if (accumulate) {
        w.out[0] = w.grad[0];
      } else {
        Tensor zeros = empty_like(s);
        w.out[0] = ops::clone(w.grad[0], std::nullopt);
      }
    }
    if (w.needs(1)) {
      Tensor taken = take_op(w.grad[0], i);
      w.out[1] = ops::reshape(taken, s.sizes());
    }
  });
  Tensor y = empty_like(self);
  fn.outputs({y});
  return y;
}
const Op put_op{{"aten::put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor", Autocast::none, "index, source",
                 "derivatives.yaml put"},
                put};

// ---- a view written into a copy ---------------------------------------------------------------------------------------------------------

Tensor select_scatter(T self, T src, I dim, I index) {
  auto fn = node("SelectScatterBackward0", {self, src}, {}, [dim, index](Backward& w) {
    if (w.needs(0)) {
      Dims sizes = w.grad[0].sizes();
      sizes.erase(wrap_dim(dim, w.grad[0].dim()));
      Tensor zeros = ops::zeros(sizes, w.grad[0].dtype());
      w.out[0] = ops::clone(w.grad[0], std::nullopt);
    }
    if (w.needs(1)) w.out[1] = ops::select(w.grad[0], dim, index);
  });
  {
    NoGrad below;
    const Tensor part = ops::select(self, dim, index);
    if (!(part.sizes() == src.sizes()))
      throw Error("expected src to have a size equal to the slice of self: " + to_string(src.sizes()) + " and " + to_string(part.sizes()));
  }
  Tensor y = empty_like(self);
  fn.outputs({y});
  return y;
}
Tensor slice_scatter(T self, T src, I dim, std::optional<I> start, std::optional<I> end, I step) {
  auto fn = node("SliceScatterBackward0", {self, src}, {}, [dim, start, end, step](Backward& w) {
    if (w.needs(0)) {
      Tensor zeros;
      {
        const Tensor part = ops::slice(w.grad[0], dim, start, end, step);
        zeros = ops::zeros(part.sizes(), w.grad[0].dtype());
      }
      w.out[0] = ops::clone(w.grad[0], std::nullopt);
    }
    if (w.needs(1)) w.out[1] = ops::slice(w.grad[0], dim, start, end, step);
  });
  {
    NoGrad below;
    const Tensor part = ops::slice(self, dim, start, end, step);
    if (!(part.sizes() == src.sizes()))
      throw Error("expected src to have a size equal to the slice of self: " + to_string(src.sizes()) + " and " + to_string(part.sizes()));
  }
  Tensor y = empty_like(self);
  fn.outputs({y});
  return y;
}
const Op select_scatter_op{{"aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor", Autocast::none, "",
                            "derivatives.yaml select_scatter"},
                           select_scatter};
Tensor diagonal_scatter(T self, T src, I offset, I dim1, I dim2) {
  auto fn = node("DiagonalScatterBackward0", {self, src}, {}, [offset, dim1, dim2, sizes = src.sizes()](Backward& w) {
    if (w.needs(0)) {
      const Tensor zeros = ops::zeros(sizes, w.grad[0].dtype());
      w.out[0] = ops::clone(w.grad[0], std::nullopt);
    }
    if (w.needs(1)) w.out[1] = ops::diagonal(w.grad[0], offset, dim1, dim2);
  });
  {
    NoGrad below;
    const Tensor part = ops::diagonal(self, offset, dim1, dim2);
    if (!(part.sizes() == src.sizes()))
      throw Error("expected src to have a size equal to the slice of self: " + to_string(src.sizes()) + " and " + to_string(part.sizes()));
  }
  Tensor y = empty_like(self);
  fn.outputs({y});
  return y;
}
const Op diagonal_scatter_op{{"aten::diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
                              Autocast::none, "", "derivatives.yaml diagonal_scatter"},
                             diagonal_scatter};
const Op slice_scatter_op{
    {"aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
     Autocast::none, "", "derivatives.yaml slice_scatter"},
    slice_scatter};

// ---- sizes that depend on values
// ------------------------------------------------------------------------------------------------------------

Tensor nonzero(T self) {
  note_selection("aten::nonzero", "no element is zero");
  return nonzero_kernel(self);
}
const Op<Tensor(T)> nonzero_op{{"aten::nonzero(Tensor self) -> Tensor", Autocast::none, "", "native/cuda/Nonzero.cu"}, nonzero};
const Op where_op{{"aten::where(Tensor condition) -> Tensor[]", Autocast::none, "", "native/TensorCompare.cpp where"}, +[](T condition) {
                    Tensor positions = nonzero_op(condition);
                    return ops::unbind(positions, 1);
                  }};
const Op argwhere_op{{"aten::argwhere(Tensor self) -> Tensor", Autocast::none, "", "native/TensorAdvancedIndexing.cpp argwhere"},
                     +[](T self) { return nonzero_op(self); }};

/// masked_scatter on the device: positions of the mask's elements by a prefix sum over the whole mask, which is copied where it is
/// expanded.
void masked_scatter_scratch(I elements, bool expanded_mask) {
  Scratch prefix_sum(checked_mul(8, elements));
  std::optional<Scratch> mask;
  if (expanded_mask) mask.emplace(elements);
  Scratch scan(cub_scan(elements, 8));
}
bool is_expanded(T mask, const Dims& sizes) { return !(mask.sizes() == sizes) || !is_contiguous(mask); }
Tensor masked_select(T self, T mask) {
  if (mask.dtype() != DType::boolean) throw Error("masked_select: expected BoolTensor for mask, found " + describe(mask));
  note_selection("aten::masked_select", "the mask is true everywhere");
  const Dims sizes = broadcast(self.sizes(), mask.sizes());
  auto fn = node("MaskedSelectBackward0", {self}, {mask, self}, [sizes](Backward& w, T m, T x) {  // masked_select_backward
    w.out[0] = ops::zeros(sizes, x.dtype());
    masked_scatter_scratch(sizes.numel(), is_expanded(m, sizes));
  });
  Tensor y;
  {
    NoGrad below;
    const Tensor expanded = ops::expand(mask, sizes, false);
    Tensor positions = nonzero_kernel(expanded);
    y = empty({selected(sizes.numel())}, self.dtype());
  }
  fn.outputs({y});
  return y;
}
const Op<Tensor(T, T)> masked_select_op{{"aten::masked_select(Tensor self, Tensor mask) -> Tensor", Autocast::none, "mask, self",
                                         "derivatives.yaml masked_select; native/cuda/IndexKernel.cpp"},
                                        masked_select};

void masked_scatter_formula(Backward& w, T mask) {
  if (w.needs(0)) w.out[0] = ops::binary("aten::masked_fill", w.grad[0], mask, w.grad[0].dtype());
  if (w.needs(1)) {
    const I wanted = w.sizes(1).numel();
    const ops::AssumedSelection whole_source(wanted);  // the mask has at most as many elements, and is taken to have so many
    Tensor picked = masked_select_op(w.grad[0], mask);
    if (picked.numel() < wanted) {
      Tensor rest = ops::zeros({wanted - picked.numel()}, picked.dtype());
      picked = ops::cat({picked, rest}, 0);
    } else if (picked.numel() > wanted) {
      picked = ops::slice(picked, 0, 0, wanted, 1);
    }
    w.out[1] = ops::reshape(picked, w.sizes(1));
  }
}
Tensor masked_scatter(T self, T mask, T source) {
  auto fn = node("MaskedScatterBackward0", {self, source}, {mask}, [](Backward& w, T m) { masked_scatter_formula(w, m); });
  const Dims sizes = broadcast(self.sizes(), mask.sizes());
  Tensor y = empty(sizes, self.dtype());
  masked_scatter_scratch(sizes.numel(), is_expanded(mask, sizes));
  fn.outputs({y});
  return y;
}
Tensor masked_scatter_(T self, T mask, T source) {
  if (!(broadcast(self.sizes(), mask.sizes()) == self.sizes()))
    throw Error("masked_scatter_: the mask " + describe(mask) + " does not broadcast to " + describe(self));
  auto fn = node("MaskedScatterBackward0", {self, source}, {mask}, [](Backward& w, T m) { masked_scatter_formula(w, m); });
  masked_scatter_scratch(self.numel(), is_expanded(mask, self.sizes()));
  fn.in_place(self);
  return self;
}
constexpr const char* kMaskedScatter = "derivatives.yaml masked_scatter; native/cuda/IndexKernel.cpp";
const Op masked_scatter_op{
    {"aten::masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor", Autocast::none, "mask", kMaskedScatter}, masked_scatter};
const Op masked_scatter_in_place_op{
    {"aten::masked_scatter_(Tensor(a!) self, Tensor mask, Tensor source) -> Tensor(a!)", Autocast::none, "mask", kMaskedScatter},
    masked_scatter_};

}  // namespace

namespace ops {
const Op<Tensor(T, const Tensors&)> index{
    {"aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", Autocast::none, "indices", kIndexing}, memest::index};
const Op<Tensor(T, const Tensors&, T, bool)> index_put_{
    {"aten::index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor(a!)", Autocast::none, "indices",
     kIndexing},
    memest::index_put_};
const Op<Tensor(T, I, T)> index_select{{"aten::index_select(Tensor self, int dim, Tensor index) -> Tensor", Autocast::none, "index",
                                        "derivatives.yaml index_select; native/cuda/Indexing.cu"},
                                       memest::index_select};

AssumedSelection::AssumedSelection(std::int64_t count) : before_(std::exchange(assumed_selection, count)) {}
AssumedSelection::~AssumedSelection() { assumed_selection = before_; }
void note_data_dependent(const char* op, const char* assumption) {
  runtime().diagnostics.add(
      {Diagnostic::Severity::note, "data-dependent",
       fmt::format("the size of {} depends on values, which memest does not have: it assumes that {}", op, assumption), "", ""});
}
}  // namespace ops
}  // namespace memest
