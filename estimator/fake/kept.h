// A saved tensor that hooks leave as it is.
#pragma once
#include "fake/autograd.h"

namespace memest {

struct Kept final : Packed {
  explicit Kept(T x) : tensor(x) {}
  Tensor unpack() override { return tensor; }
  Tensor tensor;
};

}  // namespace memest
