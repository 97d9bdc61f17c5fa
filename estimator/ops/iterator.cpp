#include "ops/iterator.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "fake/runtime.h"

namespace memest {

Dims broadcast(const Dims& a, const Dims& b) {
  const int n = std::max(a.size(), b.size());
  Dims out = Dims::filled(n, 1);
  for (int i = 1; i <= n; ++i) {
    const std::int64_t x = i <= a.size() ? a[-i] : 1, y = i <= b.size() ? b[-i] : 1;
    if (x != y && x != 1 && y != 1)
      throw Error("the size of tensor a (" + std::to_string(x) + ") must match the size of tensor b (" + std::to_string(y) +
                  ") at dimension " + std::to_string(n - i) + ": " + to_string(a) + " and " + to_string(b));
    out[-i] = x == 1 ? y : x;
  }
  return out;
}

Dims broadcast(std::span<const Tensor> inputs) {
  Dims sizes;
  for (auto& x : inputs)
    if (x && !(x.sizes() == sizes)) sizes = broadcast(sizes, x.sizes());
  return sizes;
}

ResultType& ResultType::add(T x) {
  if (!x) return *this;
  auto& place = x->wrapped_number ? number_ : x.dim() > 0 ? dimensional_ : zero_dim_;
  place = place ? promote_types(*place, x.dtype()) : x.dtype();
  return *this;
}
ResultType& ResultType::add(const Scalar& number) {
  number_ = number_ ? promote_types(*number_, number.dtype()) : number.dtype();
  return *this;
}

// aten/src/ATen/native/TypeProperties.cpp combine_categories
DType ResultType::get() const {
  auto combine = [](std::optional<DType> higher, std::optional<DType> lower) -> std::optional<DType> {
    if (!higher) return lower;
    if (!lower || is_complex(*higher)) return higher;
    if (is_floating(*higher)) return is_complex(*lower) ? promote_types(*higher, *lower) : *higher;
    if (*higher == DType::boolean || is_floating(*lower) || is_complex(*lower)) return promote_types(*higher, *lower);
    return higher;
  };
  return combine(dimensional_, combine(zero_dim_, number_)).value_or(DType::float32);
}

DType result_type(std::initializer_list<Tensor> inputs) {
  ResultType type;
  for (auto& x : inputs) type.add(x);
  return type.get();
}

namespace {

struct Operand {
  std::vector<std::int64_t> strides;  ///< bytes; 0 where broadcast
};

std::vector<std::int64_t> broadcast_strides(T x, const Dims& shape) {
  std::vector<std::int64_t> strides(std::size_t(shape.size()), 0);
  const int offset = shape.size() - x.dim();
  for (int i = 0; i < x.dim(); ++i)
    if (!(x.sizes()[i] == 1 && shape[i + offset] != 1)) strides[std::size_t(i + offset)] = x.strides()[i] * item_size(x.dtype());
  return strides;
}

/// TensorIteratorBase::reorder_dimensions: the permutation, fastest dimension first.
std::vector<int> reorder(const Dims& shape, const std::vector<Operand>& operands, bool first_is_reduced_output) {
  const int n = shape.size();
  std::vector<int> perm(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) perm[std::size_t(i)] = n - 1 - i;
  auto should_swap = [&](int dim0, int dim1) {
    for (std::size_t arg = 0; arg < operands.size(); ++arg) {
      const std::int64_t s0 = operands[arg].strides[std::size_t(dim0)], s1 = operands[arg].strides[std::size_t(dim1)];
      if (first_is_reduced_output && arg == 0 && (s0 == 0) != (s1 == 0)) return s1 == 0 ? 1 : -1;
      if (s0 == 0 || s1 == 0) continue;
      if (s0 != s1) return s0 < s1 ? -1 : 1;
      if (shape[dim0] > shape[dim1]) return 1;
    }
    return 0;
  };
  for (int i = 1; i < n; ++i)
    for (int dim1 = i, dim0 = i - 1; dim0 >= 0; --dim0) {
      const int order = should_swap(perm[std::size_t(dim0)], perm[std::size_t(dim1)]);
      if (order > 0) {
        std::swap(perm[std::size_t(dim0)], perm[std::size_t(dim1)]);
        dim1 = dim0;
      } else if (order < 0) {
        break;
      }
    }
  return perm;
}

}  // namespace

Tensor elementwise(std::span<const Tensor> inputs, DType dtype) {
  bool all_host = true, same_shape = true, contiguous = true, channels_last = true, same_strides = true;
  const Tensor* first = nullptr;
  for (auto& x : inputs) {
    if (!x) continue;
    if (!first) first = &x;
    all_host &= x.on_host();
    same_shape &= x.sizes() == (*first).sizes();
  }
  const Dims shape = broadcast(inputs);
  if (all_host) return host_tensor(shape, dtype);
  for (auto& x : inputs)
    if (x && !x.on_host() && first->on_host() && same_shape) first = &x;
  if (same_shape) {  // TensorIteratorBase::fast_set_up
    const MemoryFormat last = shape.size() == 5 ? MemoryFormat::channels_last_3d : MemoryFormat::channels_last;
    for (auto& x : inputs) {
      if (!x) continue;
      contiguous &= is_contiguous(x);
      channels_last &= shape.size() >= 4 && is_contiguous(x, last);
      same_strides &= x.strides() == (*first).strides();
    }
    if (contiguous) return empty(shape, dtype);
    if (channels_last) return empty(shape, dtype, last);
    if (same_strides && is_dense(*first)) return empty_strided(shape, (*first).strides(), dtype);
  }
  std::vector<Operand> operands;
  for (auto& x : inputs)
    if (x) operands.push_back({broadcast_strides(x, shape)});
  const auto perm = reorder(shape, operands, false);
  bool inverted = true;
  for (int i = 0; i < shape.size(); ++i) inverted &= perm[std::size_t(i)] == shape.size() - 1 - i;
  if (inverted) return empty(shape, dtype);
  Dims strides = Dims::filled(shape.size(), 1);
  std::int64_t step = 1;
  for (int d : perm) {
    strides[d] = step;
    step = checked_mul(step, shape[d]);
  }
  return empty_strided(shape, strides, dtype);
}

std::vector<bool> reduction_mask(const std::optional<Dims>& dims, int count) {
  std::vector<bool> mask(std::size_t(count), !dims || dims->empty());
  if (dims && !dims->empty())
    for (std::int64_t d : *dims) {
      const int i = wrap_dim(d, count);
      if (count == 0) continue;
      if (mask[std::size_t(i)]) throw Error("dim " + std::to_string(i) + " appears multiple times in the list of dims");
      mask[std::size_t(i)] = true;
    }
  return mask;
}

Dims reduced_sizes(const Dims& sizes, const std::vector<bool>& mask, bool keepdim) {
  Dims out;
  for (int i = 0; i < sizes.size(); ++i) {
    if (!mask[std::size_t(i)])
      out.push_back(sizes[i]);
    else if (keepdim)
      out.push_back(1);
  }
  return out;
}

namespace {

int last_pow2(std::int64_t n) {
  int p = 1;
  while (p * 2 <= n) p *= 2;
  return p;
}

/// The part of a reduction that one launch does: dimensions fastest first, reduced ones in front; strides in bytes.
struct Launch {
  std::vector<std::int64_t> shape, out, in;
  std::int64_t offset = 0;  ///< bytes from the input's start

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::int64_t s : shape) n *= s;
    return n;
  }
  bool can_use_32bit_indexing() const {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (numel() > most) return false;
    std::int64_t last_out = 1, last_in = 1;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      last_out += (shape[i] - 1) * out[i];
      last_in += (shape[i] - 1) * in[i];
    }
    return last_out <= most && last_in <= most;
  }
  std::size_t dim_to_split() const {
    std::int64_t most = -1;
    std::size_t dim = 0;
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (shape[d] == 0) continue;
      for (auto* strides : {&out, &in}) {
        const std::int64_t extent = (shape[d] - 1) * std::abs((*strides)[d]);
        if (extent > most) most = extent, dim = d;
      }
    }
    return dim;
  }
};

void launch_reduce(const Launch& it, const ReduceKernel& kernel) {
  if (!it.can_use_32bit_indexing()) {
    const std::size_t d = it.dim_to_split();
    Launch half = it;
    const std::int64_t first = it.shape[d] / 2;
    half.shape[d] = first;
    launch_reduce(half, kernel);
    half.shape[d] = it.shape[d] - first;
    half.offset += first * it.in[d];
    launch_reduce(half, kernel);
    return;
  }
  const Device& device = runtime().settings.device;
  const int ndim = int(it.shape.size());
  int reduced = 0;
  std::int64_t outputs = 1;
  for (int i = 0; i < ndim; ++i) {
    if (it.out[std::size_t(i)] == 0 && it.shape[std::size_t(i)] != 1)
      ++reduced;
    else if (it.out[std::size_t(i)] == 0)
      ++reduced;
    else
      outputs *= it.shape[std::size_t(i)];
  }
  const std::int64_t inputs = it.numel() / outputs;
  // setReduceConfig
  std::int64_t dim0 = 1, dim1 = 1, fastest = kernel.input_size;
  bool on_fastest = true, vectorize_input = false;
  int output_vec = 1;
  if (ndim > 0) {
    on_fastest = reduced == ndim || it.in[0] < it.in[std::size_t(reduced)];
    dim0 = on_fastest ? inputs : outputs;
    dim1 = on_fastest ? outputs : inputs;
    fastest = it.in[on_fastest ? 0 : std::size_t(reduced)];
  }
  if (fastest == kernel.input_size) {
    if (on_fastest && dim0 >= 128 && reduced == 1) {
      vectorize_input = true;
      dim0 /= kernel.input_vec_size;
    } else if (!on_fastest) {
      int vec = 4;
      auto update = [&](std::int64_t n) {
        while (n % vec != 0) vec /= 2;
      };
      update(it.offset / kernel.input_size);  // blocks start at multiples of 512 bytes
      update(it.shape[std::size_t(reduced)]);
      for (int j = 0; j < ndim; ++j)
        if (j != reduced) update(it.in[std::size_t(j)] / kernel.input_size);
      output_vec = vec;
      dim0 /= output_vec;
    }
  }
  (void)vectorize_input;
  const int most_threads = (kernel.input_size == 16 ? 256 : 512) / output_vec;
  const int dim0_pow2 = dim0 < most_threads ? last_pow2(dim0) : most_threads;
  const int dim1_pow2 = dim1 < most_threads ? last_pow2(dim1) : most_threads;
  int width = std::min(dim0_pow2, 32);
  const int height = std::min(dim1_pow2, most_threads / width);
  width = std::min(dim0_pow2, most_threads / height);
  const int threads = width * height;
  std::int64_t step_input = 1, step_output = 1;
  const bool block_x_reduce = ndim == 0 || on_fastest;
  (block_x_reduce ? step_input : step_output) *= width;
  auto values_per_thread = [&] { return ceil_div(inputs, step_input); };
  const bool split_across_warps = values_per_thread() >= std::min(height * 16, 256);
  (split_across_warps ? step_input : step_output) *= height;
  const int target_grid = device.multiprocessors * (device.threads_per_multiprocessor / threads);
  const std::int64_t grid = ceil_div(outputs / output_vec, step_output);
  if (!split_across_warps || values_per_thread() < 256 || grid > target_grid) return;
  const std::int64_t blocks1 = ceil_div(target_grid, grid), blocks2 = ceil_div(values_per_thread(), 16),
                     blocks3 = ceil_div(values_per_thread(), 256);
  const std::int64_t blocks = std::clamp(blocks1, blocks3, blocks2);
  if (blocks <= 1) return;
  Bytes staging = Bytes(kernel.accumulator_size) * outputs * blocks;
  if (!block_x_reduce) staging *= std::int64_t(width) * output_vec;
  Scratch buffer(staging);
  Scratch semaphores(4 * grid);
}

}  // namespace

void reduce_scratch(T input, const std::vector<bool>& mask, const ReduceKernel& kernel) {
  if (!runtime().settings.kernel_scratch() || input.numel() == 0 || input.on_host()) return;
  const Dims& shape = input.sizes();
  const int n = shape.size();
  std::vector<Operand> operands(2);
  const Dims out_strides = contiguous_strides(reduced_sizes(shape, mask, true));
  for (int i = 0; i < n; ++i) {
    const bool is_reduced = mask[std::size_t(i)];
    operands[0].strides.push_back(is_reduced ? 0 : out_strides[i] * kernel.output_size);
    operands[1].strides.push_back(input.strides()[i] * item_size(input.dtype()));
  }
  Launch it;
  for (int d : reorder(shape, operands, true)) {
    it.shape.push_back(shape[d]);
    it.out.push_back(operands[0].strides[std::size_t(d)]);
    it.in.push_back(operands[1].strides[std::size_t(d)]);
  }
  // coalesce_dimensions
  if (n > 1) {
    std::size_t prev = 0;
    for (std::size_t d = 1; d < it.shape.size(); ++d) {
      const bool fits = it.shape[prev] == 1 || it.shape[d] == 1 ||
                        (it.shape[prev] * it.out[prev] == it.out[d] && it.shape[prev] * it.in[prev] == it.in[d]);
      if (fits) {
        if (it.shape[prev] == 1) it.out[prev] = it.out[d], it.in[prev] = it.in[d];
        it.shape[prev] *= it.shape[d];
      } else {
        ++prev;
        it.shape[prev] = it.shape[d], it.out[prev] = it.out[d], it.in[prev] = it.in[d];
      }
    }
    it.shape.resize(prev + 1), it.out.resize(prev + 1), it.in.resize(prev + 1);
  }
  std::unique_ptr<Scratch> accumulation;
  if (!kernel.accumulates_in_output && !it.can_use_32bit_indexing()) {
    std::int64_t most = kernel.output_size;
    for (std::size_t d = 0; d < it.shape.size(); ++d) most = std::max(most, it.shape[d] * it.out[d]);
    accumulation = std::make_unique<Scratch>(most / kernel.output_size * kernel.accumulator_size);
  }
  launch_reduce(it, kernel);
}

Scratch::Scratch(Bytes bytes) {
  if (!runtime().settings.kernel_scratch() || bytes <= 0) return;
  CategoryScope category(Category::workspace);
  buffer_ = empty({bytes}, DType::uint8);
}

}  // namespace memest
