#include "models/hf/late_mlp.h"

namespace memest::hf {
namespace {

class LateMlpLayer final : public DecoderLayer {
 public:
  LateMlpLayer(const DecoderConfig& c, const LayerForm& form, MixerPtr attention, UnaryPtr mlp)
      : DecoderLayer(form.type, c.options),
        sandwich_(form.order == LayerForm::Order::sandwich),
        multiplier_(form.multiplier),
        self_attn_(register_module(form.attention, std::move(attention))) {
    for (auto* name : form.norms) norms_.push_back(register_module(name, make_norm(form.norm, c.hidden, form.norm_type)));
    mlp_ = register_module(form.mlp, std::move(mlp));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    std::size_t n = 0;
    X residual = hidden_states, weights;
    hidden_states = (*norms_[n++])(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, call);
    if (sandwich_) hidden_states = (*norms_[n++])(hidden_states);
    hidden_states = joined(residual, hidden_states);
    residual = hidden_states;
    hidden_states = (*norms_[n++])(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    if (sandwich_) hidden_states = (*norms_[n++])(hidden_states);
    hidden_states = joined(residual, hidden_states);
    return hidden_states;
  }

 private:
  X joined(const X& residual, const X& x) const { return multiplier_ ? residual.add(x.mul(1.0)) : residual.add(x); }
  bool sandwich_, multiplier_;
  MixerPtr self_attn_;
  std::vector<UnaryPtr> norms_;
  UnaryPtr mlp_;
};

}  // namespace

DecoderLayerPtr make_layer_with_late_mlp(const DecoderConfig& c, const LayerForm& form, MixerPtr attention, UnaryPtr mlp) {
  return std::make_shared<LateMlpLayer>(c, form, std::move(attention), std::move(mlp));
}

}  // namespace memest::hf
