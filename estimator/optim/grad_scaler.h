// torch.amp.GradScaler (torch/amp/grad_scaler.py of 2.15).
#pragma once
#include "optim/optimizer.h"

namespace memest::optim {

class GradScaler {
 public:
  /// loss * scale; the scale and its growth tracker are made at the first call.
  Tensor scale(Tensor loss);
  /// Unscales the gradients and steps (no infinities are found).
  void step(Optimizer& optimizer);
  void update();

 private:
  Tensor scale_, growth_tracker_;
  Tensor found_inf_;
};

}  // namespace memest::optim
