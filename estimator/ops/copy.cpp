#include "ops/copy.h"

#include "ops/iterator.h"

namespace memest {
namespace {

Tensor clone(T self, std::optional<MemoryFormat> memory_format) {
  auto fn = node("CloneBackward0", {self}, {}, [](Backward& w) { w.out[0] = w.grad[0]; });
  Tensor result = self.on_host() ? host_tensor(self.sizes(), self.dtype())
                                 : empty_like(self, self.dtype(), memory_format.value_or(MemoryFormat::preserve));
  fn.outputs({result});
  return result;
}

Tensor contiguous(T self, MemoryFormat memory_format) {
  if (is_contiguous(self, memory_format)) return self;
  return ops::clone(self, memory_format);
}

// aten/src/ATen/native/TensorConversions.cpp _to_copy
Tensor to_copy_impl(T self, std::optional<DType> dtype, std::optional<MemoryFormat> memory_format) {
  auto fn = node("ToCopyBackward0", {self}, {}, [type = self.dtype()](Backward& w) {
    const bool real_part = is_complex(w.grad[0].dtype()) && !is_complex(type);
    w.out[0] = ops::to(real_part ? Unbox<Tensor>::from(call_op("aten::real", {w.grad[0]}, {})) : w.grad[0], type);
  });
  const DType type = dtype.value_or(self.dtype());
  const MemoryFormat format = memory_format.value_or(MemoryFormat::preserve);
  Tensor result;
  if (self.on_host())
    result = host_tensor(self.sizes(), type);
  else if (format != MemoryFormat::preserve)
    result = empty(self.sizes(), type, format);
  else if (is_dense(self))
    result = empty_strided(self.sizes(), self.strides(), type);
  else
    result = empty_strided(self.sizes(), infer_dense_strides(self.sizes(), self.strides()), type);
  if (is_differentiable(type)) fn.outputs({result});
  return result;
}

extern const Op<Tensor(T, std::optional<DType>, std::optional<MemoryFormat>)> to_copy_op{
    {"aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool "
     "non_blocking=False, "
     "MemoryFormat? memory_format=None) -> Tensor",
     Autocast::none, "", "derivatives.yaml _to_copy; aten/src/ATen/native/TensorConversions.cpp"},
    to_copy_impl};

Tensor to_dtype(T self, DType dtype, bool, bool copy, std::optional<MemoryFormat> memory_format) {
  const bool same_layout =
      !memory_format || *memory_format == MemoryFormat::preserve || suggest_memory_format(self) == *memory_format;  // to_will_alias
  if (self.dtype() == dtype && !copy && same_layout) return self;
  return to_copy_op(self, dtype, memory_format);
}

Tensor to_dtype_layout(T self, std::optional<DType> dtype, bool, bool copy, std::optional<MemoryFormat> memory_format) {
  return to_dtype(self, dtype.value_or(self.dtype()), false, copy, memory_format);
}

Tensor to_other(T self, T other, bool, bool copy, std::optional<MemoryFormat> memory_format) {
  return to_dtype(self, other.dtype(), false, copy, memory_format);
}

// derivatives.yaml copy_ is CopyBackwards (torch/csrc/autograd/functions/tensor.cpp); the kernel casts on the way.
Tensor copy_(T self, T src, bool) {
  auto fn = node("CopyBackwards", {self, src}, {}, [dtype = src.dtype()](Backward& w) {
    if (w.needs(0)) w.out[0] = engine_ops.new_zeros(w.grad[0], w.grad[0].sizes());
    if (w.needs(1)) w.out[1] = ops::to(w.grad[0], dtype);
  });
  broadcast(self.sizes(), src.sizes());
  fn.in_place(self);
  return self;
}

Tensor detach(T self) { return detached(self); }

}  // namespace

namespace ops {
const Op<Tensor(T, std::optional<MemoryFormat>)> clone{
    {"aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor", Autocast::none, "",
     "derivatives.yaml clone; aten/src/ATen/native/TensorFactories.cpp clone"},
    memest::clone};
const Op<Tensor(T, MemoryFormat)> contiguous{{"aten::contiguous(Tensor self, *, MemoryFormat memory_format=contiguous_format) -> Tensor",
                                              Autocast::none, "", "aten/src/ATen/native/TensorProperties.cpp contiguous"},
                                             memest::contiguous};
const Op<Tensor(T, DType, bool, bool, std::optional<MemoryFormat>)> to_dtype{
    {"aten::to.dtype(Tensor self, ScalarType dtype, bool _non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor",
     Autocast::none, "", "aten/src/ATen/native/TensorConversions.cpp to"},
    memest::to_dtype};
const Op<Tensor(T, T, bool)> copy_{{"aten::copy_(Tensor(a!) self, Tensor src, bool _non_blocking=False) -> Tensor(a!)", Autocast::none, "",
                                    "torch/csrc/autograd/VariableTypeManual.cpp copy_"},
                                   memest::copy_};
const Op<Tensor(T)> detach{{"aten::detach(Tensor self) -> Tensor", Autocast::none, "", "torch/csrc/autograd/VariableTypeManual.cpp detach"},
                           memest::detach};

Tensor to_copy(T x, DType dtype) { return to_copy_op(x, dtype, std::nullopt); }
Tensor to_device(T host, MemoryFormat format) {
  if (format == MemoryFormat::preserve) return empty_strided(host.sizes(), host.strides(), host.dtype());
  Tensor result = empty(host.sizes(), host.dtype(), format);
  if (!is_contiguous(result)) {
    CategoryScope category(Category::temporary);
    const Tensor staging = empty(host.sizes(), host.dtype());
  }
  return result;
}
Tensor to(T x, DType dtype) { return x.dtype() == dtype ? x : to_copy(x, dtype); }
}  // namespace ops

namespace {
const Op to_dtype_layout_op{{"aten::to.dtype_layout(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
                             "bool? pin_memory=None, bool _non_blocking=False, "
                             "bool copy=False, MemoryFormat? memory_format=None) -> Tensor",
                             Autocast::none, "", "aten/src/ATen/native/TensorConversions.cpp to"},
                            to_dtype_layout};
const Op to_other_op{
    {"aten::to.other(Tensor self, Tensor other, bool _non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor",
     Autocast::none, "", "aten/src/ATen/native/TensorConversions.cpp to"},
    to_other};
}  // namespace
}  // namespace memest
