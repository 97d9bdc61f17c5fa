// models/luke/modeling_luke.py, without entities given. Its attention is always eager.
#include <cmath>

#include "models/hf/encoder.h"
#include "models/hf/masks.h"
#include "models/hf/padding.h"

namespace memest::hf {
namespace {

class LukeEmbeddings final : public Joint {
 public:
  explicit LukeEmbeddings(const EncoderConfig& c)
      : Joint("LukeEmbeddings"),
        word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.hidden, c.pad_token)),
        position_embeddings(child<Embedding>("position_embeddings", c.positions, c.hidden, c.pad_token)),
        token_type_embeddings(child<Embedding>("token_type_embeddings", c.types, c.hidden)),
        norm(child<LayerNorm>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {}

 protected:
  X forward(X input_ids, X token_type_ids) override {
    X position_ids = position_ids_of(input_ids, false);
    X inputs_embeds = word_embeddings(input_ids);
    X positions = position_embeddings(position_ids);
    X types = token_type_embeddings(token_type_ids);
    X embeddings = inputs_embeds.add(positions).add(types);
    embeddings = norm(embeddings);
    embeddings = dropout(embeddings);
    return leave(embeddings, position_ids, inputs_embeds, positions, types);
  }

 private:
  Embedding &word_embeddings, &position_embeddings, &token_type_embeddings;
  LayerNorm& norm;
  Dropout& dropout;
};

/// Only its parameters count here.
class LukeEntityEmbeddings final : public Base {
 public:
  explicit LukeEntityEmbeddings(const EncoderConfig& c) : Base("LukeEntityEmbeddings") {
    const I width = c.file.size("entity_emb_size");
    child<Embedding>("entity_embeddings", c.file.size("entity_vocab_size"), width, 0);
    if (width != c.hidden) child<Linear>("entity_embedding_dense", width, c.hidden, false);
    child<Embedding>("position_embeddings", c.positions, c.hidden);
    child<Embedding>("token_type_embeddings", c.types, c.hidden);
    child<LayerNorm>("LayerNorm", c.hidden);
    child<Dropout>("dropout", c.hidden_dropout);
  }
};

class LukeSelfAttention final : public Mixer {
 public:
  explicit LukeSelfAttention(const EncoderConfig& c)
      : Mixer("LukeSelfAttention"),
        head_dim_(c.head_dim),
        query(child<Linear>("query", c.hidden, c.hidden)),
        key(child<Linear>("key", c.hidden, c.hidden)),
        value(child<Linear>("value", c.hidden, c.hidden)) {
    if (c.file.boolean_or("use_entity_aware_attention", true))
      for (const char* name : {"w2e_query", "e2w_query", "e2e_query"}) child<Linear>(name, c.hidden, c.hidden);
    dropout = &child<Dropout>("dropout", c.attention_dropout);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const Dims hidden_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1) + Dims{-1, head_dim_};
    X key_layer = key(hidden_states).view(hidden_shape).permute({0, 2, 1, 3});
    X value_layer = value(hidden_states).view(hidden_shape).permute({0, 2, 1, 3});
    X query_layer = query(hidden_states).view(hidden_shape).permute({0, 2, 1, 3});
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(std::sqrt(double(head_dim_)));
    if (call.mask) attention_scores = attention_scores.add(call.mask);
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = (*dropout)(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(Pair(context_layer, {}), key_layer, value_layer, attention_scores, query_layer, attention_probs);
  }

 private:
  I head_dim_;
  Linear &query, &key, &value;
  Dropout* dropout;
};

class LukeEncoder final : public Base {
 public:
  explicit LukeEncoder(const EncoderConfig& c)
      : Base("LukeEncoder"),
        layers_(*this, "layer", c.layers, [&](I) { return make_encoder_layer(c, std::make_shared<LukeSelfAttention>(c), "Luke"); }) {}
  X operator()(X hidden_states, const X& attention_mask) {
    Entered scope(*this);
    for (auto& layer : layers_) hidden_states = (*layer)(hidden_states, {attention_mask, {}, {}});
    return hidden_states;
  }

 private:
  Layers<DecoderLayer> layers_;
};

class LukeModel final : public EncoderBody {
 public:
  LukeModel(const EncoderConfig& c, bool pools)
      : EncoderBody("LukeModel"),
        file_(c.file),
        options_(c.options),
        embeddings(child<LukeEmbeddings>("embeddings", c)),
        entity_embeddings(child<LukeEntityEmbeddings>("entity_embeddings", c)),
        encoder(child<LukeEncoder>("encoder", c)) {
    if (pools) pooler_ = register_module("pooler", make_pooler("LukePooler", c.hidden, c.hidden, "tanh"));
  }

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    const Dims input_shape = input_ids.sizes();
    warn_if_padding(file_, input_ids);
    X attention_mask = ones(input_shape, DType::float32);
    X token_type_ids = zeros(input_shape, DType::int64);
    X word_embedding_output = embeddings(input_ids, token_type_ids);
    {
      X shape = attention_mask.unsqueeze(-1).to(word_embedding_output.dtype());
      attention_mask = create_bidirectional_mask({.options = options_, .inputs_embeds = shape, .attention_mask = attention_mask});
    }
    X sequence_output = encoder(word_embedding_output, attention_mask);
    X pooled_output;
    if (pooler_) pooled_output = (*pooler_)(sequence_output);
    return {sequence_output, pooled_output};
  }

 private:
  Config file_;
  const Options options_;
  LukeEmbeddings& embeddings;
  LukeEntityEmbeddings& entity_embeddings;
  LukeEncoder& encoder;
  UnaryPtr pooler_;
};

/// EntityPredictionHead: only its parameters count here.
class EntityPredictionHead final : public Unary {
 public:
  explicit EntityPredictionHead(const EncoderConfig& c) : Unary("EntityPredictionHead") {
    const I width = c.file.size("entity_emb_size"), entities = c.file.size("entity_vocab_size");
    new_parameter("bias", {entities});
    register_module("transform", make_head_transform("EntityPredictionHeadTransform", c.hidden, width, c.act));
    child<Linear>("decoder", width, entities, false);
  }

 protected:
  X forward(X hidden_states) override { return hidden_states; }
};

NetworkPtr luke(const Config& config, const Options& o) {
  EncoderForm f = roberta_form("Luke", "luke");
  f.adjust = [](EncoderConfig& c) { c.options.attention = Attention::eager; };
  f.body = [](const EncoderConfig& c, bool pools) { return std::make_shared<LukeModel>(c, pools || c.options.task == Task::masked_lm); };
  f.lm_head = [](const EncoderConfig& c) {
    return EncoderForm::Heads{{"lm_head", make_roberta_lm_head(c, "Luke")},
                              {"entity_predictions", std::make_shared<EntityPredictionHead>(c)}};
  };
  f.ties = {{"entity_predictions.decoder.weight", "luke.entity_embeddings.entity_embeddings.weight"},
            {"lm_head.bias", "lm_head.decoder.bias"}};
  f.classifier = {};
  return make_encoder(config, o, std::move(f));
}
const Family luke_family{{"luke"},
                         {{Task::masked_lm, "LukeForMaskedLM", luke},
                          {Task::seq_cls, "LukeForSequenceClassification", luke},
                          {Task::token_cls, "LukeForTokenClassification", luke},
                          {Task::multiple_choice, "LukeForMultipleChoice", luke},
                          {Task::base, "LukeModel", luke}}};

}  // namespace
}  // namespace memest::hf
