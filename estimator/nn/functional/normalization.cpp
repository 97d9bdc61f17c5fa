// torch.nn.functional: normalisation (torch/nn/functional.py).
#include "nn/functional/normalization.h"

#include "nn/layer.h"
#include "ops/ops.h"

namespace memest::nn {
using I = std::int64_t;

void verify_batch_size(const Dims& sizes) {
  I values = sizes[0];
  for (int i = 2; i < sizes.size(); ++i) values = checked_mul(values, sizes[i]);
  if (values == 1) throw Error("Expected more than 1 value per channel when training, got input size " + to_string(sizes));
}
void verify_spatial_size(const Dims& sizes) {
  I values = 1;
  for (int i = 2; i < sizes.size(); ++i) values = checked_mul(values, sizes[i]);
  if (values == 1) throw Error("Expected more than 1 spatial element when training, got input size " + to_string(sizes));
}

namespace {

const Function batch_norm{
    "batch_norm(Tensor input, Tensor? running_mean, Tensor? running_var, Tensor? weight=None, Tensor? bias=None, bool training=False, "
    "float momentum=0.1, float eps=1e-05)",
    [](T input, T running_mean, T running_var, T weight, T bias, bool training, double momentum, double eps) {
      if (training) verify_batch_size(input.sizes());
      return ops::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, true);
    }};
const Function instance_norm{
    "instance_norm(Tensor input, Tensor? running_mean=None, Tensor? running_var=None, Tensor? weight=None, Tensor? bias=None, bool "
    "use_input_stats=True, float "
    "momentum=0.1, float eps=1e-05)",
    [](T input, T running_mean, T running_var, T weight, T bias, bool use_input_stats, double momentum, double eps) {
      if (use_input_stats) verify_spatial_size(input.sizes());
      return ops::instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, true);
    }};

Tensor scaled_square_root(T div, double alpha, double beta, double k) {  // div.mul(alpha).add(k).pow(beta)
  Tensor x = ops::mul_scalar(div, alpha);
  x = ops::add_scalar(std::move(x), k);
  return ops::pow_scalar(std::move(x), beta);
}
const Function local_response_norm{
    "local_response_norm(Tensor input, int size, float alpha=0.0001, float beta=0.75, float k=1.0)",
    [](T input, I size, double alpha, double beta, double k) {
      if (input.dim() < 3) throw Error("Expected 3D or higher dimensionality input (got " + std::to_string(input.dim()) + " dimensions)");
      auto pool = [](const char* op, T x, const Dims& kernel) {
        return Unbox<Tensor>::from(call_op(op, {x, list_of(kernel)}, {{"stride", I{1}}}));
      };
      auto pad = [](T x, const Dims& sides) { return Unbox<Tensor>::from(call_op("aten::constant_pad_nd", {x, list_of(sides)}, {})); };
      const Dims& n = input.sizes();
      Tensor div = ops::mul(input, input);
      if (input.dim() == 3) {
        div = ops::unsqueeze(std::move(div), 1);
        div = pad(div, {0, 0, size / 2, (size - 1) / 2});
        div = ops::squeeze_dim(pool("aten::avg_pool2d", div, {size, 1}), 1);
      } else {
        div = ops::view(std::move(div), {n[0], 1, n[1], n[2], -1});
        div = pad(div, {0, 0, 0, 0, size / 2, (size - 1) / 2});
        div = ops::squeeze_dim(pool("aten::avg_pool3d", div, {size, 1, 1}), 1);
        div = ops::view(std::move(div), n);
      }
      div = scaled_square_root(div, alpha, beta, k);
      return ops::div(input, div);
    }};

}  // namespace
}  // namespace memest::nn
