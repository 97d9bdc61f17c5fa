// models/roc_bert/modeling_roc_bert.py.
#include "models/hf/encoder.h"

namespace memest::hf {
namespace {

/// Words, their shapes and their pronunciations, of which the call gives none.
class RoCBertEmbeddings final : public Unary {
 public:
  explicit RoCBertEmbeddings(const EncoderConfig& c) : Unary("RoCBertEmbeddings") {
    const Config& f = c.file;
    const I pronunciation = f.size_or("pronunciation_embed_dim", 768), shape = f.size_or("shape_embed_dim", 512);
    const bool by_pronunciation = f.boolean_or("enable_pronunciation", true), by_shape = f.boolean_or("enable_shape", true);
    new_buffer("position_ids", {1, c.positions}, DType::int64);
    new_buffer("token_type_ids", {1, c.positions}, DType::int64);
    word_embeddings = &child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token);
    auto& pronunciations = child<Embedding>("pronunciation_embed", f.size_or("pronunciation_vocab_size", 910), pronunciation, c.pad_token);
    auto& shapes = child<Embedding>("shape_embed", f.size_or("shape_vocab_size", 24858), shape, c.pad_token);
    position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.hidden);
    token_type_embeddings = &child<Embedding>("token_type_embeddings", c.types, c.hidden);
    if (f.boolean_or("concat_input", true)) {
      const I width = c.hidden + (by_pronunciation ? pronunciation : 0) + (by_shape ? shape : 0);
      map_inputs_layer = &child<Linear>("map_inputs_layer", width, c.hidden);
      if (by_shape) shape_embed = &shapes;
      if (by_pronunciation) pronunciation_embed = &pronunciations;
    }
    norm = &child<LayerNorm>("LayerNorm", c.hidden);
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
  }

 protected:
  X forward(X input_ids) override {
    const I batch_size = input_ids.size(0), seq_length = input_ids.size(1);
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, seq_length);
    X buffered_token_type_ids = X(buffer(1)).expand({position_ids.size(0), -1});
    buffered_token_type_ids = aten("gather", {Tensor(buffered_token_type_ids), I{1}, Tensor(position_ids)});
    X token_type_ids = buffered_token_type_ids.expand({batch_size, seq_length});
    X inputs_embeds = (*word_embeddings)(input_ids);
    if (!map_inputs_layer) return summed(inputs_embeds, token_type_ids, position_ids);
    X embedding_in = inputs_embeds.clone();
    X input_shape_ids, embedding_shape, input_pronunciation_ids, embedding_pronunciation;
    if (shape_embed) {
      input_shape_ids = zeros({batch_size, seq_length}, DType::int64);
      embedding_shape = (*shape_embed)(input_shape_ids);
      embedding_in = cat({embedding_in, embedding_shape}, -1);
    }
    if (pronunciation_embed) {
      input_pronunciation_ids = zeros({batch_size, seq_length}, DType::int64);
      embedding_pronunciation = (*pronunciation_embed)(input_pronunciation_ids);
      embedding_in = cat({embedding_in, embedding_pronunciation}, -1);
    }
    embedding_in = (*map_inputs_layer)(embedding_in);
    X types = (*token_type_embeddings)(token_type_ids);
    embedding_in = embedding_in.add_(types);
    X positions = (*position_embeddings)(position_ids);
    embedding_in = embedding_in.add_(positions);
    embedding_in = (*norm)(embedding_in);
    embedding_in = (*dropout)(embedding_in);
    return embedding_in;
  }

 private:
  X summed(const X& inputs_embeds, const X& token_type_ids, const X& position_ids) {
    X types = (*token_type_embeddings)(token_type_ids);
    X embeddings = inputs_embeds.add(types);
    X positions = (*position_embeddings)(position_ids);
    embeddings = embeddings.add(positions);
    embeddings = (*norm)(embeddings);
    embeddings = (*dropout)(embeddings);
    X embedding_in = embeddings.clone();
    return aten("div_", {Tensor(embedding_in), I{1}});
  }

  Embedding *word_embeddings, *position_embeddings, *token_type_embeddings, *shape_embed = nullptr, *pronunciation_embed = nullptr;
  Linear* map_inputs_layer = nullptr;
  LayerNorm* norm;
  Dropout* dropout;
};

NetworkPtr roc_bert(const Config& config, const Options& o) {
  EncoderForm f = bert_form("RoCBert", "roc_bert");
  f.embeddings = [](const EncoderConfig& c) { return std::make_shared<RoCBertEmbeddings>(c); };
  f.answers_are_views = true;
  return make_encoder(config, o, std::move(f));
}
const Family roc_bert_family{{"roc_bert"}, encoder_classes("RoCBert", roc_bert)};

}  // namespace
}  // namespace memest::hf
