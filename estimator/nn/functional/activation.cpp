// torch.nn.functional's activations, with its own signatures (torch/nn/functional.py): the op of that name, in place where asked.
#include <optional>

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

Tensor call(const char* op, Values arguments) { return Unbox<Tensor>::from(call_op(op, arguments, {})); }

#define MEMEST_PLAIN(NAME)                                            \
  const Function NAME##_f{#NAME "(Tensor input, bool inplace=False)", \
                          [](T x, bool inplace) { return inplace ? call("aten::" #NAME "_", {x}) : call("aten::" #NAME, {x}); }};
MEMEST_PLAIN(relu)
MEMEST_PLAIN(selu)
MEMEST_PLAIN(silu)
MEMEST_PLAIN(mish)
MEMEST_PLAIN(hardswish)
MEMEST_PLAIN(hardsigmoid)
#undef MEMEST_PLAIN
const Function relu6_f{"relu6(Tensor input, bool inplace=False)",
                       [](T x, bool inplace) { return inplace ? ops::hardtanh_(x, 0, 6) : ops::hardtanh(x, 0, 6); }};
const Function hardtanh_f{
    "hardtanh(Tensor input, float min_val=-1.0, float max_val=1.0, bool inplace=False)",
    [](T x, double min, double max, bool inplace) { return inplace ? ops::hardtanh_(x, min, max) : ops::hardtanh(x, min, max); }};
const Function elu_f{"elu(Tensor input, float alpha=1.0, bool inplace=False)",
                     [](T x, double alpha, bool inplace) { return inplace ? ops::elu_(x, alpha, 1, 1) : ops::elu(x, alpha, 1, 1); }};
const Function celu_f{"celu(Tensor input, float alpha=1.0, bool inplace=False)",
                      [](T x, double alpha, bool inplace) { return inplace ? ops::celu_(x, alpha) : ops::celu(x, alpha); }};
const Function leaky_relu_f{"leaky_relu(Tensor input, float negative_slope=0.01, bool inplace=False)", [](T x, double slope, bool inplace) {
                              return inplace ? ops::leaky_relu_(x, slope) : ops::leaky_relu(x, slope);
                            }};
const Function threshold_f{"threshold(Tensor input, float threshold, float value, bool inplace=False)",
                           [](T x, double threshold, double value, bool inplace) {
                             return inplace ? ops::threshold_(x, threshold, value) : ops::threshold(x, threshold, value);
                           }};
const Function rrelu_f{"rrelu(Tensor input, float lower=0.125, float upper=0.3333333333333333, bool training=False, bool inplace=False)",
                       [](T x, double lower, double upper, bool training, bool inplace) {
                         return inplace ? ops::rrelu_(x, lower, upper, training) : ops::rrelu(x, lower, upper, training);
                       }};
const Function gelu_f{"gelu(Tensor input, str approximate='none')",
                      [](T x, const std::string& approximate) { return ops::gelu(x, approximate); }};
const Function glu_f{"glu(Tensor input, int dim=-1)", [](T x, I dim) { return call("aten::glu", {x, dim}); }};
const Function logsigmoid_f{"logsigmoid(Tensor input)", [](T x) { return ops::log_sigmoid(x); }};
const Function hardshrink_f{"hardshrink(Tensor input, float lambd=0.5)", [](T x, double lambd) {
                              return call("aten::hardshrink", {x, lambd});
                            }};
const Function softshrink_f{"softshrink(Tensor input, float lambd=0.5)", [](T x, double lambd) {
                              return call("aten::softshrink", {x, lambd});
                            }};
const Function tanhshrink_f{"tanhshrink(Tensor input)", [](T x) {
                              const Tensor y = ops::tanh(x);
                              return ops::sub(x, y, 1);
                            }};
const Function softsign_f{"softsign(Tensor input)", [](T x) {
                            Tensor y = call("aten::abs", {x});
                            const Tensor divisor = call("aten::add", {y, I{1}});
                            y.reset();
                            return ops::div(x, divisor);
                          }};

/// Without `hard` the sample itself, else one-hot in its place, with its gradient.
const Function gumbel_softmax_f{"gumbel_softmax(Tensor logits, float tau=1, bool hard=False, float eps=1e-10, int dim=-1)",
                                [](T logits, double tau, bool hard, double, I dim) {
                                  Tensor gumbels;
                                  {
                                    Tensor exponential = empty(logits.sizes(), logits.dtype());
                                    Tensor log = ops::log(exponential);
                                    exponential.reset();
                                    gumbels = ops::neg(log);
                                  }
                                  Tensor scaled;
                                  {
                                    const Tensor sum = ops::add(logits, gumbels, 1);
                                    scaled = ops::div_scalar(sum, tau);
                                  }
                                  gumbels = std::move(scaled);
                                  const Tensor y_soft = ops::softmax(gumbels, dim, std::nullopt);
                                  if (!hard) return y_soft;
                                  Tensor index = Unbox<Tensors>::from(call_op("aten::max", {y_soft, dim, true}, {})).at(1);
                                  Tensor y_hard;
                                  {
                                    const Tensor zeros = ops::zeros_like(logits, std::nullopt, MemoryFormat::contiguous);
                                    y_hard = call("aten::scatter_", {zeros, dim, index, 1.0});
                                  }
                                  Tensor difference = ops::sub(y_hard, ops::detach(y_soft), 1);
                                  const Tensor ret = ops::add(difference, y_soft, 1);
                                  difference.reset();
                                  gumbels.reset(), index.reset(),
                                      y_hard.reset();  // Python's locals go in the order of their names' first use
                                  return ret;
                                }};

/// _get_softmax_dim: what an absent dim means.
I softmax_dim(T x, std::optional<I> dim) { return dim.value_or(x.dim() == 0 || x.dim() == 1 || x.dim() == 3 ? 0 : 1); }
const Function softmax_f{
    "softmax(Tensor input, int? dim=None, int _stacklevel=3, ScalarType? dtype=None)",
    [](T x, std::optional<I> dim, I, std::optional<DType> dtype) { return ops::softmax(x, softmax_dim(x, dim), dtype); }};
const Function log_softmax_f{
    "log_softmax(Tensor input, int? dim=None, int _stacklevel=3, ScalarType? dtype=None)",
    [](T x, std::optional<I> dim, I, std::optional<DType> dtype) { return ops::log_softmax(x, softmax_dim(x, dim), dtype); }};
const Function softmin_f{"softmin(Tensor input, int? dim=None, int _stacklevel=3, ScalarType? dtype=None)",
                         [](T x, std::optional<I> dim, I, std::optional<DType> dtype) {
                           const Tensor negative = ops::neg(x);
                           return ops::softmax(negative, softmax_dim(x, dim), dtype);
                         }};

}  // namespace
}  // namespace memest::nn
