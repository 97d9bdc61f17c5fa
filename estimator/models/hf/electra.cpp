// models/electra/modeling_electra.py.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

class GeneratorPredictions final : public Unary {
 public:
  explicit GeneratorPredictions(const EncoderConfig& c)
      : Unary("ElectraGeneratorPredictions"),
        activation(child<Activation>("activation", "gelu")),
        norm(child<LayerNorm>("LayerNorm", c.embedding)),
        dense(child<Linear>("dense", c.hidden, c.embedding)) {}

 protected:
  X forward(X generator_hidden_states) override {
    X hidden_states = dense(generator_hidden_states);
    hidden_states = activation(hidden_states);
    hidden_states = norm(hidden_states);
    return hidden_states;
  }

 private:
  Activation& activation;
  LayerNorm& norm;
  Linear& dense;
};

NetworkPtr electra(const Config& config, const Options& o) {
  EncoderForm f = bert_form("Electra", "electra");
  f.project = true;
  f.pools = false;
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"generator_predictions", std::make_shared<GeneratorPredictions>(c)},
                              {"generator_lm_head", make_linear(c.embedding, c.vocab)}};
  };
  f.ties = {{"generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"}};
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head("ElectraClassificationHead", c, "gelu")}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family electra_family{{"electra"}, encoder_classes("Electra", electra)};

}  // namespace
}  // namespace memest::hf
