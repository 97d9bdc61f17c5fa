// torch.optim.swa_utils.AveragedModel: a deep copy of the model beside it.
#pragma once
#include "nn/module.h"
#include "run/options.h"

namespace memest::run {

class AveragedModel {
 public:
  /// copy.deepcopy(model): each module's own parameters, its buffers, then its children; a tensor that is shared is copied once.
  AveragedModel(nn::Module& model, Averaging averaging);
  /// update_parameters(model): copies at the first call, averages in place at later ones.
  void update();
  Bytes bytes() const { return bytes_; }

 private:
  void copy(nn::Module& module, std::vector<const TensorImpl*>& seen);
  Averaging averaging_;
  Tensors parameters_, buffers_;
  Bytes bytes_ = 0;
  bool started_ = false;
};

}  // namespace memest::run
