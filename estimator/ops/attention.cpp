// Sources: derivatives.yaml; aten/src/ATen/native/{Dropout.cpp,cuda/Dropout.cu},
// native/transformers/{attention.cpp,cuda/sdp_utils.cpp,cuda/attention.cu,cuda/attention_backward.cu}.
#include "ops/attention.h"

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/views.h"

namespace memest {
namespace {

Tensor dropout(T input, double p, bool train) {
  if (p < 0 || p > 1) throw Error("dropout probability has to be between 0 and 1, but got " + std::to_string(p));
  if (p == 0 || !train || input.numel() == 0) return input;
  auto fn = node("NativeDropoutBackward0", {input}, {},
                 [](Backward& w, T mask) { w.out[0] = ops::binary("aten::native_dropout_backward", w.grad[0], mask, w.grad[0].dtype()); });
  Tensor y = empty_like(input), mask = empty_like(input, DType::boolean);
  fn.outputs({y}, {mask});
  return y;
}

}  // namespace

namespace ops {
const Op<Tensor(T, double, bool)> dropout{{"aten::dropout(Tensor input, float p, bool train) -> Tensor", Autocast::none, "mask",
                                           "native/Dropout.cpp; derivatives.yaml native_dropout"},
                                          memest::dropout};
}  // namespace ops
}  // namespace memest
