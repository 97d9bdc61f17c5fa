#include "models/hf/unpacked_body.h"

namespace memest::hf {
namespace {

class UnpackedBody final : public DecoderBody {
 public:
  UnpackedBody(std::shared_ptr<const DecoderConfig> config, std::shared_ptr<const DecoderForm> form)
      : DecoderBody(form->prefix + "Model"),
        c_(std::move(config)),
        form_(std::move(form)),
        embed_tokens(child<Embedding>("embed_tokens", c_->vocab, c_->hidden)),
        layers_(add_layers("layers", c_->layers, [this](I i) { return form_->layer(*c_, i); })),
        norm_(register_module("norm", make_norm(form_->norm, c_->hidden, form_->norm_type))),
        rotary_emb_(register_module("rotary_emb", form_->rotary(*c_))) {}

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    CachePtr cache = new_cache(*c_, training);
    X inputs_embeds = embed_tokens(input_ids);
    X position_ids = default_position_ids(inputs_embeds);
    const MaskArguments arguments{c_->options, inputs_embeds, cache.get()};
    X full = create_causal_mask(arguments);
    X sliding = create_sliding_window_causal_mask(arguments, c_->file.integer("sliding_window"));
    X hidden_states = inputs_embeds;
    if (form_->first_hidden) hidden_states = form_->first_hidden(hidden_states, *c_, training);
    Pair position_embeddings = (*rotary_emb_)(hidden_states, position_ids);
    for (I i = 0; i < c_->layers; ++i)
      hidden_states =
          (*layers_[std::size_t(i)])(hidden_states, {c_->sliding(i) ? sliding : full, position_embeddings, position_ids, cache.get()});
    hidden_states = (*norm_)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<const DecoderForm> form_;
  Embedding& embed_tokens;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_;
  std::shared_ptr<RotaryEmbedding> rotary_emb_;
};

}  // namespace

std::shared_ptr<DecoderBody> make_unpacked_body(std::shared_ptr<const DecoderConfig> config, std::shared_ptr<const DecoderForm> form) {
  return std::make_shared<UnpackedBody>(std::move(config), std::move(form));
}

}  // namespace memest::hf
