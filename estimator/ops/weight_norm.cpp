// Weight normalization (native/WeightNorm.cpp, native/cuda/WeightNorm.cu of 2.15; derivatives.yaml _weight_norm_interface).
#include "ops/copy.h"
#include "ops/op.h"

namespace memest {
namespace {

/// The fused kernels, for the first or the last dimension: w, and the norms in g's layout.
Tensor weight_norm(T v_in, T g_in, std::int64_t dim) {
  if (dim != 0 && dim != v_in.dim() - 1)
    throw Error("_weight_norm: memest knows the first and the last dimension only, found " + std::to_string(dim));
  const Tensor v = ops::contiguous(v_in, MemoryFormat::contiguous), g = ops::contiguous(g_in, MemoryFormat::contiguous);
  auto fn = node("WeightNormInterfaceBackward0", {v, g}, {g, v}, [](Backward& w, T g_saved, T v_saved, T) {
    const Tensor grad = ops::contiguous(w.grad[0], MemoryFormat::contiguous);
    w.out[0] = empty(v_saved.sizes(), v_saved.dtype());
    w.out[1] = empty(g_saved.sizes(), g_saved.dtype());
  });
  Tensor y = empty(v.sizes(), v.dtype()), norms = empty(g.sizes(), is_reduced_floating(g.dtype()) ? DType::float32 : g.dtype());
  fn.outputs({y, norms}, {norms});
  return y;
}
const Op weight_norm_op{{"aten::_weight_norm(Tensor v, Tensor g, int dim=0) -> Tensor", Autocast::none, "g, v", "native/WeightNorm.cpp"},
                        weight_norm};

}  // namespace
}  // namespace memest
