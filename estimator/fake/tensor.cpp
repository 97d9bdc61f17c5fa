#include "fake/tensor.h"

#include <numeric>

#include "base/text.h"
#include "fake/autograd.h"
#include "fake/observer.h"
#include "fake/runtime.h"

namespace memest {

namespace {
constexpr Bytes kLargestStorage = 64 * 1024 * kGiB;  // far beyond any card: a slip in a size, and loops over its parts would not end
}

Storage::Storage(Bytes size, bool on_host) : bytes(size), category(Category::temporary), host(on_host) {
  if (size > kLargestStorage) throw Error("a tensor of " + human(size) + " is larger than any GPU's memory", "look for a slip in a size");
  if (!host && bytes > 0) runtime().allocated(*this);
}
Storage::~Storage() {
  if (!host && bytes > 0) runtime().freed(*this);
}
void Storage::categorize(Category to) {
  if (to == category) return;
  category = to;
  if (!host && bytes > 0) runtime().categorized(*this);
}

namespace {

/// Of the run that the thread is in, where that is recorded.
Observer* observer() {
  Runtime* rt = current_runtime();
  return rt ? rt->observer : nullptr;
}

}  // namespace

void dispose(TensorImpl* impl) {
  if (Observer* o = observer()) o->died(impl);
  delete impl;
}

namespace {

Tensor make(Ref<Storage> storage, const Dims& sizes, const Dims& strides, DType dtype, std::int64_t offset = 0) {
  auto* impl = new TensorImpl;
  impl->dtype = dtype;
  impl->sizes = sizes;
  impl->strides = strides;
  impl->numel = sizes.numel();
  impl->offset = offset;
  impl->storage = std::move(storage);
  Tensor x(impl);
  if (Observer* o = observer()) o->made(x);
  return x;
}

/// Elements from the first to the last that the strides reach (at::detail::computeStorageNbytes).
std::int64_t extent(const Dims& sizes, const Dims& strides) {
  std::int64_t last = 1;
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last = checked_add(last, checked_mul(sizes[i] - 1, strides[i]));
  }
  return last;
}

void check_sizes(const Dims& sizes) {
  for (std::int64_t s : sizes)
    if (s < 0) throw Error("a tensor cannot have the sizes " + to_string(sizes) + ": " + std::to_string(s) + " is negative");
}

}  // namespace

Tensor empty_strided(const Dims& sizes, const Dims& strides, DType dtype) {
  check_sizes(sizes);
  return make(Ref<Storage>(new Storage(checked_mul(extent(sizes, strides), item_size(dtype)), false)), sizes, strides, dtype);
}

Tensor empty(const Dims& sizes, DType dtype) {
  check_sizes(sizes);
  return make(Ref<Storage>(new Storage(checked_mul(sizes.numel(), item_size(dtype)), false)), sizes, contiguous_strides(sizes), dtype);
}

Tensor empty(const Dims& sizes, DType dtype, MemoryFormat format) { return empty_strided(sizes, strides_of(sizes, format), dtype); }

Tensor empty_like(T x) { return empty_like(x, x.dtype(), MemoryFormat::preserve); }
Tensor empty_like(T x, DType dtype) { return empty_like(x, dtype, MemoryFormat::preserve); }
Tensor empty_like(T x, DType dtype, MemoryFormat format) {
  Tensor y;
  if (format != MemoryFormat::preserve)
    y = empty(x.sizes(), dtype, format);
  else if (is_dense(x))
    y = empty_strided(x.sizes(), x.strides(), dtype);
  else
    y = empty_strided(x.sizes(), infer_dense_strides(x.sizes(), x.strides()), dtype);
  return y;
}

Tensor host_tensor(const Dims& sizes, DType dtype) {
  return make(Ref<Storage>(new Storage(checked_mul(sizes.numel(), item_size(dtype)), true)), sizes, contiguous_strides(sizes), dtype);
}

Tensor wrapped_number(DType dtype) {
  Tensor x = host_tensor({}, dtype);
  x->wrapped_number = true;
  return x;
}

Tensor share(T x, const Dims& sizes, const Dims& strides, std::int64_t offset) {
  return make(x->storage, sizes, strides, x.dtype(), offset);
}

Tensor make_view(T x, const Dims& sizes, const Dims& strides, std::int64_t offset) {
  Tensor view = share(x, sizes, strides, offset);
  view->base = x->base ? x->base : x;
  view->attr_version = x->storage->version;
  return view;
}

Tensor detached(T x) { return share(x, x.sizes(), x.strides(), x->offset); }

bool is_contiguous(T x) {
  std::int64_t step = 1;
  if (x.numel() == 0) return true;
  for (int i = x.dim(); i-- > 0;) {
    if (x.sizes()[i] == 1) continue;
    if (x.strides()[i] != step) return false;
    step *= x.sizes()[i];
  }
  return true;
}

bool is_contiguous(T x, MemoryFormat format) {
  if (format != MemoryFormat::channels_last && format != MemoryFormat::channels_last_3d) return is_contiguous(x);
  if (x.dim() != (format == MemoryFormat::channels_last ? 4 : 5)) return false;
  const Dims wanted = channels_last_strides(x.sizes());
  for (int i = 0; i < x.dim(); ++i)
    if (x.sizes()[i] != 1 && x.strides()[i] != wanted[i]) return false;
  return true;
}

// c10/core/MemoryFormat.h is_channels_last_strides_2d_s4 / _3d_s5
bool is_channels_last_strides(const Dims& sizes, const Dims& strides) {
  if (sizes.size() != 4 && sizes.size() != 5) return false;
  if (strides[1] == 0) return false;
  std::int64_t least = 0;
  auto check = [&](int d) {
    if (sizes[d] == 0 || strides[d] < least) return false;
    if (d == 0 && least == strides[1]) return false;  // N111 is ambiguous: contiguous wins
    least = strides[d];
    if (sizes[d] > 1) least *= sizes[d];
    return true;
  };
  if (!check(1)) return false;
  for (int d = sizes.size() - 1; d >= 2; --d)
    if (!check(d)) return false;
  return check(0);
}

MemoryFormat suggest_memory_format(T x) {
  if (!is_channels_last_strides(x.sizes(), x.strides())) return MemoryFormat::contiguous;
  return x.dim() == 4 ? MemoryFormat::channels_last : MemoryFormat::channels_last_3d;
}

bool is_dense(const Dims& sizes, const Dims& strides) {
  std::vector<int> order;
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) { return strides[a] < strides[b]; });
  std::int64_t step = 1;
  for (int i : order) {
    if (strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}
bool is_dense(T x) { return is_contiguous(x) || is_dense(x.sizes(), x.strides()); }

// at::infer_dense_strides (aten/src/ATen/ExpandUtils.cpp)
Dims infer_dense_strides(const Dims& sizes, const Dims& strides) {
  const int n = sizes.size();
  if (n <= 1) return contiguous_strides(sizes);
  std::vector<int> perm(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) perm[std::size_t(i)] = n - 1 - i;
  auto should_swap = [&](int a, int b) {  // 1: a belongs after b
    const std::int64_t sa = strides[a], sb = strides[b];
    if (sa == 0 || sb == 0) return 0;  // an expanded dimension stays where it is
    if (sa < sb) return -1;
    if (sa > sb) return 1;
    return sizes[a] > sizes[b] ? 1 : 0;
  };
  for (int i = 1; i < n; ++i)
    for (int b = i, a = i - 1; a >= 0; --a) {
      const int order = should_swap(perm[std::size_t(a)], perm[std::size_t(b)]);
      if (order > 0) {
        std::swap(perm[std::size_t(a)], perm[std::size_t(b)]);
        b = a;
      } else if (order < 0) {
        break;
      }
    }
  Dims dense = Dims::filled(n, 1);
  std::int64_t step = 1;
  for (int d : perm) {
    dense[d] = step;
    if (sizes[d] > 1) step = checked_mul(step, sizes[d]);
  }
  return dense;
}

std::optional<Dims> view_strides(const Dims& old_sizes, const Dims& old_strides, const Dims& sizes) {
  if (old_sizes.empty()) return Dims::filled(sizes.size(), 1);
  if (old_sizes.numel() == 0) {
    if (old_sizes == sizes) return old_strides;
    return contiguous_strides(sizes);
  }
  Dims strides = Dims::filled(sizes.size(), 1);
  int v = sizes.size() - 1;
  std::int64_t chunk = old_strides.back(), numel = 1, viewed = 1;
  for (int d = old_sizes.size() - 1; d >= 0; --d) {
    numel *= old_sizes[d];
    if (d == 0 || (old_sizes[d - 1] != 1 && old_strides[d - 1] != numel * chunk)) {
      while (v >= 0 && (viewed < numel || sizes[v] == 1)) {
        strides[v] = viewed * chunk;
        viewed *= sizes[v];
        --v;
      }
      if (viewed != numel) return {};
      if (d > 0) {
        chunk = old_strides[d - 1];
        numel = viewed = 1;
      }
    }
  }
  if (v != -1) return {};
  return strides;
}

Dims strides_of(const Dims& sizes, MemoryFormat format) {
  const int n = format == MemoryFormat::channels_last ? 4 : format == MemoryFormat::channels_last_3d ? 5 : 0;
  if (!n) return contiguous_strides(sizes);
  if (sizes.size() != n)
    throw Error("required rank " + std::to_string(n) + " tensor to use channels_last format, found sizes " + to_string(sizes));
  return channels_last_strides(sizes);
}

int wrap_dim(std::int64_t dim, int count) {
  const std::int64_t n = std::max(count, 1);
  if (dim < -n || dim >= n)
    throw Error("dimension out of range: expected to be in [" + std::to_string(-n) + ", " + std::to_string(n - 1) + "], but got " +
                std::to_string(dim));
  return int(dim < 0 ? dim + n : dim);
}

std::string describe(T x) { return x ? std::string(name_of(x.dtype())) + to_string(x.sizes()) : std::string("None"); }

}  // namespace memest
