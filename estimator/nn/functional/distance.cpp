// Norms as Python has them: torch.norm (torch/functional.py) and torch.nn.functional.normalize.
#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

Tensor vector_norm(T x, const Value& p, const Value& dim, bool keepdim) {
  return Unbox<Tensor>::from(call_op("aten::linalg_vector_norm", {x, p, dim, keepdim}, {}));
}

const Function norm_f{"norm(Tensor input, Any p=None, Any dim=None, bool keepdim=False, ScalarType? dtype=None)",
                      [](T x, const Value& p, const Value& dim, bool keepdim, std::optional<DType> dtype) {
                        if (dtype) throw Error("norm: dtype is not modelled");
                        Value order = p;
                        if (auto* name = std::get_if<std::string>(&p)) {
                          if (*name != "fro") throw Error("norm: p must be a number or 'fro', found '" + *name + "'");
                          order = I{2};
                        }
                        if (is_none(order)) order = I{2};
                        const auto* one = std::get_if<I>(&dim);
                        return vector_norm(x, order, one ? list_of(Dims{*one}) : dim, keepdim);
                      }};

/// input / input.norm(p, dim, keepdim=True).clamp_min(eps).expand_as(input)
const Function normalize_f{"normalize(Tensor input, float p=2.0, int dim=1, float eps=1e-12)", [](T x, double p, I dim, double eps) {
                             Tensor denominator = vector_norm(x, p, list_of(Dims{dim}), true);
                             denominator = Unbox<Tensor>::from(call_op("aten::clamp_min", {denominator, eps}, {}));
                             denominator = ops::expand(denominator, x.sizes(), false);
                             return ops::div(x, denominator);
                           }};

}  // namespace
}  // namespace memest::nn
