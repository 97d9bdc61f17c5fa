// models/distilbert/modeling_distilbert.py.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

class DistilEmbeddings final : public Unary {
 public:
  explicit DistilEmbeddings(const EncoderConfig& c) : Unary("Embeddings") {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
    word_embeddings = &child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token);
    position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.hidden);
    norm = &child<LayerNorm>("LayerNorm", c.hidden);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
  }

 protected:
  X forward(X input_ids) override {
    X inputs_embeds = (*word_embeddings)(input_ids);
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, inputs_embeds.size(1));
    X positions = (*position_embeddings)(position_ids);
    X embeddings = inputs_embeds.add(positions);
    embeddings = (*norm)(embeddings);
    embeddings = (*dropout)(embeddings);
    return embeddings;
  }

 private:
  Embedding *word_embeddings, *position_embeddings;
  LayerNorm* norm;
  Dropout* dropout;
};

class DistilAttention final : public Mixer {
 public:
  explicit DistilAttention(const EncoderConfig& c)
      : Mixer("DistilBertSelfAttention"),
        options_(c.options),
        head_dim_(c.head_dim),
        dropout_(c.attention_dropout),
        q_lin(child<Linear>("q_lin", c.hidden, c.hidden)),
        k_lin(child<Linear>("k_lin", c.hidden, c.hidden)),
        v_lin(child<Linear>("v_lin", c.hidden, c.hidden)),
        out_lin(child<Linear>("out_lin", c.hidden, c.hidden)) {
    child<Dropout>("dropout", c.attention_dropout);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_layer = q_lin(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = k_lin(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = v_lin(hidden_states).view(hidden_shape).transpose(1, 2);
    auto [attn_output, attn_weights] =
        bert_attention_interface(options_, query_layer, key_layer, value_layer,
                                 {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = out_lin(attn_output);
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &q_lin, &k_lin, &v_lin, &out_lin;
};

class DistilFfn final : public Unary {
 public:
  explicit DistilFfn(const EncoderConfig& c)
      : Unary("FFN"),
        dropout(child<Dropout>("dropout", c.hidden_dropout)),
        lin1(child<Linear>("lin1", c.hidden, c.intermediate)),
        lin2(child<Linear>("lin2", c.intermediate, c.hidden)),
        activation(child<Activation>("activation", c.act)) {}

 protected:
  X forward(X input) override {
    X x = lin1(input);
    x = activation(x);
    x = lin2(x);
    x = dropout(x);
    return x;
  }

 private:
  Dropout& dropout;
  Linear &lin1, &lin2;
  Activation& activation;
};

class TransformerBlock final : public DecoderLayer {
 public:
  explicit TransformerBlock(const EncoderConfig& c) : DecoderLayer("TransformerBlock", c.options) {
    attention_ = register_module("attention", std::make_shared<DistilAttention>(c));
    sa_layer_norm = &child<LayerNorm>("sa_layer_norm", c.hidden);
    ffn_ = register_module("ffn", std::make_shared<DistilFfn>(c));
    output_layer_norm = &child<LayerNorm>("output_layer_norm", c.hidden);
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override {
    auto [attention_output, weights] = (*attention_)(hidden_states, call);
    attention_output = (*sa_layer_norm)(attention_output.add(hidden_states));
    X ffn_output = (*ffn_)(attention_output);
    ffn_output = (*output_layer_norm)(ffn_output.add(attention_output));
    return ffn_output;
  }

 private:
  MixerPtr attention_;
  UnaryPtr ffn_;
  LayerNorm *sa_layer_norm, *output_layer_norm;
};

NetworkPtr distilbert(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "DistilBert";
  f.base_prefix = "distilbert";
  f.adjust = [](EncoderConfig& c) {
    c.intermediate = c.file.size("hidden_dim");
    c.act = c.file.text_or("activation", "gelu");
    c.hidden_dropout = c.classifier_dropout = c.file.number_or("dropout", 0.1);
    c.attention_dropout = c.file.number_or("attention_dropout", 0.1);
    c.is_decoder = false;
  };
  f.embeddings = [](const EncoderConfig& c) { return std::make_shared<DistilEmbeddings>(c); };
  f.encoder_name = "transformer";
  f.layer = [](const EncoderConfig& c, I) { return std::make_shared<TransformerBlock>(c); };
  f.pools = false;
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"vocab_transform", make_linear(c.hidden, c.hidden)},
                              {"activation", make_activation(c.act)},
                              {"vocab_layer_norm", make_norm(Norm::layer_norm, c.hidden, "LayerNorm")},
                              {"vocab_projector", make_linear(c.hidden, c.vocab)}};
  };
  f.ties = {{"vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"}};
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"", make_first_token()},
                              {"pre_classifier", make_linear(c.hidden, c.hidden)},
                              {"", make_activation("relu")},
                              {"dropout", make_dropout(c.file.number_or("seq_classif_dropout", 0.2))},
                              {"classifier", make_linear(c.hidden, num_labels(c.file))}};
  };
  f.before_answers = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"dropout", make_dropout(c.file.number_or("qa_dropout", 0.1))}};
  };
  f.choice = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"", make_first_token()},
                              {"pre_classifier", make_linear(c.hidden, c.hidden)},
                              {"", make_activation("relu")},
                              {"dropout", make_dropout(c.file.number_or("seq_classif_dropout", 0.2))},
                              {"classifier", make_linear(c.hidden, 1)}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family distilbert_family{{"distilbert"}, bidirectional_classes("DistilBert", distilbert)};

}  // namespace
}  // namespace memest::hf
