// What runs below autograd and is heavy enough to be counted: matrix products, convolutions, attention.
// Sources: torch/utils/flop_counter.py, torch/utils/checkpoint.py (selective checkpointing) of 2.15.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>

#include "fake/runtime.h"
#include "fake/tensor.h"

namespace memest {

enum class KernelKind : std::uint8_t { matmul, convolution, attention };
std::string_view name_of(KernelKind kind);
std::optional<KernelKind> kernel_kind_from(std::string_view name);

/// Whether a kernel of a checkpointed region runs, or its results of the first run are taken (torch.utils.checkpoint's
/// create_selective_checkpoint_contexts): set on the runtime while the region runs.
struct KernelPolicy {
  virtual Tensors run(KernelKind kind, const std::function<Tensors()>& kernel) = 0;
  virtual ~KernelPolicy() = default;
};

/// The sum, or the largest number where it overflows.
inline std::int64_t saturated_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}
/// Twice the product: multiplications and additions. Stays at the largest number where it overflows.
std::int64_t flops_of(std::initializer_list<std::int64_t> factors);
/// [rows, inner] @ [inner, columns], `batch` times.
inline std::int64_t matmul_flops(std::int64_t batch, std::int64_t rows, std::int64_t inner, std::int64_t columns) {
  return flops_of({batch, rows, inner, columns});
}

/// Runs a kernel that makes one tensor.
template <class F>
Tensor run_kernel(KernelKind kind, std::int64_t flops, F kernel) {
  Runtime& rt = runtime();
  auto counted = [&] {
    rt.count_flops(flops);
    return kernel();
  };
  if (!rt.kernel_policy) return counted();
  return rt.kernel_policy->run(kind, [&] { return Tensors{counted()}; })[0];
}
/// Runs a kernel that makes several.
template <class F>
Tensors run_kernels(KernelKind kind, std::int64_t flops, F kernel) {
  Runtime& rt = runtime();
  auto counted = [&] {
    rt.count_flops(flops);
    return kernel();
  };
  return rt.kernel_policy ? rt.kernel_policy->run(kind, counted) : counted();
}

}  // namespace memest
