// models/phi and phi3.
#include "models/hf/decoder.h"
#include "models/hf/rotate.h"

namespace memest::hf {
namespace {

/// PhiAttention, StableLmAttention: the first rotary_ndims of each head are rotated; the parts have names until the forward returns.
class PartialRotaryAttention final : public DecoderAttention {
 public:
  PartialRotaryAttention(const DecoderConfig& c, I layer, std::string type, Biases biases, const char* output, I rotary_ndims,
                         bool stable_lm)
      : DecoderAttention(c, layer, std::move(type), biases, output), rotary_ndims_(rotary_ndims), stable_lm_(stable_lm) {
    if (!c.file.boolean_or("qk_layernorm", false)) return;
    if (!stable_lm) {
      q_layernorm_ = register_module("q_layernorm", make_norm(Norm::layer_norm, head_dim_, "LayerNorm"));
      k_layernorm_ = register_module("k_layernorm", make_norm(Norm::layer_norm, head_dim_, "LayerNorm"));
    } else {
      q_layernorm_ = register_module("q_layernorm", std::make_shared<PerHead>(head_dim_, heads_));
      k_layernorm_ = register_module("k_layernorm", std::make_shared<PerHead>(head_dim_, kv_heads_));
    }
  }

 protected:
  void project(Frame& f) override {
    if (stable_lm_) {
      f.query = (*q_proj_)(f.hidden_states);
      f.key = (*k_proj_)(f.hidden_states);
      f.value = (*v_proj_)(f.hidden_states);
      for (X* x : {&f.query, &f.key, &f.value}) *x = x->view(f.hidden_shape).transpose(1, 2);
    } else {
      DecoderAttention::project(f);
    }
    if (!q_layernorm_) return;
    f.query = (*q_layernorm_)(f.query);
    f.key = (*k_layernorm_)(f.key);
  }
  void rotate(Frame& f, const LayerCall& call) override {
    X query_rot = leading(f.query, rotary_ndims_), query_pass = f.query.slice(-1, rotary_ndims_, std::nullopt);
    X key_rot = leading(f.key, rotary_ndims_), key_pass = f.key.slice(-1, rotary_ndims_, std::nullopt);
    std::tie(query_rot, key_rot) =
        apply_rotary_pos_emb(query_rot, key_rot, call.position_embeddings.first, call.position_embeddings.second);
    f.query = cat({query_rot, query_pass}, -1);
    f.key = cat({key_rot, key_pass}, -1);
    f.locals = {query_rot, query_pass, key_rot, key_pass};
  }

 private:
  /// StableLmLayerNormPerHead.
  class PerHead final : public Unary {
   public:
    PerHead(I width, I heads) : Unary("StableLmLayerNormPerHead") {
      auto list = register_module("norms", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
      for (I i = 0; i < heads; ++i) {
        norms_.push_back(make_norm(Norm::layer_norm_no_bias, width, "LayerNorm"));
        list->append(norms_.back());
      }
    }

   protected:
    X forward(X hidden_states) override {
      std::vector<X> states_per_heads = hidden_states.split(1, 1), normed;
      for (std::size_t i = 0; i < norms_.size(); ++i) normed.push_back((*norms_[i])(states_per_heads[i]));
      return cat(std::move(normed), 1);
    }

   private:
    std::vector<UnaryPtr> norms_;
  };
  I rotary_ndims_;
  bool stable_lm_;  ///< norms per head; the projections have names of their own
  UnaryPtr q_layernorm_, k_layernorm_;
};

class PhiDecoderLayer final : public DecoderLayer {
 public:
  PhiDecoderLayer(const DecoderConfig& c, I i, I rotary_ndims)
      : DecoderLayer("PhiDecoderLayer", c.options),
        self_attn_(register_module("self_attn", std::make_shared<PartialRotaryAttention>(
                                                    c, i, "PhiAttention", Biases{true, true, true, true}, "dense", rotary_ndims, false))),
        mlp_(register_module("mlp", make_plain_mlp("PhiMLP", "fc1", "fc2", c.hidden, c.intermediate, true, c.act))),
        input_layernorm_(register_module("input_layernorm", make_norm(Norm::layer_norm, c.hidden, "LayerNorm"))),
        resid_dropout(child<Dropout>("resid_dropout", c.file.number_or("resid_pdrop", 0.0))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*input_layernorm_)(hidden_states);
    auto [attn_outputs, weights] = (*self_attn_)(hidden_states, call);
    attn_outputs = resid_dropout(attn_outputs);
    X feed_forward_hidden_states = resid_dropout((*mlp_)(hidden_states));
    hidden_states = attn_outputs.add(feed_forward_hidden_states).add(residual);
    return hidden_states;
  }

 private:
  std::shared_ptr<Mixer> self_attn_;
  UnaryPtr mlp_, input_layernorm_;
  Dropout& resid_dropout;
};
NetworkPtr phi(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Phi";
  f.norm = Norm::layer_norm;
  f.norm_type = "LayerNorm";
  f.norm_name = "final_layernorm";
  f.layer = [](const DecoderConfig& c, I i) -> DecoderLayerPtr {
    return std::make_shared<PhiDecoderLayer>(c, i, rotary_width(c.file, c.head_dim, 0.5));
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("PhiRotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 0.5));
  };
  f.rotary_before_norm = true;
  f.first_hidden = [](X x, const DecoderConfig& c, bool training) -> X {
    return ops::dropout(x, c.file.number_or("embd_pdrop", 0.0), training);
  };
  f.head_bias = true;
  return make_decoder(config, o, std::move(f));
}

class StableLmDecoderLayer final : public DecoderLayer {
 public:
  StableLmDecoderLayer(const DecoderConfig& c, I i, I rotary_ndims) : DecoderLayer("StableLmDecoderLayer", c.options) {
    const bool b = c.file.boolean_or("use_qkv_bias", false);
    self_attn_ = register_module("self_attn", std::make_shared<PartialRotaryAttention>(c, i, "StableLmAttention", Biases{b, b, b, false},
                                                                                       "o_proj", rotary_ndims, true));
    mlp_ = register_module("mlp", make_gated_mlp("StableLmMLP", c.hidden, c.intermediate, false, c.act));
    input_layernorm_ = register_module("input_layernorm", make_norm(Norm::layer_norm, c.hidden, "LayerNorm"));
    if (!c.file.boolean_or("use_parallel_residual", false))
      post_attention_layernorm_ = register_module("post_attention_layernorm", make_norm(Norm::layer_norm, c.hidden, "LayerNorm"));
    dropout_ = register_module("dropout", std::make_shared<Dropout>(c.file.number_or("hidden_dropout", 0.0)));
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*input_layernorm_)(hidden_states);
    auto [self_attn_output, weights] = (*self_attn_)(hidden_states, call);
    X mlp_output;
    if (!post_attention_layernorm_) {
      mlp_output = (*mlp_)(hidden_states);
      mlp_output = (*dropout_)(mlp_output);
      hidden_states = residual.add(self_attn_output).add(mlp_output);
    } else {
      residual = residual.add(self_attn_output);
      mlp_output = (*mlp_)((*post_attention_layernorm_)(residual));
      mlp_output = (*dropout_)(mlp_output);
      hidden_states = residual.add(mlp_output);
    }
    return hidden_states;
  }

 private:
  std::shared_ptr<Mixer> self_attn_;
  UnaryPtr mlp_, input_layernorm_, post_attention_layernorm_;
  std::shared_ptr<Dropout> dropout_;
};
NetworkPtr stablelm(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "StableLm";
  f.norm = Norm::layer_norm;
  f.norm_type = "LayerNorm";
  f.layer = [](const DecoderConfig& c, I i) -> DecoderLayerPtr {
    return std::make_shared<StableLmDecoderLayer>(c, i, rotary_width(c.file, c.head_dim, 0.25));
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("StableLmRotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 0.25));
  };
  return make_decoder(config, o, std::move(f));
}

class Phi3Attention final : public DecoderAttention {
 public:
  Phi3Attention(const DecoderConfig& c, I layer) : DecoderAttention(c, layer, "Phi3Attention") {
    o_proj_ = &child<Linear>("o_proj", heads_ * head_dim_, c.hidden, false);
    qkv_proj_ = &child<Linear>("qkv_proj", c.hidden, (heads_ + 2 * kv_heads_) * head_dim_, false);
  }

 protected:
  void project(Frame& f) override {
    X qkv = (*qkv_proj_)(f.hidden_states);
    const I query_pos = heads_ * head_dim_, value_pos = query_pos + kv_heads_ * head_dim_;
    f.query = qkv.slice(-1, std::nullopt, query_pos);
    f.key = qkv.slice(-1, query_pos, value_pos);
    f.value = qkv.slice(-1, value_pos, std::nullopt);
    for (X* x : {&f.query, &f.key, &f.value}) *x = x->view(f.hidden_shape).transpose(1, 2);
    f.locals = {qkv};
  }
  void rotate(Frame& f, const LayerCall& call) override {
    std::tie(f.query, f.key) = apply_rotary_phi3(f.query, f.key, call.position_embeddings.first, call.position_embeddings.second);
  }

 private:
  Linear* qkv_proj_;
};
NetworkPtr phi3(const Config& config, const Options& o) {
  DecoderForm f;
  f.prefix = "Phi3";
  f.norm_type = "Phi3RMSNorm";
  f.layer = [](const DecoderConfig& c, I i) {
    LayerForm form;
    form.type = "Phi3DecoderLayer";
    form.norm_type = "Phi3RMSNorm";
    form.dropout = c.file.number_or("resid_pdrop", 0.0);
    auto attention = std::make_shared<Phi3Attention>(c, i);
    return make_layer(c, form, attention, make_fused_gated_mlp("Phi3MLP", c.hidden, c.intermediate, c.act));
  };
  f.rotary = [](const DecoderConfig& c) {
    return std::make_shared<RotaryEmbedding>("Phi3RotaryEmbedding", c.file, rotary_width(c.file, c.head_dim, 1.0));
  };
  f.masks = DecoderForm::Masks::sliding_if_set;
  return make_decoder(config, o, std::move(f));
}
const Family phi_family{{"phi"}, decoder_classes("Phi", phi, {Task::token_cls})};
const Family phi3_family{{"phi3"}, decoder_classes("Phi3", phi3, {Task::token_cls})};
const Family stablelm_family{{"stablelm"}, decoder_classes("StableLm", stablelm, {Task::token_cls})};

}  // namespace
}  // namespace memest::hf
