// torch/optim/sparse_adam.py of 2.15: refuses dense gradients, and those of nn modules are dense unless Embedding(sparse=True) makes them.
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

class SparseAdam final : public Optimizer {
 public:
  using Optimizer::Optimizer;

 private:
  void step(const ParameterGroup& g) override {
    for (auto& p : g.parameters)
      if (p->grad) throw Error("--optimizer: SparseAdam does not support dense gradients, please consider Adam instead");
  }
};

const OptimizerKind sparseadam{"sparseadam(float lr=0.001, float[2] betas=[0.9, 0.999], float eps=1e-08, bool maximize=False)",
                               "exp_avg, exp_avg_sq: 2 × parameter; sparse gradients only, which memest does not model",
                               [](double lr, const std::vector<double>& betas, double eps, bool) -> MakeOptimizer {
                                 check_argument(lr > 0, "learning rate", lr);
                                 check_argument(eps > 0, "epsilon value", eps);
                                 check_betas(betas);
                                 return [](ParameterGroups groups) { return std::make_unique<SparseAdam>(std::move(groups)); };
                               }};

}  // namespace
}  // namespace memest::optim
