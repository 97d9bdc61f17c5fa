// What a module does once its own tensors are on the device (an override of Module._apply).
#pragma once

namespace memest::nn {

struct AfterMove {
  virtual void moved() = 0;

 protected:
  ~AfterMove() = default;
};

}  // namespace memest::nn
