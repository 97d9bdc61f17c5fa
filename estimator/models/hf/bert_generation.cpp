// models/bert_generation/modeling_bert_generation.py: BERT without types and pooler.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

class BertGenerationEmbeddings final : public Unary {
 public:
  explicit BertGenerationEmbeddings(const EncoderConfig& c)
      : Unary("BertGenerationEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }

 protected:
  X forward(X input_ids) override {
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, input_ids.size(1));
    X inputs_embeds = word_embeddings(input_ids);
    X positions = position_embeddings(position_ids);
    X embeddings = inputs_embeds.add(positions);
    embeddings = norm(embeddings);
    embeddings = dropout(embeddings);
    return leave(embeddings, inputs_embeds, positions);
  }

 private:
  Embedding &word_embeddings, &position_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
};

class OnlyLMHead final : public Unary {
 public:
  explicit OnlyLMHead(const EncoderConfig& c) : Unary("BertGenerationOnlyLMHead") {
    new_parameter("bias", {c.vocab});
    decoder = &child<Linear>("decoder", c.hidden, c.vocab);
  }

 protected:
  X forward(X hidden_states) override { return (*decoder)(hidden_states); }

 private:
  Linear* decoder;
};

NetworkPtr bert_generation(const Config& config, const Options& o) {
  EncoderForm f;
  f.prefix = "BertGeneration";
  f.base_prefix = "bert";
  f.embeddings = [](const EncoderConfig& c) { return std::make_shared<BertGenerationEmbeddings>(c); };
  f.pools = false;
  f.lm_head = [](const EncoderConfig& c) { return EncoderForm::Heads{{"lm_head", std::make_shared<OnlyLMHead>(c)}}; };
  f.ties = {{"lm_head.decoder.weight", "bert.embeddings.word_embeddings.weight"}, {"lm_head.decoder.bias", "lm_head.bias"}};
  f.causal_name = "Decoder";
  return make_encoder(config, o, std::move(f));
}
const Family bert_generation_family{
    {"bert-generation"},
    {{Task::causal_lm, "BertGenerationDecoder", bert_generation}, {Task::base, "BertGenerationEncoder", bert_generation}}};

}  // namespace
}  // namespace memest::hf
