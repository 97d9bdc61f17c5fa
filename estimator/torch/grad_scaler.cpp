#include "torch/grad_scaler.h"

#include <ATen/ATen.h>

#include <map>

namespace memest::plugin {

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!scale_.defined()) {
    scale_ = at::full({}, 65536.0, loss.options().dtype(c10::kFloat));
    growth_tracker_ = at::full({}, 0, loss.options().dtype(c10::kInt));
  }
  return loss * scale_;
}

void GradScaler::unscale(const std::vector<at::Tensor>& parameters) {
  const at::Tensor inv_scale = scale_.to(c10::kDouble).reciprocal().to(c10::kFloat);
  const at::Tensor found_inf = at::full({}, 0.0, scale_.options());
  found_inf_ = found_inf.to(found_inf.options(), /*non_blocking=*/true, /*copy=*/true);
  const at::Tensor inv_scale_on_device = inv_scale.to(inv_scale.options(), true, true);
  std::map<c10::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& p : parameters)
    if (p.grad().defined()) by_type[p.grad().scalar_type()].push_back(p.grad());
  for (auto& [type, gradients] : by_type) at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf_, inv_scale_on_device);
}

void GradScaler::update() {
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, 2.0, 0.5, 2000);
  found_inf_.reset();
}

}  // namespace memest::plugin
