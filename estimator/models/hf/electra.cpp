// models/electra/modeling_electra.py.
#include "models/hf/generator_predictions.h"

namespace memest::hf {
namespace {

class DiscriminatorPredictions final : public Unary {
 public:
  explicit DiscriminatorPredictions(const EncoderConfig& c)
      : Unary("ElectraDiscriminatorPredictions"),
        dense(child<Linear>("dense", c.hidden, c.hidden)),
        activation(child<Activation>("activation", c.act)),
        dense_prediction(child<Linear>("dense_prediction", c.hidden, 1)) {}

 protected:
  X forward(X discriminator_hidden_states) override {
    X hidden_states = dense(discriminator_hidden_states);
    hidden_states = activation(hidden_states);
    return dense_prediction(hidden_states).squeeze(-1);
  }

 private:
  Linear& dense;
  Activation& activation;
  Linear& dense_prediction;
};

NetworkPtr electra(const Config& config, const Options& o) {
  EncoderForm f = bert_form("Electra", "electra");
  f.project = true;
  f.pools = false;
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"generator_predictions", std::make_shared<GeneratorPredictions>("Electra", c)},
                              {"generator_lm_head", make_linear(c.embedding, c.vocab)}};
  };
  f.ties = {{"generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"}};
  f.classifier = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"classifier", make_classification_head("ElectraClassificationHead", c, "gelu")}};
  };
  f.choice = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"sequence_summary", make_sequence_summary("ElectraSequenceSummary", c.file, c.hidden)},
                              {"classifier", make_linear(c.hidden, 1)}};
  };
  f.discriminator = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"discriminator_predictions", std::make_shared<DiscriminatorPredictions>(c)}};
  };
  return make_encoder(config, o, std::move(f));
}
const Family electra_family{{"electra"}, encoder_classes("Electra", electra, {}, true)};

}  // namespace
}  // namespace memest::hf
