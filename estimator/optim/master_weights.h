// --master-weights: float32 copies of 16-bit parameters, which the optimizer updates in their place.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace memest::optim {

class MasterWeights {
 public:
  virtual ~MasterWeights() = default;
  /// What the training loop calls instead of loss.backward(): the tensor to call it on.
  virtual Tensor before_backward(Tensor loss) { return loss; }
  virtual void after_backward() {}
  /// clip_grad_norm_ on what the optimizer sees; and clip_grad_value_. The base class refuses the latter.
  virtual void clip_grad_norm() = 0;
  virtual void clip_grad_value();
  virtual void step() = 0;
  virtual void zero_grad() = 0;
  /// The step ends with zero_grad; the loop calls none.
  virtual bool zeroes_after_step() const { return false; }
  /// Bytes of the float32 copies: elements × item size.
  Bytes bytes() const { return bytes_; }

 protected:
  /// x.clone().float().detach(), counted, of category optimizer_state.
  Tensor new_master(T parameter);

 private:
  Bytes bytes_ = 0;
};

/// One way to keep them; registers itself. One file each.
class MasterWeightsRecord {
 public:
  using Make = std::unique_ptr<MasterWeights> (*)(Optimizer& optimizer);
  MasterWeightsRecord(const char* name, DType dtype, Make make);
  const std::string name;
  const DType dtype;  ///< of the model
  const Make make;
};

/// Throws Error where `name` has no record, or none for a model of this type.
std::unique_ptr<MasterWeights> make_master_weights(const std::string& name, DType model, Optimizer& optimizer);
std::vector<std::string> master_weights_names();

}  // namespace memest::optim
