#include "run/averaged_model.h"

#include <algorithm>

#include "ops/copy.h"
#include "optim/tensors.h"

namespace memest::run {

AveragedModel::AveragedModel(nn::Module& model, Averaging averaging) : averaging_(averaging) {
  NoGrad guard;
  std::vector<const TensorImpl*> seen;
  copy(model, seen);
}

void AveragedModel::copy(nn::Module& module, std::vector<const TensorImpl*>& seen) {
  auto copies = [&](const std::vector<std::pair<std::string, Tensor>>& list, Tensors& into, Category category) {
    CategoryScope scope(category);
    for (auto& [name, x] : list) {
      if (!x || std::find(seen.begin(), seen.end(), x.get()) != seen.end()) continue;
      seen.push_back(x.get());
      into.push_back(ops::clone(x, std::nullopt));
      bytes_ += x.numel() * item_size(x.dtype());
    }
  };
  copies(module.own_parameters(), parameters_, Category::parameter);
  copies(module.own_buffers(), buffers_, Category::buffer);
  for (auto& [name, child] : module.children()) copy(*child, seen);
}

void AveragedModel::update() {
  if (!std::exchange(started_, true)) return;  // p_averaged.copy_(p_model)
  for (std::size_t groups = optim::by_dtype(parameters_).size(); groups > 0; --groups) {
    Tensor n_averaged = optim::scalar(DType::int64);  // self.n_averaged.to(device): the counter itself is on the host
    // _foreach_lerp_ is in place; its weight is 1 - decay, or 1 / (num_averaged + 1), which is a tensor
    if (averaging_ == Averaging::swa) optim::number_over(optim::fresh("aten::add", n_averaged));
  }
}

}  // namespace memest::run
