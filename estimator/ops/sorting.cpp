// Sources: derivatives.yaml; FunctionsManual.cpp value_selecting_reduction_backward;
// aten/src/ATen/native/{Sorting,Bucketization,TensorCompare}.cpp,
// native/cuda/{Sort.cpp,SortStable.cu,TensorTopK.cu,Sorting.cpp,Unique.cu,SummaryOps.cu,Bucketization.cu} of 2.15.
#include <fmt/format.h>

#include "ops/copy.h"
#include "ops/cub.h"
#include "ops/factories.h"
#include "ops/indexing.h"
#include "ops/iterator.h"
#include "ops/reduction_kernels.h"
#include "ops/views.h"

namespace memest {
namespace {
using I = std::int64_t;
using Pair = std::tuple<Tensor, Tensor>;

constexpr I kMostSmallSort = 4096;  // should_use_small_sort

Bytes bytes_of(I count, int size) { return checked_mul(count, size); }

/// sort_cuda_kernel's scratch: `items` elements in slices of `length` along a dimension that is last or not.
void sort_scratch(T self, int dim, I length) {
  if (!runtime().settings.kernel_scratch() || self.numel() == 0 || self.dim() == 0) return;
  const I n = self.numel();
  const int key = item_size(self.dtype());
  if (length <= kMostSmallSort) {  // indices are filled from a range, then sorted in place
    Scratch range(bytes_of(length, 8));
    return;
  }
  const bool last = self.dim() == 0 || dim == self.dim() - 1;
  std::optional<Scratch> keys, values, indices;
  if (!last) {  // the dimension is brought to the end: a copy of the input, and results to be copied back
    keys.emplace(bytes_of(n, key));
    values.emplace(bytes_of(n, key));
    indices.emplace(bytes_of(n, 8));
  }
  const I slices = n / length;
  if (slices == 1) {
    Scratch range(bytes_of(n, 8));
    Scratch sort(cub_radix_sort(n, key, 8, 8 * key));
  } else if (slices < 128) {  // segmented_sort_pairs_by_full_sort: by value, then by slice
    std::optional<Scratch> position(bytes_of(n, 8)), sorted(bytes_of(n, 8));
    {
      std::optional<Scratch> sorted_keys(bytes_of(n, key)), sort(cub_radix_sort(n, key, 8, 8 * key));
      sort.reset();
      sorted_keys.reset();
    }
    { Scratch sort(cub_radix_sort(n, 8, 8, bits_of(slices))); }
    sorted.reset();
    position.reset();
  } else {
    Scratch range(bytes_of(n, 8));
    Scratch sort(cub_segmented_sort(n, key, 8));
  }
  indices.reset();
  values.reset();
  keys.reset();
}

/// zeros of the input's sizes, the gradient scattered to the chosen places.
template <class Make>
Pair selecting(const char* name, T self, Make make) {
  auto fn = node(name, {self}, {}, [](Backward& w, T) { w.out[0] = ops::zeros(w.sizes(0), w.grad[0].dtype()); });
  Tensor values, indices;
  make(values, indices);
  fn.outputs({values, indices}, {indices});
  return {values, indices};
}

Pair sort_any(T self, I dim_) {
  const int dim = wrap_dim(dim_, self.dim());
  if (is_complex(self.dtype())) throw Error("sort: not implemented for complex types, found " + describe(self));
  return selecting("SortBackward0", self, [&](Tensor& values, Tensor& indices) {
    // strides of the input where it is dense, else contiguous
    const Dims strides = is_dense(self) ? self.strides() : contiguous_strides(self.sizes());
    values = empty_strided(self.sizes(), strides, self.dtype());
    indices = empty_strided(self.sizes(), strides, DType::int64);
    sort_scratch(self, dim, self.dim() ? self.sizes()[dim] : 1);
  });
}
Pair sort(T self, I dim, bool) { return sort_any(self, dim); }
Pair sort_stable(T self, std::optional<bool>, I dim, bool) { return sort_any(self, dim); }
constexpr const char* kSort = "derivatives.yaml sort; native/cuda/Sort.cpp, SortStable.cu";
const Op<Pair(T, I, bool)> sort_op{
    {"aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)", Autocast::none, "indices", kSort},
    sort};
const Op sort_stable_op{
    {"aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
     Autocast::none, "indices", kSort},
    sort_stable};
const Op argsort_op{
    {"aten::argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor", Autocast::none, "", "native/Sorting.cpp argsort"},
    +[](T self, I dim, bool descending) { return std::get<1>(sort_op(self, dim, descending)); }};
const Op argsort_stable_op{{"aten::argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor",
                            Autocast::none, "", "native/Sorting.cpp argsort"},
                           +[](T self, bool, I dim, bool descending) { return std::get<1>(sort_op(self, dim, descending)); }};
const Op msort_op{{"aten::msort(Tensor self) -> Tensor", Autocast::none, "", "native/Sorting.cpp msort"},
                  +[](T self) { return std::get<0>(sort_op(self, 0, false)); }};

// ---- topk -----------------------------------------------------------------------------------------------------------------------

/// TensorTopK.cu should_use_multiblock.
bool topk_by_many_blocks(I slices, I length) {
  return (slices <= 20 && length >= 20000) || (slices > 20 && slices <= 40 && length >= 10000) ||
         (slices > 40 && slices <= 80 && length >= 8000) || (slices > 80 && slices < 200 && length >= 5000) ||
         (slices >= 200 && slices < 800 && length >= 3000) || (slices >= 800 && slices <= 4000 && length >= 800) ||
         (slices > 4000 && length >= 400);
}
void topk_scratch(T self, I slices, I length) {
  if (!runtime().settings.kernel_scratch() || !topk_by_many_blocks(slices, length)) return;
  constexpr I kThreads = 256, kRegistersPerThread = 40, kRegisters = 65536, kDigits = 256;
  const I slots = runtime().settings.device.multiprocessors * (kRegisters / (kRegistersPerThread * kThreads)) * kThreads;
  const I per_thread = std::clamp<I>(ceil_div(checked_mul(slices, length), slots), 4, 64);
  const I blocks = checked_mul(slices, ceil_div(length, per_thread * kThreads));
  std::optional<Scratch> kth(slices * item_size(self.dtype())), remaining(slices * 8), desired(slices * 8),
      counts(checked_mul(blocks, kDigits * 2)), digit_sums(checked_mul(slices, kDigits * 4)), within(blocks * 4), equal(blocks * 4);
  // inclusive sums by key of each count
  { Scratch scan(ceil_div((ceil_div(blocks, I{1280}) + 32) * 16, I{256}) * 256 + 511); }
  { Scratch scan(ceil_div((ceil_div(blocks, I{1280}) + 32) * 16, I{256}) * 256 + 511); }
  equal.reset();
  within.reset();
  digit_sums.reset();
  counts.reset();
  desired.reset();
  remaining.reset();
  kth.reset();
}
Pair topk(T self, I k, I dim_, bool, bool sorted) {
  const int dim = wrap_dim(dim_, self.dim());
  const I length = self.dim() ? self.sizes()[dim] : 1;
  if (k < 0 || k > length) throw Error(fmt::format("topk: selected index k out of range: {} of {}", k, length));
  return selecting("TopkBackward0", self, [&](Tensor& values, Tensor& indices) {
    Dims sizes = self.sizes();
    if (!sizes.empty()) sizes[dim] = k;
    values = empty(sizes, self.dtype());
    indices = empty(sizes, DType::int64);
    if (self.numel() == 0 || k == 0) return;
    NoGrad below;
    CategoryScope category(Category::workspace);
    const Tensor input = ops::contiguous_tensor(self);
    topk_scratch(self, self.numel() / length, length);
    if (!sorted || values.numel() <= 1 || k <= kMostSmallSort) return;
    Tensor sorted_indices = empty_like(indices);
    Tensor sorted_values = empty_like(values);
    sort_scratch(values, dim, k);
    if (runtime().settings.kernel_scratch()) Tensor gathered = empty(sizes, DType::int64);
    sorted_values.reset();
    sorted_indices.reset();
  });
}
const Op topk_op{{"aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)",
                  Autocast::none, "indices", "derivatives.yaml topk; native/cuda/TensorTopK.cpp, TensorTopK.cu"},
                 topk};

Pair kthvalue(T self, I k, I dim_, bool keepdim) {
  const int dim = wrap_dim(dim_, self.dim());
  if (k < 1 || k > (self.dim() ? self.sizes()[dim] : 1))
    throw Error(fmt::format("kthvalue(): selected number k out of range for dimension {}", dim));
  return selecting("KthvalueBackward0", self, [&](Tensor& values, Tensor& indices) {
    const Dims sizes = reduced_sizes(self.sizes(), reduction_mask(Dims{dim}, self.dim()), keepdim);
    values = empty(sizes, self.dtype());
    indices = empty(sizes, DType::int64);
  });
}
const Op kthvalue_op{{"aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
                      Autocast::none, "indices", "derivatives.yaml kthvalue; native/cuda/Sorting.cpp"},
                     kthvalue};

// ---- median, mode ---------------------------------------------------------------------------------------------------------------

/// What stands in the middle of all elements sorted; nanmedian counts those that are numbers first.
template <bool IgnoresNan>
Tensor median(T self) {
  auto fn = node(IgnoresNan ? "NanmedianBackward0" : "MedianBackward0", {self}, {self},
                 [](Backward& w, T x, T y) { w.out[0] = evenly_distribute_backward(w.grad[0], x, y); });
  Tensor y;
  {
    NoGrad below;
    Tensor sorted = std::get<0>(sort_any(ops::flatten(self, 0, -1), -1));
    if constexpr (IgnoresNan) {
      Tensor place;
      {
        const Tensor nan = empty(sorted.sizes(), DType::boolean), number = count(nan, std::vector<bool>{true}, false);
        const Tensor others = empty({}, DType::int64), half = empty({}, DType::float32);
        place = empty({}, DType::int64);
      }
      y = empty({}, self.dtype());
    } else {
      const Tensor last_is_nan = empty({}, DType::boolean);
      y = empty({}, self.dtype());
    }
  }
  fn.outputs({y}, {y});
  return y;
}
const Op median_op{{"aten::median(Tensor self) -> Tensor", Autocast::none, "self, result", "derivatives.yaml; native/cuda/Sorting.cpp"},
                   median<false>};
const Op nanmedian_op{
    {"aten::nanmedian(Tensor self) -> Tensor", Autocast::none, "self, result", "derivatives.yaml; native/cuda/Sorting.cpp"}, median<true>};
Pair along(const char* name, T self, I dim, bool keepdim) {
  const auto mask = reduction_mask(Dims{dim}, self.dim());
  return selecting(name, self, [&](Tensor& values, Tensor& indices) {
    values = empty(reduced_sizes(self.sizes(), mask, keepdim), self.dtype());
    indices = empty(values.sizes(), DType::int64);
  });
}
const Op median_dim_op{{"aten::median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", Autocast::none,
                        "indices", "derivatives.yaml; native/cuda/Sorting.cpp"},
                       +[](T self, I dim, bool keepdim) { return along("MedianBackward1", self, dim, keepdim); }};
const Op nanmedian_dim_op{{"aten::nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
                           Autocast::none, "indices", "derivatives.yaml; native/cuda/Sorting.cpp"},
                          +[](T self, I dim, bool keepdim) { return along("NanmedianBackward1", self, dim, keepdim); }};
/// The dimension is brought to the end: a copy where it is not there. Slices beyond 2048 elements take more, which is not modelled.
Pair mode(T self, I dim_, bool keepdim) {
  const int dim = wrap_dim(dim_, self.dim());
  const auto mask = reduction_mask(Dims{dim}, self.dim());
  return selecting("ModeBackward0", self, [&](Tensor& values, Tensor& indices) {
    values = empty(reduced_sizes(self.sizes(), mask, keepdim), self.dtype());
    indices = empty(values.sizes(), DType::int64);
    if (self.dim() == 0 || !runtime().settings.kernel_scratch()) return;
    NoGrad below;
    const Tensor slices = ops::contiguous_tensor(ops::transpose(self, dim, -1));
  });
}
const Op mode_op{{"aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)", Autocast::none, "indices",
                  "derivatives.yaml; native/cuda/TensorModeKernel.cpp"},
                 mode};

// ---- unique: sizes depend on values -----------------------------------------------------------------------------------------------

Bytes unique_scratch(T sorted) {
  const bool half = sorted.dtype() == DType::float16 || sorted.dtype() == DType::bfloat16;
  return cub_unique(sorted.numel(), item_size(sorted.dtype()), !half);
}
/// compute_unique (native/cuda/UniqueCub.cu): the values that differ from their neighbours, their counts and their numbers.
std::tuple<Tensor, Tensor, Tensor> unique2(T self_, bool, bool return_inverse, bool return_counts) {
  ops::note_data_dependent("aten::unique", "no value occurs twice");
  NoGrad below;
  Tensor self = ops::contiguous_tensor(self_);
  const I n = self.numel();
  const int key = item_size(self.dtype());
  Tensor inverse, counts;
  Tensor sorted = empty({n}, self.dtype());
  Tensor sorted_positions, sequence;
  if (!return_inverse) {
    Scratch sort(cub_radix_sort(n, key, 0, 8 * key));
  } else {
    Tensor positions = empty({n}, DType::int64);
    sorted_positions = empty({n}, DType::int64);
    Scratch sort(cub_radix_sort(n, key, 8, 8 * key));
  }
  if (return_inverse) {
    inverse = empty(self_.sizes(), DType::int64);
    Tensor differs = empty({n}, DType::int64);
    Scratch scan(cub_select(n));
  }
  Tensor output = empty({n}, self.dtype());
  {
    Scratch length(8);
    if (return_counts) {
      counts = empty({n}, DType::int64);
      Scratch encode(cub_run_length_encode(n));
    } else {
      Scratch select(unique_scratch(self));
    }
  }
  if (!inverse) inverse = empty({0}, DType::int64);
  if (!counts) counts = empty({0}, DType::int64);
  return {output, inverse, counts};
}
const Op unique2_op{
    {"aten::_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
     Autocast::none, "", "native/cuda/Unique.cu, UniqueCub.cu"},
    unique2};
const Op unique_consecutive_op{
    {"aten::unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, "
     "Tensor)",
     Autocast::none, "", "native/cuda/Unique.cu"},
    +[](T self, bool return_inverse, bool return_counts, std::optional<I>) -> std::tuple<Tensor, Tensor, Tensor> {
      ops::note_data_dependent("aten::unique_consecutive", "no value occurs twice in a row");
      const I n = self.numel();
      Tensor inverse = empty(return_inverse ? self.sizes() : Dims{0}, DType::int64);
      if (return_inverse) {
        Scratch differs(checked_mul(n, I{4})), scan(cub_select(n));
      }
      Tensor output = empty({n}, self.dtype());
      Scratch length(8);
      Tensor counts = empty({return_counts ? n : 0}, DType::int64);
      Scratch select(return_counts ? cub_run_length_encode(n) : unique_scratch(self));
      return {output, inverse, counts};
    }};

// ---- buckets ------------------------------------------------------------------------------------------------------------------------

Tensor searchsorted(T sorted_sequence, T self, bool out_int32, bool, const std::optional<std::string>&, T sorter) {
  Tensor y = empty(self.sizes(), out_int32 ? DType::int32 : DType::int64);
  NoGrad below;
  if (runtime().settings.kernel_scratch()) {  // searchsorted_maybe_trim_input_tensors
    CategoryScope category(Category::workspace);
    Tensor values = ops::contiguous_tensor(self), boundaries = ops::contiguous_tensor(sorted_sequence),
           order = sorter ? ops::contiguous_tensor(sorter) : Tensor();
    const DType common = result_type({sorted_sequence, self});
    Tensor cast_values = ops::to(values, common), cast_boundaries = ops::to(boundaries, common);
  }
  return y;
}
Tensor bucketize(T self, T boundaries, bool out_int32, bool right) { return searchsorted(boundaries, self, out_int32, right, {}, {}); }
const Op searchsorted_op{{"aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? "
                          "side=None, Tensor? sorter=None) -> Tensor",
                          Autocast::none, "", "native/cuda/Bucketization.cu"},
                         searchsorted};
const Op bucketize_op{{"aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor",
                       Autocast::none, "", "native/cuda/Bucketization.cu"},
                      bucketize};

Tensor histc(T self, I bins, const Scalar& min, const Scalar& max) {
  if (bins <= 0) throw Error("bins must be > 0");
  Tensor y = empty({bins}, self.dtype());
  if (min.to_double() == max.to_double() && self.numel() > 0) {
    CategoryScope category(Category::workspace);
    Tensor least = empty(Dims{}, self.dtype()), most = empty(Dims{}, self.dtype());
    least.reset();
    most.reset();
  }
  return y;
}
const Op histc_op{
    {"aten::histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor", Autocast::none, "", "native/cuda/SummaryOps.cu"},
    histc};

Tensor bincount(T self, T weights, I minlength) {
  ops::note_data_dependent("aten::bincount", "no value is beyond minlength");
  const I bins = std::max<I>(1, minlength);
  Tensor y;
  {
    CategoryScope category(Category::workspace);
    Tensor least = empty(Dims{}, self.dtype()), most = empty(Dims{}, self.dtype());
    y = empty({bins}, !weights ? DType::int64 : weights.dtype() == DType::float32 ? DType::float32 : DType::float64);
    least.reset();
    most.reset();
  }
  y->storage->categorize(runtime().category);
  return y;
}
const Op bincount_op{
    {"aten::bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor", Autocast::none, "", "native/cuda/SummaryOps.cu"},
    bincount};

}  // namespace
}  // namespace memest
