// apex.amp with opt_level="O2" on a model that is wholly fp16 (keep_batchnorm_fp32=False): apex/amp/_process_optimizer.py,
// handle.py and scaler.py, with its fused kernels, which allocate nothing.
#include "ops/copy.h"
#include "ops/pointwise.h"
#include "optim/clip_grad.h"
#include "optim/master_weights.h"

namespace memest::optim {
namespace {

class Apex final : public MasterWeights {
 public:
  explicit Apex(Optimizer& optimizer) : optimizer_(optimizer) {
    CategoryScope category(Category::grad_scaler);
    overflow_ = scalar(DType::int32);
  }

  /// The masters are made by the first backward (lazy_init_with_master_weights).
  Tensor before_backward(Tensor loss) override {
    NoGrad guard;
    if (masters_.empty()) {
      std::vector<Tensors> groups;
      for (auto& g : optimizer_.groups()) {
        groups.emplace_back();
        for (auto& p : g.parameters) {
          models_.push_back(p);
          masters_.push_back(new_master(p));
          masters_.back()->requires_grad = true;
          groups.back().push_back(masters_.back());
        }
      }
      optimizer_.replace_parameters(std::move(groups));
    }
    for (auto& p : models_) p->grad.reset();
    GradMode grad(true);
    scaled_loss_ = ops::mul_scalar(ops::to(loss, DType::float32), 1.0);
    return scaled_loss_;
  }
  void after_backward() override {
    CategoryScope category(Category::gradient);
    for (std::size_t i = 0; i < models_.size(); ++i)
      if (models_[i]->grad && !masters_[i]->grad) masters_[i]->grad = empty_like(masters_[i]);
  }
  void clip_grad_norm() override { optim::clip_grad_norm(masters_); }
  void clip_grad_value() override { optim::clip_grad_value(masters_); }
  void step() override { optimizer_.step(); }
  /// The model's gradients are zeroed in place, and go at the next backward.
  void zero_grad() override {
    for (auto& m : masters_) m->grad.reset();
  }

 private:
  Optimizer& optimizer_;
  Tensors models_, masters_;
  Tensor overflow_, scaled_loss_;
};

const MasterWeightsRecord apex{"apex", DType::float16,
                               [](Optimizer& optimizer) -> std::unique_ptr<MasterWeights> { return std::make_unique<Apex>(optimizer); }};

}  // namespace
}  // namespace memest::optim
