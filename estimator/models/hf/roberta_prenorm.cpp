// models/roberta_prelayernorm and models/xlm_roberta_xl: RoBERTa with the norms before the attention and the feed-forward part.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

/// dense, dropout where it has one, and the residual.
class ResidualSum final : public Joint {
 public:
  ResidualSum(std::string type, const EncoderConfig& c, I in, bool drops)
      : Joint(std::move(type)),
        dense(child<Linear>("dense", in, c.hidden)),
        dropout(drops ? &child<Dropout>("dropout", c.hidden_dropout) : nullptr) {}

 protected:
  X forward(X hidden_states, X input_tensor) override {
    hidden_states = dense(hidden_states);
    if (dropout) hidden_states = (*dropout)(hidden_states);
    hidden_states = hidden_states.add(input_tensor);
    return hidden_states;
  }

 private:
  Linear& dense;
  Dropout* dropout;
};

class NormedAttention final : public Mixer {
 public:
  NormedAttention(const EncoderConfig& c, I layer, const std::string& prefix, const char* norm) : Mixer(prefix + "Attention") {
    self_ = register_module("self", make_self_attention(c, layer, prefix));
    output_ = register_module("output", std::make_shared<ResidualSum>(prefix + "SelfOutput", c, c.hidden, true));
    norm_ = &child<LayerNorm>(norm, c.hidden);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    X hidden_states_pre_layer_norm = (*norm_)(hidden_states);
    auto [attention_output, attn_weights] = (*self_)(hidden_states_pre_layer_norm, call);
    attention_output = (*output_)(attention_output, hidden_states);
    return {attention_output, attn_weights};
  }

 private:
  MixerPtr self_;
  JointPtr output_;
  LayerNorm* norm_;
};

/// RobertaPreLayerNormIntermediate: norms first.
class NormedIntermediate final : public Unary {
 public:
  explicit NormedIntermediate(const EncoderConfig& c)
      : Unary("RobertaPreLayerNormIntermediate"),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dense(child<Linear>("dense", c.hidden, c.intermediate)),
        intermediate_act_fn(child<Activation>("intermediate_act_fn", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = norm(hidden_states);
    hidden_states = dense(hidden_states);
    hidden_states = intermediate_act_fn(hidden_states);
    return hidden_states;
  }

 private:
  LayerNorm& norm;
  Linear& dense;
  Activation& intermediate_act_fn;
};

/// `xl`: the feed-forward part's norm is the layer's, and its output has no dropout.
class PreNormLayer final : public DecoderLayer {
 public:
  PreNormLayer(const EncoderConfig& c, I layer, const std::string& prefix, bool xl) : DecoderLayer(prefix + "Layer", c.options) {
    attention_ =
        register_module("attention", std::make_shared<NormedAttention>(c, layer, prefix, xl ? "self_attn_layer_norm" : "LayerNorm"));
    intermediate_ =
        register_module("intermediate", xl ? make_intermediate(prefix + "Intermediate", c) : std::make_shared<NormedIntermediate>(c));
    output_ = register_module("output", std::make_shared<ResidualSum>(prefix + "Output", c, c.intermediate, !xl));
    if (xl) norm_ = &child<LayerNorm>("LayerNorm", c.hidden);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    auto [attention_output, weights] = (*attention_)(hidden_states, call);
    X intermediate_output = norm_ ? (*norm_)(attention_output) : attention_output;
    intermediate_output = (*intermediate_)(intermediate_output);
    X layer_output = (*output_)(intermediate_output, attention_output);
    return layer_output;
  }

 private:
  MixerPtr attention_;
  UnaryPtr intermediate_;
  JointPtr output_;
  LayerNorm* norm_ = nullptr;
};

NetworkPtr roberta_prelayernorm(const Config& config, const Options& o) {
  EncoderForm f = roberta_form("RobertaPreLayerNorm", "roberta_prelayernorm");
  f.layer = [](const EncoderConfig& c, I i) { return std::make_shared<PreNormLayer>(c, i, "RobertaPreLayerNorm", false); };
  f.norm_after = "LayerNorm";
  return make_encoder(config, o, std::move(f));
}
NetworkPtr xlm_roberta_xl(const Config& config, const Options& o) {
  EncoderForm f = roberta_form("XLMRobertaXL", "roberta", {.skip_padding = true, .norm = false});
  f.layer = [](const EncoderConfig& c, I i) { return std::make_shared<PreNormLayer>(c, i, "XLMRobertaXL", true); };
  f.encoder_norm = "LayerNorm";
  return make_encoder(config, o, std::move(f));
}
const Family roberta_prelayernorm_family{{"roberta-prelayernorm"}, encoder_classes("RobertaPreLayerNorm", roberta_prelayernorm)};
const Family xlm_roberta_xl_family{{"xlm-roberta-xl"}, encoder_classes("XLMRobertaXL", xlm_roberta_xl)};

}  // namespace
}  // namespace memest::hf
