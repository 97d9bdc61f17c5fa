// transformers.optimization.Adafactor of transformers 5.24.
#include "ops/copy.h"
#include "ops/views.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  double weight_decay;
  bool first_moment, scale_parameter, relative_step;
};
struct State {
  Tensor exp_avg, exp_avg_sq_row, exp_avg_sq_col, exp_avg_sq, rms;
};

class HfAdafactor final : public StatefulOptimizer<State> {
 public:
  HfAdafactor(ParameterGroups groups, Options o) : StatefulOptimizer(std::move(groups)), o_(o) {}

 private:
  /// States are float32 for 16-bit parameters: they are made like the gradient's cast.
  void init(T p, State& s) override {
    if (s.exp_avg_sq_row || s.exp_avg_sq) return;
    const DType type = is_reduced_floating(p.dtype()) ? DType::float32 : p.dtype();
    if (o_.first_moment) s.exp_avg = new_state(p, type);
    if (p.dim() >= 2) {  // torch.zeros(shape).to(grad): made on the host, moved
      Dims row = p.sizes(), column = p.sizes();
      row.erase(p.dim() - 1);
      column.erase(p.dim() - 2);
      s.exp_avg_sq_row = new_state(row, type);
      s.exp_avg_sq_col = new_state(column, type);
    } else {
      s.exp_avg_sq = new_state(p, type);
    }
  }

  /// tensor.norm(2) / (tensor.numel() ** 0.5)
  static Tensor rms(T x) { return fresh("aten::div", vector_norm(x)); }

  /// _approx_sq_grad
  static Tensor approx_sq_grad(T row, T column) {
    Tensor mean = mean_over(row, {-1}, true);
    Tensor r_factor = fresh("aten::div", row, std::move(mean));
    r_factor = ops::unsqueeze(r_factor, -1);
    Tensor c_factor = fresh("aten::rsqrt", ops::unsqueeze(column, -2));
    return fresh("aten::mul", r_factor, c_factor);
  }

  void step(const ParameterGroup& g) override {
    Tensor grad, p_data_fp32, update, exp_avg;
    const double decay = g.decays ? o_.weight_decay : 0;
    for (std::size_t i = 0; i < g.parameters.size(); ++i) {
      T p = g.parameters[i];
      if (!p->grad) continue;
      grad = p->grad;
      if (is_reduced_floating(p.dtype())) grad = ops::to_float(grad);
      State& s = states_[g.first + i];
      init(p, s);
      p_data_fp32 = p;
      if (is_reduced_floating(p.dtype())) p_data_fp32 = ops::to_float(p_data_fp32);
      Tensor now = rms(p_data_fp32);
      if (s.rms) forget_state(s.rms);
      s.rms = std::move(now);
      count_state(s.rms);
      if (o_.scale_parameter) fresh_as("aten::gt", DType::boolean, s.rms);  // max(eps, RMS); the result times a number:
      Tensor lr = o_.scale_parameter ? fresh("aten::mul", s.rms) : Tensor();
      update = fresh("aten::add", fresh("aten::pow", grad));
      if (p.dim() >= 2) {
        mean_over(update, {-1}, false);
        mean_over(update, {-2}, false);
        update = approx_sq_grad(s.exp_avg_sq_row, s.exp_avg_sq_col);
      } else {
        update = fresh("aten::rsqrt", s.exp_avg_sq);
      }
      fresh("aten::div", rms(update));  // (rms / clip_threshold).clamp_(min=1.0)
      if (o_.first_moment) {
        exp_avg = s.exp_avg;
        update = exp_avg;
      }
      if (decay != 0 && lr) fresh("aten::mul", lr);
      fresh("aten::neg", update);  // p_data_fp32.add_(-update)
    }
  }

  Options o_;
};

const OptimizerKind hf_adafactor{
    "hf-adafactor(float? lr=None, float[2] eps=[1e-30, 0.001], float clip_threshold=1.0, float decay_rate=-0.8, float? beta1=None, float "
    "weight_decay=0.0, bool scale_parameter=True, bool relative_step=True, bool warmup_init=False)",
    "matrices: one float32 for each row and column; vectors: 1 × parameter in float32; beta1: 1 × parameter more",
    [](std::optional<double> lr, const std::vector<double>&, double, double, std::optional<double> beta1, double weight_decay,
       bool scale_parameter, bool relative_step, bool warmup_init) -> MakeOptimizer {
      if (lr && relative_step)
        throw Error("--optimizer: Cannot combine manual `lr` and `relative_step=True` options", "add relative_step=false");
      if (warmup_init && !relative_step) throw Error("--optimizer: `warmup_init=True` requires `relative_step=True`");
      const Options o{weight_decay, beta1.has_value(), scale_parameter, relative_step};
      return [o](ParameterGroups groups) { return std::make_unique<HfAdafactor>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
