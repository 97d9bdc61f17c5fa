#include "optim/grad_scaler.h"

#include "ops/ops.h"

namespace memest::optim {

Tensor GradScaler::scale(Tensor loss) {
  if (!scale_) {
    CategoryScope category(Category::grad_scaler);
    scale_ = ops::scalar_tensor(DType::float32);
    growth_tracker_ = ops::scalar_tensor(DType::int32);
  }
  return ops::mul(std::move(loss), scale_);
}

void GradScaler::step(Optimizer& optimizer) {
  CategoryScope category(Category::grad_scaler);
  if (optimizer.unscales_itself()) {
    // found_inf by _check_inf_per_device: a dummy inverse scale of one and a found_inf, each copied to the device once more
    Tensor found_inf;
    {
      Tensor dummy_inv_scale = ops::scalar_tensor(DType::float32), master = ops::scalar_tensor(DType::float32);
      Tensor inv_scale = ops::to_copy(dummy_inv_scale, DType::float32);
      found_inf = ops::to_copy(master, DType::float32);
    }
    optimizer.scaler = {scale_, found_inf};
    found_inf_ = found_inf;
    CategoryScope temporaries(Category::temporary);
    optimizer.step();
    optimizer.scaler = {};
    return;
  }
  {  // unscale_: inv_scale = scale.double().reciprocal().float()
    Tensor inv_scale;
    {
      Tensor in_double = ops::to_copy(scale_, DType::float64);
      Tensor inverse = empty_like(in_double);
      in_double.reset();
      inv_scale = ops::to_copy(inverse, DType::float32);
    }
    Tensor found_inf = ops::scalar_tensor(DType::float32);
    Tensor found_inf_on_device = ops::to_copy(found_inf, DType::float32);
    Tensor inv_scale_on_device = ops::to_copy(inv_scale, DType::float32);
    found_inf_ = found_inf_on_device;
  }
  CategoryScope temporaries(Category::temporary);
  optimizer.step();
}

void GradScaler::update() { found_inf_.reset(); }

}  // namespace memest::optim
