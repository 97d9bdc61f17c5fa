#include "optim/grad_scaler.h"

#include "ops/copy.h"
#include "ops/pointwise.h"

namespace memest::optim {

Tensor GradScaler::scale(Tensor loss) {
  if (!scale_) {
    CategoryScope category(Category::grad_scaler);
    scale_ = scalar(DType::float32);
    growth_tracker_ = scalar(DType::int32);
  }
  return ops::mul(std::move(loss), scale_);
}

void GradScaler::unscale_grads(T inv_scale, T found_inf) {
  found_inf_ = ops::to_copy(found_inf, DType::float32);
  Tensor inv_scale_on_device = ops::to_copy(inv_scale, DType::float32);
}

void GradScaler::unscale(Optimizer&) {
  CategoryScope category(Category::grad_scaler);
  // inv_scale = scale.double().reciprocal().float()
  Tensor inverse = fresh("aten::reciprocal", ops::to_copy(scale_, DType::float64));
  Tensor inv_scale = ops::to_copy(inverse, DType::float32);
  inverse.reset();
  Tensor found_inf = scalar();
  unscale_grads(inv_scale, found_inf);
  unscaled_ = true;
}

void GradScaler::step(Optimizer& optimizer) {
  if (!optimizer.unscales_itself()) {
    if (!unscaled_) unscale(optimizer);
    optimizer.step();
    return;
  }
  Tensor found_inf;
  {
    CategoryScope category(Category::grad_scaler);
    if (!unscaled_) {  // _check_inf_per_device
      Tensor dummy_inv_scale = scalar(), master = scalar();
      unscale_grads(dummy_inv_scale, master);
    }
    found_inf = fresh("aten::add", found_inf_);  // sum([...]) starts from the number 0
    Tensor grad_scale;
    if (!unscaled_) grad_scale = runtime().settings.torch.fused_step_scales_scaler() ? fresh("aten::mul", scale_) : scale_;
    optimizer.scaler = {grad_scale, found_inf};
  }
  optimizer.step();
  optimizer.scaler = {};
}

void GradScaler::update() {
  found_inf_.reset();
  unscaled_ = false;
}

}  // namespace memest::optim
