// Lion: the lion-pytorch package 0.2 (lion_pytorch.py, and foreach.py with foreach=true).
#include "ops/copy.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct State {
  Tensor exp_avg;
};

class Lion final : public StatefulOptimizer<State> {
 public:
  Lion(ParameterGroups groups, bool foreach) : StatefulOptimizer(std::move(groups)), foreach_(foreach) {}

 private:
  void init(T p, State& s) override {
    if (!s.exp_avg) s.exp_avg = new_state(p);
  }
  void step(const ParameterGroup& g) override {
    std::vector<State*> states;
    const List params = init_group(g, states);
    List updates;
    for (std::size_t i = 0; i < params.size(); ++i) {
      Tensor clone = ops::clone(states[i]->exp_avg, std::nullopt);
      if (foreach_)
        updates.push_back(std::move(clone));
      else
        fresh("aten::add", std::move(clone), params[i]->grad);  // exp_avg.clone().mul_(beta1).add(grad).sgn_()
    }
  }

  bool foreach_;
};

const OptimizerKind lion{
    "lion(float lr=0.0001, float[2] betas=[0.9, 0.99], float weight_decay=0.0, bool foreach=False, bool decoupled_weight_decay=False)",
    "exp_avg: 1 × parameter (lion-pytorch)", [](double lr, const std::vector<double>&, double, bool foreach, bool) -> MakeOptimizer {
      check_argument(lr > 0, "learning rate", lr);
      return [foreach](ParameterGroups groups) { return std::make_unique<Lion>(std::move(groups), foreach); };
    }};

}  // namespace
}  // namespace memest::optim
