// torch/optim/_muon.py of 2.15.
#include "ops/copy.h"
#include "ops/matmul.h"
#include "ops/views.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  bool nesterov;
  std::int64_t ns_steps;
};
struct State {
  Tensor momentum_buffer;
};

class Muon final : public StatefulOptimizer<State> {
 public:
  Muon(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {
    if (!runtime().settings.torch.has_muon()) throw Error("--optimizer: torch.optim has no Muon before PyTorch 2.9");
    for (auto& g : groups_)
      for (auto& p : g.parameters)
        if (p.dim() != 2)
          throw Error("--optimizer: Muon only supports 2D parameters whereas we found a parameter with size: " + to_string(p.sizes()),
                      "freeze the others, or use muon+NAME, which gives them to a second optimizer");
  }

 private:
  void init(T p, State& s) override {
    if (!s.momentum_buffer) s.momentum_buffer = new_state(p->grad ? p->grad : p);
  }

  /// _zeropower_via_newtonschulz: the quintic iteration, in bfloat16.
  Tensor zeropower(T grad) const {
    Tensor ortho_grad = ops::to_copy(grad, DType::bfloat16);
    const bool tall = grad.sizes()[0] > grad.sizes()[1];
    if (tall) ortho_grad = ops::t(ortho_grad);
    fresh("aten::clamp", vector_norm(ortho_grad));  // ortho_grad.div_(ortho_grad.norm().clamp(min=eps))
    Tensor gram_matrix, gram_update;
    for (std::int64_t i = 0; i < o_.ns_steps; ++i) {
      gram_matrix = ops::matmul(ortho_grad, ops::t(ortho_grad));
      gram_update = ops::addmm(gram_matrix, gram_matrix, gram_matrix, -4.775, 2.0315);
      ortho_grad = ops::addmm(ortho_grad, gram_update, ortho_grad, 3.4445, 1);
    }
    if (tall) ortho_grad = ops::t(ortho_grad);
    return ortho_grad;
  }

  void step(const ParameterGroup& g) override {
    std::vector<State*> states;
    const List params = init_group(g, states);
    Tensor update;
    for (std::size_t i = 0; i < params.size(); ++i) {
      update = o_.nesterov ? fresh("aten::lerp", params[i]->grad, states[i]->momentum_buffer) : states[i]->momentum_buffer;
      update = zeropower(update);
    }
  }

  Options o_;
};

const OptimizerKind muon{
    "muon(float lr=0.001, float weight_decay=0.1, float momentum=0.95, bool nesterov=True, float[3] ns_coefficients=[3.4445, -4.775, "
    "2.0315], float "
    "eps=1e-07, int ns_steps=5, str? adjust_lr_fn=None)",
    "momentum_buffer: 1 × parameter; matrices only",
    [](double lr, double weight_decay, double momentum, bool nesterov, const std::vector<double>&, double, std::int64_t ns_steps,
       std::optional<std::string> adjust_lr_fn) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      check_argument(momentum >= 0, "momentum", momentum);
      check_argument(weight_decay >= 0, "weight decay", weight_decay);
      if (ns_steps < 0 || ns_steps >= 100) throw Error("--optimizer: Number of steps must be less than 100 for computational efficiency");
      if (adjust_lr_fn && *adjust_lr_fn != "original" && *adjust_lr_fn != "match_rms_adamw" && *adjust_lr_fn != "spectral_unclamped")
        throw Error("--optimizer: Adjust learning rate function " + *adjust_lr_fn + " is not supported",
                    "it is original, match_rms_adamw or spectral_unclamped");
      const Options o{nesterov, ns_steps};
      return [o](ParameterGroups groups) { return std::make_unique<Muon>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
