// torch.amp.GradScaler (torch/amp/grad_scaler.py of 2.15).
#pragma once
#include "optim/optimizer.h"

namespace memest::optim {

class GradScaler {
 public:
  /// loss * scale; the scale and its growth tracker are made at the first call.
  Tensor scale(Tensor loss);
  /// Unscales the gradients now, for clipping between backward and step.
  void unscale(Optimizer& optimizer);
  /// Unscales where that has not been done, and steps (no infinities are found).
  void step(Optimizer& optimizer);
  void update();

 private:
  /// _unscale_grads_: a copy of found_inf and, while it runs, one of inv_scale for the device; the gradients are scaled in place.
  void unscale_grads(T inv_scale, T found_inf);

  Tensor scale_, growth_tracker_;
  Tensor found_inf_;  ///< found_inf_per_device, until update()
  bool unscaled_ = false;
};

}  // namespace memest::optim
