// What a recording of a run is told (ops/recorder.h).
#pragma once
#include <string>
#include <vector>

#include "fake/checkpoint.h"

namespace memest {

struct Observer {
  virtual ~Observer() = default;
  virtual void made(T x) = 0;
  virtual void died(const TensorImpl* x) = 0;
  virtual void phase(Phase phase, int step, int micro) = 0;
  /// A parameter or a buffer, once it lies on the device.
  virtual void state(const std::string& name, T x) = 0;
  /// Around a checkpointed region, which is run again in backward (use_reentrant=False) and holds what its closure does until then.
  virtual void begin_region(const Region& region) = 0;
  virtual void end_region() = 0;
  /// In place of the backward pass, which a recording leaves out.
  virtual void backward(T loss) = 0;
  /// Hooks that let go of what autograd would save, so that a tensor lives as long as it has a name.
  virtual Ref<SavedTensorHooks> hooks() = 0;
};

}  // namespace memest
