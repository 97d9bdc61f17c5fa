// Sources: derivatives.yaml; aten/src/ATen/native/{SoftMax,Loss,LossNLL}.cpp, native/cuda/{Loss,NLLLoss2d}.cu of 2.15.
#include "ops/loss.h"
#include "ops/pointwise.h"

#include "ops/copy.h"
#include "ops/factories.h"
#include "ops/iterator.h"
#include "ops/views.h"

namespace memest {
namespace {

/// _softmax and _log_softmax: with a float32 dtype over half inputs the kernel converts itself (half_to_float).
Tensor soft(const char* name, const char* kernel, T self, std::int64_t dim, std::optional<DType> dtype) {
  wrap_dim(dim, self.dim());
  Tensor input = self;
  const bool half_to_float = dtype && *dtype == DType::float32 && is_reduced_floating(self.dtype());
  if (dtype && !half_to_float) input = ops::to(self, *dtype);
  if (!is_floating(input.dtype())) throw Error("softmax: not implemented for " + describe(input));
  // native/cuda/SoftMax.cu softmax_backward_cuda_out: the kernel of softmax takes grad * output, a tensor of its own
  const bool takes_product = std::string_view(kernel) == "aten::_softmax_backward_data";
  auto fn = node(name, {input}, {}, [kernel, takes_product, type = input.dtype()](Backward& w, T result) {
    Scoped<const char*> scope(runtime().op, kernel);
    w.out[0] = empty(w.grad[0].sizes(), type);
    Tensor grad = takes_product && runtime().settings.kernel_scratch() ? ops::binary("aten::mul", w.grad[0], result) : w.grad[0];
    grad = is_contiguous(grad) ? grad : ops::clone(grad, MemoryFormat::contiguous);
  });
  Tensor x = ops::contiguous_tensor(input);
  Tensor y = empty(input.sizes(), half_to_float ? DType::float32 : input.dtype());
  fn.outputs({y}, {y});
  return y;
}
Tensor softmax(T self, std::int64_t dim, std::optional<DType> dtype) {
  return soft("SoftmaxBackward0", "aten::_softmax_backward_data", self, dim, dtype);
}
Tensor log_softmax(T self, std::int64_t dim, std::optional<DType> dtype) {
  return soft("LogSoftmaxBackward0", "aten::_log_softmax_backward_data", self, dim, dtype);
}

/// nll_loss and nll_loss2d; `self` holds log-probabilities [N, C] or [N, C, d...].
Tensor nll_loss(T self, T target, T weight, std::int64_t reduction, std::int64_t) {
  const bool spatial = self.dim() > 2;
  Dims wanted = self.sizes();
  if (wanted.size() > 1)
    wanted.erase(1);
  else
    wanted = {};
  if (!(target.sizes() == wanted))
    throw Error("nll_loss: a target of shape " + to_string(wanted) + " is expected for an input of shape " + to_string(self.sizes()) +
                ", found " + to_string(target.sizes()));
  auto fn = node(spatial ? "NllLoss2DBackward0" : "NllLossBackward0", {self}, {self, target, weight},
                 [](Backward& w, T x, T, T, T) { w.out[0] = empty(x.sizes(), x.dtype()); });
  Tensor total_weight;
  if (spatial) total_weight = empty({}, self.dtype());  // NLLLoss2d.cu resizes it first
  Tensor y = reduction == 0 ? empty(target.sizes(), self.dtype()) : empty({}, self.dtype());
  if (!spatial) total_weight = empty({}, self.dtype());
  fn.outputs({y}, {total_weight});
  return y;
}
const Op nll_loss_op{
    {"aten::nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor",
     Autocast::fp32, "self, target, weight, total_weight", "derivatives.yaml nll_loss_forward, nll_loss2d_forward"},
    nll_loss};

Tensor cross_entropy_loss(T self, T target, T weight, std::int64_t reduction, std::int64_t ignore_index, double label_smoothing) {
  if (self.sizes() == target.sizes() && is_floating(target.dtype()))
    throw Error("cross_entropy with class probabilities is not modelled yet");
  if (label_smoothing != 0) throw Error("cross_entropy with label smoothing is not modelled yet");
  const int classes = self.dim() == 1 ? 0 : 1;
  // LossNLL.cpp passes the input's own type, so autocast leaves log_softmax in it
  Tensor log_probabilities = ops::log_softmax(self, classes, self.dtype());
  return nll_loss_op(std::move(log_probabilities), target, weight, reduction, ignore_index);
}

// native/Loss.cpp mse_loss_out: the CUDA kernel shrinks a full-size result to 0-d, so the loss keeps that storage while it lives.
Tensor mse_loss(T self, T target, std::int64_t reduction) {
  const DType type = result_type({self, target});
  auto fn = node("MseLossBackward0", {self, target}, {self, target}, [](Backward& w, T x, T y) {
    for (int i : {0, 1})
      if (w.needs(i)) w.out[std::size_t(i)] = elementwise({x, y}, result_type({x, y}));
  });
  Tensor y = elementwise({self, target}, type);
  if (reduction != 0) {
    if (!runtime().settings.kernel_scratch()) y = Tensor();
    Tensor full = std::move(y);
    y = full ? share(full, {}, {}, 0) : empty({}, type);
  }
  fn.outputs({y});
  return y;
}

}  // namespace

namespace ops {
const Op<Tensor(T, std::int64_t, std::optional<DType>)> softmax{
    {"aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "result",
     "derivatives.yaml _softmax; native/cuda/SoftMax.cu"},
    memest::softmax};
const Op<Tensor(T, std::int64_t, std::optional<DType>)> log_softmax{
    {"aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", Autocast::fp32_set_dtype, "result",
     "derivatives.yaml _log_softmax; native/cuda/SoftMax.cu"},
    memest::log_softmax};
const Op<Tensor(T, T, T, std::int64_t, std::int64_t, double)> cross_entropy_loss{
    {"aten::cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100, float "
     "label_smoothing=0.0) -> Tensor",
     Autocast::none, "", "native/LossNLL.cpp cross_entropy_loss"},
    memest::cross_entropy_loss};
const Op<Tensor(T, T, std::int64_t)> mse_loss{{"aten::mse_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor", Autocast::fp32,
                                               "self, target", "derivatives.yaml mse_loss; native/Loss.cpp"},
                                              memest::mse_loss};
}  // namespace ops
}  // namespace memest
