// torch.nn dropouts by feature and alpha (torch/nn/modules/dropout.py), and their functions (torch/nn/functional.py).
#include <fmt/format.h>

#include "nn/layer.h"
#include "ops/op.h"

namespace memest::nn {
namespace {

Tensor call_dropout(const std::string& op, T x, double p, bool training, bool inplace) {
  return Unbox<Tensor>::from(call_op("aten::" + op + (inplace ? "_" : ""), {x, p, training}, {}));
}

class NoisyDropout final : public UnaryModule {
 public:
  NoisyDropout(const char* type, const char* op, double p, bool inplace) : UnaryModule(type), op_(op), p_(p), inplace_(inplace) {
    if (!(p >= 0 && p <= 1)) throw Error(fmt::format("{}: dropout probability has to be between 0 and 1, but got {}", type, p));
  }
  Tensor forward(T input) override { return call_dropout(op_, input, p_, training, inplace_); }

 private:
  std::string op_;
  double p_;
  bool inplace_;
};

#define MEMEST_DROPOUT(NAME, OP)                                      \
  const Layer NAME##_layer{#NAME "(float p=0.5, bool inplace=False)", \
                           [](double p, bool inplace) -> ModulePtr { return std::make_shared<NoisyDropout>(#NAME, OP, p, inplace); }};
MEMEST_DROPOUT(Dropout1d, "feature_dropout")
MEMEST_DROPOUT(Dropout2d, "feature_dropout")
MEMEST_DROPOUT(Dropout3d, "feature_dropout")
MEMEST_DROPOUT(AlphaDropout, "alpha_dropout")
MEMEST_DROPOUT(FeatureAlphaDropout, "feature_alpha_dropout")
#undef MEMEST_DROPOUT

#define MEMEST_DROPOUT(NAME, OP, TRAINING)                                                                            \
  const Function NAME##_function{#NAME "(Tensor input, float p=0.5, bool training=" TRAINING ", bool inplace=False)", \
                                 [](T x, double p, bool training, bool inplace) { return call_dropout(OP, x, p, training, inplace); }};
MEMEST_DROPOUT(dropout, "dropout", "True")
MEMEST_DROPOUT(dropout1d, "feature_dropout", "True")
MEMEST_DROPOUT(dropout2d, "feature_dropout", "True")
MEMEST_DROPOUT(dropout3d, "feature_dropout", "True")
MEMEST_DROPOUT(alpha_dropout, "alpha_dropout", "False")
MEMEST_DROPOUT(feature_alpha_dropout, "feature_alpha_dropout", "False")
#undef MEMEST_DROPOUT

}  // namespace
}  // namespace memest::nn
