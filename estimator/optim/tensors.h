// Tensors as optimizers handle them: below autograd, in lists that Python drops from their end, and torch._foreach_* results.
#pragma once
#include <functional>
#include <initializer_list>
#include <optional>
#include <utility>

#include "fake/runtime.h"
#include "fake/tensor.h"

namespace memest::optim {

/// A Python list or tuple of tensors: it lets go of the last one first (CPython's list_dealloc and tupledealloc), and a name that is bound
/// again holds the old list until the new one exists.
class List : public Tensors {
 public:
  using Tensors::Tensors;
  List() = default;
  List(Tensors list) : Tensors(std::move(list)) {}
  List(const List&) = default;
  List(List&& other) noexcept : Tensors(std::move(static_cast<Tensors&>(other))) {}
  List& operator=(List other) noexcept {
    swap(other);
    return *this;
  }
  ~List() { drop(); }
  void drop() {
    while (!empty()) pop_back();
  }
};

/// The result of an elementwise op: one new tensor as TensorIterator makes it, in the promoted type. Arguments are dropped when it exists.
Tensor fresh(const char* op, Tensor a, Tensor b = {}, Tensor c = {});
/// ... in a given type: comparisons, casts.
Tensor fresh_as(const char* op, DType dtype, Tensor a, Tensor b = {});
/// number ** x, 1 - number ** x and number / x of a tensor, as torch/_tensor.py and rsub do them.
inline Tensor one_minus_power(Tensor x) { return fresh("aten::rsub", fresh("aten::pow", std::move(x))); }
inline Tensor number_over(Tensor x) { return fresh("aten::mul", fresh("aten::reciprocal", std::move(x))); }
/// torch.tensor(number, device="cuda") and its kin.
Tensor scalar(DType dtype = DType::float32);
/// torch.where(condition, x, number): the number becomes a tensor on the device first (native/TensorCompare.cpp where).
Tensor where_number(Tensor condition, Tensor x);
/// torch.where(condition, number, number).
Tensor where_numbers(Tensor condition);
/// torch.linalg.vector_norm over all or some dimensions (native/cuda/ReduceNormKernel.cu).
Tensor vector_norm(T x, const std::optional<Dims>& dims = std::nullopt, bool keepdim = false);
/// x.norm(2).item(): read back at once.
void read_norm(T x);
/// x.mean(dim, keepdim), x.abs().max() and x.sum() over everything, below autograd.
Tensor mean_over(T x, const Dims& dims, bool keepdim);
Tensor max_of(Tensor x);
Tensor sum_of(Tensor x);

/// torch._foreach_<op> out of place: the fast kernels make outputs like the first list's tensors, the slow path (layouts or sizes differ)
/// runs the plain op for each; both give what TensorIterator gives (native/ForeachUtils.h, native/cuda/Foreach*.cu). In-place ones allocate
/// nothing.
List foreach (const char* op, const Tensors& a);
List foreach (const char* op, const Tensors& a, const Tensors& b);
List foreach (const char* op, const Tensors& a, const Tensors& b, const Tensors& c);
/// torch._foreach_norm (native/cuda/ForeachReduceOp.cu): a scalar for each tensor, and a buffer of partial sums while it runs.
List foreach_norm(const Tensors& list);
/// Whether _foreach ops take their fast kernels: one type, dense, equal sizes and strides (native/ForeachUtils.h can_use_fast_route).
bool fast_route(std::initializer_list<const Tensors*> lists);

/// Optimizer._group_tensors_by_device_and_dtype: positions in the list. The groups come in the order of PyTorch's hash map, which puts each
/// new type in front (torch/csrc/utils/... _group_tensors_by_first_tensors_device_and_dtype in native/ForeachUtils.h; libstdc++).
std::vector<std::vector<std::size_t>> by_dtype(const Tensors& list);
List picked(const Tensors& list, const std::vector<std::size_t>& positions);
List gradients_of(const Tensors& parameters);

}  // namespace memest::optim
