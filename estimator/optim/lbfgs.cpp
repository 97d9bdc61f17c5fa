// torch/optim/lbfgs.py of 2.15. What depends on values is taken as a healthy run has it: no early stop, each pair enters the history, and a
// strong-Wolfe search accepts its first point.
#include <deque>

#include "ops/copy.h"
#include "ops/op.h"
#include "ops/views.h"
#include "optim/optimizer.h"

namespace memest::optim {
namespace {

struct Options {
  std::int64_t max_iter, max_eval, history_size;
  bool strong_wolfe, maximize;
};

Tensor dot(Tensor a, Tensor b) { return Unbox<Tensor>::from(call_op("aten::dot", {a, b}, {})); }

class LBFGS final : public Optimizer {
 public:
  LBFGS(ParameterGroups groups, Options o) : Optimizer(std::move(groups)), o_(o) {
    if (groups_.size() != 1) throw Error("--optimizer: LBFGS doesn't support per-parameter options (parameter groups)");
  }
  bool needs_closure() const override { return true; }
  void step() override { throw Error("LBFGS needs a closure"); }

  void step(const std::function<void()>& closure) override {
    closure();
    std::int64_t evaluations = 1;
    Tensor flat_grad = gather_flat_grad(), opt_cond = at_most(largest(flat_grad));
    Tensor d = d_, gtd, y, s, ys, q, be_i;
    for (std::int64_t n = 1; n <= o_.max_iter; ++n) {
      ++iterations_;
      if (iterations_ == 1) {
        d = state(fresh("aten::neg", flat_grad));
      } else {
        y = fresh("aten::sub", flat_grad, prev_flat_grad_);
        s = fresh("aten::mul", d);
        ys = dot(y, s);
        fresh_as("aten::gt", DType::boolean, ys);
        if (std::int64_t(old_dirs_.size()) == o_.history_size) {
          for (auto* history : {&old_dirs_, &old_stps_, &ro_}) {
            forget_state(history->front());
            history->pop_front();
          }
        }
        old_dirs_.push_back(state(y));
        old_stps_.push_back(state(s));
        ro_.push_back(state(number_over(ys)));
        replace(h_diag_, [&] { return fresh("aten::div", ys, dot(y, y)); });
        al_.resize(std::size_t(o_.history_size));
        q = fresh("aten::neg", flat_grad);
        for (std::size_t i = old_dirs_.size(); i-- > 0;) replace(al_[i], [&] { return fresh("aten::mul", dot(old_stps_[i], q), ro_[i]); });
        d = fresh("aten::mul", q, h_diag_);
        for (std::size_t i = 0; i < old_dirs_.size(); ++i) {
          be_i = fresh("aten::mul", dot(old_dirs_[i], d), ro_[i]);
          fresh("aten::sub", al_[i], be_i);
        }
      }
      if (!prev_flat_grad_) prev_flat_grad_ = clone_state(flat_grad);
      if (iterations_ == 1) number_over(sum_of(fresh("aten::abs", flat_grad)));
      gtd = dot(flat_grad, d);
      fresh_as("aten::gt", DType::boolean, gtd);
      if (o_.strong_wolfe) {
        flat_grad = strong_wolfe(closure, flat_grad, d);
        ++evaluations;
        opt_cond = at_most(largest(flat_grad));
      } else if (n != o_.max_iter) {
        closure();
        flat_grad = gather_flat_grad();
        opt_cond = at_most(largest(flat_grad));
        ++evaluations;
      }
      if (n == o_.max_iter || evaluations >= o_.max_eval) break;
      at_most(max_of(fresh("aten::abs", fresh("aten::mul", d))));
    }
    if (d_) forget_state(d_);
    d_ = state(d);
  }

 private:
  Tensor gather_flat_grad() const {
    Tensors views;
    for (auto& p : groups_[0].parameters)
      views.push_back(p->grad ? ops::view(p->grad, {-1}) : fresh("aten::new_zeros", ops::view(p, {-1})));
    return ops::cat(views, 0);
  }
  static Tensor largest(T x) { return max_of(fresh("aten::abs", x)); }
  static Tensor at_most(Tensor x) { return fresh_as("aten::le", DType::boolean, std::move(x)); }
  Tensor state(Tensor x) {
    count_state(x);
    return x;
  }
  template <class F>
  void replace(Tensor& place, F make) {
    Tensor made = make();
    if (place) forget_state(place);
    place = state(std::move(made));
  }
  /// One evaluation at the full step, whose point satisfies the conditions.
  Tensor strong_wolfe(const std::function<void()>& closure, T flat_grad, T d) {
    List x_init;
    for (auto& p : groups_[0].parameters) x_init.push_back(ops::clone(p, MemoryFormat::contiguous));
    Tensor d_norm = largest(d), g = ops::clone(flat_grad, MemoryFormat::contiguous);
    closure();
    Tensor g_new = gather_flat_grad(), gtd_new = dot(g_new, d);
    return g_new;
  }

  Options o_;
  std::int64_t iterations_ = 0;
  Tensor d_, prev_flat_grad_, h_diag_;
  std::deque<Tensor> old_dirs_, old_stps_, ro_;
  Tensors al_;
};

const OptimizerKind lbfgs{
    "lbfgs(float lr=1, int max_iter=20, int? max_eval=None, float tolerance_grad=1e-07, float tolerance_change=1e-09, int "
    "history_size=100, str? "
    "line_search_fn=None, *, bool maximize=False)",
    "(2 × history_size + 2) × all parameters, in flat tensors; the history fills over steps",
    [](double lr, std::int64_t max_iter, std::optional<std::int64_t> max_eval, double, double, std::int64_t history_size,
       std::optional<std::string> line_search_fn, bool maximize) -> MakeOptimizer {
      check_argument(lr >= 0, "learning rate", lr);
      if (line_search_fn && *line_search_fn != "strong_wolfe") throw Error("--optimizer: only 'strong_wolfe' is supported");
      if (max_iter < 1 || max_iter > 10'000 || history_size < 1 || history_size > 10'000)
        throw Error("--optimizer: max_iter and history_size must be between 1 and 10,000");
      const Options o{max_iter, max_eval.value_or(max_iter * 5 / 4), history_size, line_search_fn.has_value(), maximize};
      return [o](ParameterGroups groups) { return std::make_unique<LBFGS>(std::move(groups), o); };
    }};

}  // namespace
}  // namespace memest::optim
