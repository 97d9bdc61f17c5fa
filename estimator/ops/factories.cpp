#include "ops/factories.h"

#include <algorithm>
#include <cmath>

namespace memest {
namespace {

Tensor like(T self, std::optional<DType> dtype, std::optional<MemoryFormat> memory_format) {
  return empty_like(self, dtype.value_or(self.dtype()), memory_format.value_or(MemoryFormat::preserve));
}
Tensor of_size(const Dims& size, std::optional<DType> dtype) { return empty(size, dtype.value_or(DType::float32)); }
Tensor empty_of(const Dims& size, std::optional<DType> dtype, std::optional<MemoryFormat> format) {
  return empty(size, dtype.value_or(DType::float32), format.value_or(MemoryFormat::contiguous));
}
Tensor full(const Dims& size, const Scalar& fill_value, std::optional<DType> dtype) {
  return empty(size, dtype.value_or(fill_value.dtype()));
}
Tensor full_like(T self, const Scalar&, std::optional<DType> dtype, std::optional<MemoryFormat> format) {
  return like(self, dtype, format);
}
Tensor new_of_size(T self, const Dims& size, std::optional<DType> dtype) { return empty(size, dtype.value_or(self.dtype())); }
Tensor new_full(T self, const Dims& size, const Scalar&, std::optional<DType> dtype) { return empty(size, dtype.value_or(self.dtype())); }

// aten/src/ATen/native/RangeFactories.cpp: the count in double, int64 where all are integers
Tensor arange_of(const Scalar& start, const Scalar& end, const Scalar& step, std::optional<DType> dtype) {
  const double count = std::ceil((end.to_double() - start.to_double()) / step.to_double());
  if (!(count >= 0) || count > 9e18) throw Error("arange: upper bound and lower bound are inconsistent with the sign of the step");
  const bool floating = start.value.index() == 1 || end.value.index() == 1 || step.value.index() == 1;
  return empty({std::int64_t(count)}, dtype.value_or(floating ? DType::float32 : DType::int64));
}
Tensor arange(const Scalar& end, std::optional<DType> dtype) { return arange_of(0, end, 1, dtype); }
Tensor arange_start(const Scalar& start, const Scalar& end, std::optional<DType> dtype) { return arange_of(start, end, 1, dtype); }

// aten/src/ATen/native/cuda/RangeFactories.cu, TensorFactories.cpp
Tensor steps_of(const Scalar&, const Scalar&, std::int64_t steps, std::optional<DType> dtype) {
  if (steps < 0) throw Error("number of steps must be non-negative");
  return empty({steps}, dtype.value_or(DType::float32));
}
Tensor logspace(const Scalar& start, const Scalar& end, std::int64_t steps, double, std::optional<DType> dtype) {
  return steps_of(start, end, steps, dtype);
}
Tensor eye_of(std::int64_t n, std::int64_t m, std::optional<DType> dtype) {
  if (n < 0 || m < 0) throw Error("eye: n and m must be greater or equal to 0");
  return empty({n, m}, dtype.value_or(DType::float32));
}
Tensor eye(std::int64_t n, std::optional<DType> dtype) { return eye_of(n, n, dtype); }
/// get_tril_size: elements on and below a diagonal.
std::int64_t below_diagonal(std::int64_t rows, std::int64_t columns, std::int64_t offset) {
  if (rows == 0 || columns == 0) return 0;
  const std::int64_t first = offset > 0 ? std::min(columns, 1 + offset) : rows + offset > 0;
  const std::int64_t last = std::max<std::int64_t>(0, std::min(columns, rows + offset));
  const std::int64_t count = std::max<std::int64_t>(0, std::min(rows, rows + offset)), trapezoid = last - first + 1;
  std::int64_t size = checked_mul(first + last, trapezoid) / 2;
  if (count > trapezoid) size += checked_mul(count - trapezoid, columns);
  return size;
}
Tensor tril_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset, std::optional<DType> dtype) {
  return empty({2, below_diagonal(rows, columns, offset)}, dtype.value_or(DType::int64));
}
Tensor triu_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset, std::optional<DType> dtype) {
  const std::int64_t above = checked_mul(rows, columns) - below_diagonal(rows, columns, offset - 1);
  return empty({2, above}, dtype.value_or(DType::int64));
}
Tensor strided(const Dims& size, const Dims& stride, std::optional<DType> dtype) {
  return empty_strided(size, stride, dtype.value_or(DType::float32));
}
Tensor new_strided(T self, const Dims& size, const Dims& stride, std::optional<DType> dtype) {
  return empty_strided(size, stride, dtype.value_or(self.dtype()));
}
Tensor scalar_of(const Scalar&, std::optional<DType> dtype) { return empty(Dims{}, dtype.value_or(DType::float32)); }

#define MEMEST_OPTIONS "ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
const Op linspace_op{{"aten::linspace(Scalar start, Scalar end, int steps, *, " MEMEST_OPTIONS}, steps_of};
const Op logspace_op{{"aten::logspace(Scalar start, Scalar end, int steps, float base=10.0, *, " MEMEST_OPTIONS}, logspace};
const Op eye_op{{"aten::eye(SymInt n, *, " MEMEST_OPTIONS}, eye};
const Op eye_m_op{{"aten::eye.m(SymInt n, SymInt m, *, " MEMEST_OPTIONS}, eye_of};
const Op tril_indices_op{{"aten::tril_indices(int row, int col, int offset=0, *, " MEMEST_OPTIONS}, tril_indices};
const Op triu_indices_op{{"aten::triu_indices(int row, int col, int offset=0, *, " MEMEST_OPTIONS}, triu_indices};
const Op empty_strided_op{{"aten::empty_strided(SymInt[] size, SymInt[] stride, *, " MEMEST_OPTIONS}, strided};
const Op new_empty_strided_op{{"aten::new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, " MEMEST_OPTIONS}, new_strided};
const Op scalar_tensor_op{{"aten::scalar_tensor(Scalar s, *, " MEMEST_OPTIONS}, scalar_of};
#undef MEMEST_OPTIONS
const Op arange_op{
    {"aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"},
    arange};
const Op arange_start_op{{"aten::arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? "
                          "device=None, bool? pin_memory=None) -> Tensor"},
                         arange_start};
const Op arange_step_op{{"aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, "
                         "Device? device=None, bool? "
                         "pin_memory=None) -> Tensor"},
                        arange_of};
#define MEMEST_OF_SIZE(NAME)                                                                                                 \
  {"aten::" #NAME                                                                                                            \
   "(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"}, \
      of_size
const Op zeros_op{MEMEST_OF_SIZE(zeros)};
const Op ones_op{MEMEST_OF_SIZE(ones)};
const Op rand_op{MEMEST_OF_SIZE(rand)};
const Op randn_op{MEMEST_OF_SIZE(randn)};
#undef MEMEST_OF_SIZE
const Op empty_op{{"aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
                   "pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"},
                  empty_of};
#define MEMEST_NEW(NAME)                                                                                                                  \
  {"aten::" #NAME                                                                                                                         \
   "(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"}, \
      new_of_size
const Op new_zeros_op{MEMEST_NEW(new_zeros)};
const Op new_ones_op{MEMEST_NEW(new_ones)};
const Op new_empty_op{MEMEST_NEW(new_empty)};
#undef MEMEST_NEW
#define MEMEST_LIKE(NAME)                                                                                                     \
  {"aten::" #NAME                                                                                                             \
   "(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? " \
   "memory_format=None) -> Tensor"},                                                                                          \
      like
const Op empty_like_op{MEMEST_LIKE(empty_like)};
const Op rand_like_op{MEMEST_LIKE(rand_like)};
const Op randn_like_op{MEMEST_LIKE(randn_like)};
const Op full_op{{"aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
                  "pin_memory=None) -> Tensor"},
                 full};
const Op full_like_op{{"aten::full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? "
                       "device=None, bool? pin_memory=None, "
                       "MemoryFormat? memory_format=None) -> Tensor"},
                      full_like};
const Op new_full_op{{"aten::new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, "
                      "Device? device=None, bool? "
                      "pin_memory=None) -> Tensor"},
                     new_full};

}  // namespace

namespace ops {
const Op<Tensor(T, std::optional<DType>, std::optional<MemoryFormat>)> zeros_like{MEMEST_LIKE(zeros_like)};
const Op<Tensor(T, std::optional<DType>, std::optional<MemoryFormat>)> ones_like{MEMEST_LIKE(ones_like)};
#undef MEMEST_LIKE
Tensor zeros(const Dims& sizes, DType dtype) { return zeros_op(sizes, dtype); }
Tensor scalar_tensor(DType dtype) { return zeros_op(Dims{}, dtype); }
}  // namespace ops
}  // namespace memest
