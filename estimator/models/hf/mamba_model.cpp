#include "models/hf/mamba_model.h"

#include "models/hf/generate.h"
#include "models/hf/linear_attention.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

class MambaBlock final : public DecoderLayer {
 public:
  MambaBlock(const DecoderConfig& c, const std::string& prefix, MixerPtr mixer)
      : DecoderLayer(prefix + "Block", c.options),
        residual_in_fp32_(c.file.boolean_or("residual_in_fp32", true)),
        norm_(register_module("norm", make_norm(Norm::llama, c.hidden, prefix + "RMSNorm"))),
        mixer_(register_module("mixer", std::move(mixer))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*norm_)(hidden_states.to(norm_->own_parameters()[0].second.dtype()));
    if (residual_in_fp32_) residual = residual.to_float();
    hidden_states = (*mixer_)(hidden_states, call).first;
    hidden_states = residual.add(hidden_states);
    return hidden_states;
  }

 private:
  bool residual_in_fp32_;
  UnaryPtr norm_;
  MixerPtr mixer_;
};

class MambaModel final : public DecoderBody {
 public:
  MambaModel(std::shared_ptr<const DecoderConfig> config, std::shared_ptr<const DecoderForm> form)
      : DecoderBody(form->prefix + "Model"), c_(std::move(config)) {
    embeddings = &child<Embedding>("embeddings", c_->vocab, c_->hidden);
    layers_ = add_layers("layers", c_->layers, [&](I i) { return form->layer(*c_, i); });
    norm_f_ = register_module("norm_f", make_norm(Norm::llama, c_->hidden, form->norm_type));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embeddings)(input_ids);
    CachePtr cache = training ? nullptr : new_cache(*c_, training);
    X hidden_states = inputs_embeds;
    for (auto& mixer_block : layers_) hidden_states = (*mixer_block)(hidden_states, {{}, {}, {}, cache.get()});
    hidden_states = (*norm_f_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embeddings;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_f_;
};

class MambaForCausalLM final : public Network, public WithoutPositions {
 public:
  MambaForCausalLM(std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form)
      : Network(form->prefix + "ForCausalLM", c->options),
        c_(c),
        backbone(child<MambaModel>("backbone", c, form)),
        lm_head(child<Linear>("lm_head", c->hidden, c->vocab, false)) {
    if (c->tie) tie("lm_head.weight", "backbone.embeddings.weight");
  }
  bool generates() const override { return true; }
  CachePtr new_generation_cache() const override { return backbone.new_generation_cache(*c_); }
  Step step(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = backbone(batch.input, {}, batch.cache);
    return {logits_of(last_hidden_state, batch.logits_to_keep), cache};
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [last_hidden_state, cache] = backbone(batch.input);
    X logits = logits_of(last_hidden_state, options_.logits_to_keep);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, c_->vocab);
    return {model_output({loss, logits}, cache.get()), loss};
  }

 private:
  X logits_of(const X& last_hidden_state, std::optional<I> logits_to_keep) {
    X hidden_states = logits_to_keep ? last_hidden_state.slice(1, -*logits_to_keep, std::nullopt) : last_hidden_state.whole_slices(3);
    return lm_head(hidden_states.to(lm_head.weight().dtype())).to_float();
  }

  std::shared_ptr<const DecoderConfig> c_;
  MambaModel& backbone;
  Linear& lm_head;
};

}  // namespace

NetworkPtr make_mamba_model(Config config, Options options, const std::string& prefix,
                            std::function<MixerPtr(const DecoderConfig& c, I layer)> mixer) {
  note_torch_recurrence("causal-conv1d and mamba-ssm");
  config.set("num_attention_heads", ConfigValue{std::int64_t{1}});  // a mixer has no heads of attention
  DecoderForm f;
  f.prefix = prefix;
  f.norm_type = prefix + "RMSNorm";
  f.base_prefix = "backbone";
  f.layer = [prefix, mixer](const DecoderConfig& c, I i) { return std::make_shared<MambaBlock>(c, prefix, mixer(c, i)); };
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form) {
    return std::make_shared<MambaModel>(std::move(c), std::move(form));
  };
  if (options.task == Task::base) return make_decoder(config, options, std::move(f));
  return std::make_shared<MambaForCausalLM>(std::make_shared<const DecoderConfig>(config, options),
                                            std::make_shared<const DecoderForm>(std::move(f)));
}

}  // namespace memest::hf
