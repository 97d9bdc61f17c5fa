// models/eurobert/modeling_eurobert.py: a llama over the whole sequence; and models/ultrabert, where layers slide.
#include <map>
#include <set>

#include "models/hf/loss.h"
#include "models/hf/rotary_encoder.h"

namespace memest::hf {
namespace {

class EuroBertLayer final : public DecoderLayer {
 public:
  EuroBertLayer(const EncoderConfig& c, const std::string& prefix)
      : DecoderLayer(prefix + "DecoderLayer", c.options),
        self_attn_(
            register_module("self_attn", make_rotary_attention(c.options, {.type = prefix + "Attention",
                                                                           .hidden = c.hidden,
                                                                           .heads = c.heads,
                                                                           .kv_heads = c.file.size_or("num_key_value_heads", c.heads),
                                                                           .head_dim = c.file.size_or("head_dim", c.head_dim),
                                                                           .bias = c.file.boolean_or("attention_bias", false),
                                                                           .dropout = c.attention_dropout,
                                                                           .eager = eager_attention_forward}))),
        mlp_(register_module("mlp", make_gated_mlp(prefix + "MLP", c.hidden, c.intermediate, c.file.boolean_or("mlp_bias", false), c.act))),
        input_layernorm_(register_module("input_layernorm", make_norm(Norm::llama, c.hidden, "EuroBertRMSNorm"))),
        post_attention_layernorm_(register_module("post_attention_layernorm", make_norm(Norm::llama, c.hidden, "EuroBertRMSNorm"))) {}

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states, weights;
    hidden_states = (*input_layernorm_)(hidden_states);
    std::tie(hidden_states, weights) = (*self_attn_)(hidden_states, call);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*post_attention_layernorm_)(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return leave(hidden_states, residual, weights);
  }

 private:
  MixerPtr self_attn_;
  UnaryPtr mlp_, input_layernorm_, post_attention_layernorm_;
};

std::vector<std::string> layer_types_of(const EncoderConfig& c) {
  if (c.file.has("layer_types")) {
    auto types = c.file.texts("layer_types");
    if (I(types.size()) != c.layers)
      throw c.file.error("layer_types",
                         "expected " + std::to_string(c.layers) + " entries, one for each layer, found " + std::to_string(types.size()));
    return types;
  }
  std::vector<std::string> types;
  for (I i = 0; i < c.layers; ++i) types.emplace_back((i + 1) % 3 ? "sliding_attention" : "full_attention");
  return types;
}
RotaryEmbedding::Form rotary_form(const std::vector<std::string>& layer_types, I width) {
  RotaryEmbedding::Form form;
  for (auto& type : std::set<std::string>(layer_types.begin(), layer_types.end())) form.layer_types.emplace_back(type, width);
  return form;
}

/// `slides`: by config.layer_types, with tables and a mask for each kind.
class EuroBertModel final : public EncoderBody {
 public:
  EuroBertModel(const EncoderConfig& c, const std::string& prefix, bool slides)
      : EncoderBody(prefix + "Model"),
        options_(c.options),
        layer_types_(slides ? layer_types_of(c) : std::vector<std::string>{}),
        window_(slides ? c.file.size_or("sliding_window", 128) : 0),
        embed_tokens(child<Embedding>("embed_tokens", c.vocab, c.hidden, c.pad_token)),
        layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<EuroBertLayer>(c, prefix); }),
        norm_(register_module("norm", make_norm(Norm::llama, c.hidden, prefix + "RMSNorm"))),
        rotary_emb(child<RotaryEmbedding>("rotary_emb", prefix + "RotaryEmbedding", c.file, c.file.size_or("head_dim", c.head_dim),
                                          rotary_form(layer_types_, c.file.size_or("head_dim", c.head_dim)))) {}

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    X inputs_embeds = embed_tokens(input_ids);
    X position_ids = arange(inputs_embeds.size(1)).unsqueeze(0);
    X hidden_states = inputs_embeds, sliding_mask;
    std::map<std::string, Pair> position_embeddings;
    if (layer_types_.empty()) {
      position_embeddings[""] = rotary_emb(hidden_states, position_ids);
    } else {
      sliding_mask = create_bidirectional_sliding_window_mask({options_, inputs_embeds}, window_);
      for (auto& type : std::set<std::string>(layer_types_.begin(), layer_types_.end()))
        position_embeddings[type] = rotary_emb(inputs_embeds, position_ids, type);
    }
    for (I i = 0; i < layers_.size(); ++i) {
      const std::string type = layer_types_.empty() ? "" : layer_types_[std::size_t(i)];
      hidden_states =
          layers_[i](hidden_states, {type == "sliding_attention" ? sliding_mask : X(), position_embeddings[type], position_ids});
    }
    hidden_states = (*norm_)(hidden_states);
    return {hidden_states, {}};
  }

 private:
  const Options options_;
  std::vector<std::string> layer_types_;
  I window_;
  Embedding& embed_tokens;
  Layers<EuroBertLayer> layers_;
  UnaryPtr norm_;
  RotaryEmbedding& rotary_emb;
};

/// UltrabertPredictionHead.
class UltrabertHead final : public Unary {
 public:
  explicit UltrabertHead(const EncoderConfig& c)
      : Unary("UltrabertPredictionHead"),
        linear1(child<Linear>("linear1", c.hidden, width(c), false)),
        linear2(child<Linear>("linear2", width(c), c.hidden, false)),
        act_fn(child<Activation>("act_fn", "gelu_pytorch_tanh")),
        decoder(child<Linear>("decoder", c.hidden, c.vocab, false)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = linear1(hidden_states);
    hidden_states = act_fn(hidden_states);
    hidden_states = linear2(hidden_states);
    hidden_states = act_fn(hidden_states);
    return decoder(hidden_states);
  }

 private:
  static I width(const EncoderConfig& c) { return c.file.size_or("prediction_head_size", 768); }

  Linear &linear1, &linear2;
  Activation& act_fn;
  Linear& decoder;
};

void adjust(EncoderConfig& c) {
  c.act = c.file.text_or("hidden_act", "silu");
  c.attention_dropout = c.file.number_or("attention_dropout", 0.0);
  c.tie = c.file.boolean_or("tie_word_embeddings", false);
  c.is_decoder = false;
}

NetworkPtr eurobert(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "EuroBert";
  f.base_prefix = "model";
  f.adjust = adjust;
  f.body = [](const EncoderConfig& c, bool) { return std::make_shared<EuroBertModel>(c, "EuroBert", false); };
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"lm_head", make_linear(c.hidden, c.vocab, c.file.boolean_or("mlp_bias", false))}};
  };
  f.ties = {{"lm_head.weight", "model.embed_tokens.weight"}};
  f.language_loss = masked_lm_loss;
  f.classifier = [](const EncoderConfig& c) {
    const std::string pooling = c.file.text_or("classifier_pooling", "late");
    EncoderForm::Heads heads{{"dense", make_linear(c.hidden, c.hidden)},
                             {"activation", make_activation("gelu")},
                             {"classifier", make_linear(c.hidden, num_labels(c.file))}};
    if (pooling == "late")
      heads.push_back({"", make_sequence_mean()});
    else if (pooling == "bos" || pooling == "mean")
      heads.insert(heads.begin(), {"", pooling == "bos" ? make_first_token() : make_sequence_mean()});
    else
      throw c.file.error("classifier_pooling", "expected bos, mean or late, found '" + pooling.substr(0, 40) + "'");
    return heads;
  };
  f.token_classifier = [](const EncoderConfig& c) { return EncoderForm::Heads{{"classifier", make_linear(c.hidden, num_labels(c.file))}}; };
  return make_encoder(config, o, std::move(f));
}
NetworkPtr ultrabert(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "Ultrabert";
  f.base_prefix = "model";
  f.adjust = [](EncoderConfig& c) {
    adjust(c);
    c.classifier_dropout = c.file.number_or("classifier_dropout", 0.0);
  };
  f.body = [](const EncoderConfig& c, bool) { return std::make_shared<EuroBertModel>(c, "Ultrabert", true); };
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"head", std::make_shared<UltrabertHead>(c)}}; };
  f.ties = {{"head.decoder.weight", "model.embed_tokens.weight"}};
  f.language_loss = masked_lm_loss;
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"", make_pooling(c.file)},
                              {"drop", make_dropout(c.classifier_dropout)},
                              {"classifier", make_linear(c.hidden, num_labels(c.file))}};
  };
  f.token_classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"drop", make_dropout(c.classifier_dropout)}, {"classifier", make_linear(c.hidden, num_labels(c.file))}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family ultrabert_family{{"ultrabert"},
                              {{Task::masked_lm, "UltrabertForMaskedLM", ultrabert},
                               {Task::seq_cls, "UltrabertForSequenceClassification", ultrabert},
                               {Task::token_cls, "UltrabertForTokenClassification", ultrabert},
                               {Task::question_answering, "UltrabertForQuestionAnswering", ultrabert},
                               {Task::base, "UltrabertModel", ultrabert}}};
const Family eurobert_family{{"eurobert"},
                             {{Task::masked_lm, "EuroBertForMaskedLM", eurobert},
                              {Task::seq_cls, "EuroBertForSequenceClassification", eurobert},
                              {Task::token_cls, "EuroBertForTokenClassification", eurobert},
                              {Task::base, "EuroBertModel", eurobert}}};

}  // namespace
}  // namespace memest::hf
