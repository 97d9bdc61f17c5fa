#include "fake/kernel.h"

#include <limits>

namespace memest {
namespace {
constexpr std::string_view kKernelNames[] = {"matmul", "convolution", "attention"};
}

std::string_view name_of(KernelKind kind) { return kKernelNames[int(kind)]; }
std::optional<KernelKind> kernel_kind_from(std::string_view name) {
  for (int i = 0; i < 3; ++i)
    if (name == kKernelNames[i]) return KernelKind(i);
  return {};
}

std::int64_t flops_of(std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 2;
  for (std::int64_t f : factors)
    if (__builtin_mul_overflow(product, f, &product)) return std::numeric_limits<std::int64_t>::max();
  return product;
}

}  // namespace memest
