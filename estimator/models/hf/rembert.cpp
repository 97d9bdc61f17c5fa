// models/rembert/modeling_rembert.py.
#include "models/hf/classic_encoder.h"

namespace memest::hf {
namespace {

/// RemBertLMPredictionHead: an output embedding of its own width, which is not tied.
class RemBertHead final : public Unary {
 public:
  explicit RemBertHead(const EncoderConfig& c) : Unary("RemBertLMPredictionHead") {
    const I width = c.file.size("output_embedding_size");
    dense = &child<Linear>("dense", c.hidden, width);
    decoder = &child<Linear>("decoder", width, c.vocab);
    activation = &child<Activation>("activation", c.act);
    norm = &child<LayerNorm>("LayerNorm", width);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*dense)(hidden_states);
    hidden_states = (*activation)(hidden_states);
    hidden_states = (*norm)(hidden_states);
    hidden_states = (*decoder)(hidden_states);
    return hidden_states;
  }

 private:
  Linear *dense, *decoder;
  Activation* activation;
  LayerNorm* norm;
};

class RemBertOnlyMLMHead final : public Unary {
 public:
  explicit RemBertOnlyMLMHead(const EncoderConfig& c) : Unary("RemBertOnlyMLMHead"), predictions(child<RemBertHead>("predictions", c)) {}

 protected:
  X forward(X sequence_output) override { return predictions(sequence_output); }

 private:
  RemBertHead& predictions;
};

NetworkPtr rembert(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "RemBert";
  f.base_prefix = "rembert";
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.embedding = c.file.size("input_embedding_size");
    c.hidden_dropout = c.file.number_or("hidden_dropout_prob", 0.0);
    c.attention_dropout = c.file.number_or("attention_probs_dropout_prob", 0.0);
    c.classifier_dropout = c.file.number_or("classifier_dropout_prob", 0.1);
  };
  f.typed_embeddings = [](const EncoderConfig& c) { return make_classic_embeddings("RemBertEmbeddings", c, true); };
  f.ones_mask = true;
  f.masked_encoder = [](const EncoderConfig& c) { return make_classic_encoder(c, {.prefix = "RemBert", .projects = true}); };
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"cls", std::make_shared<RemBertOnlyMLMHead>(c)}}; };
  return make_encoder(config, o, std::move(f));
}
const Family rembert_family{{"rembert"}, encoder_classes("RemBert", rembert)};

}  // namespace
}  // namespace memest::hf
