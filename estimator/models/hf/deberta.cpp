#include "models/hf/deberta.h"

#include "models/hf/loss.h"
#include "models/hf/padding.h"

namespace memest::hf {

DebertaTypes deberta_types(const Config& file) {
  DebertaTypes types;
  auto take = [&](const std::string& name) {
    types.c2p |= name == "c2p";
    types.p2c |= name == "p2c";
    ++types.count;
  };
  const ConfigValue* value = file.find("pos_att_type");
  if (!value || value->is_null()) return types;
  if (const auto* text = std::get_if<std::string>(&value->value)) {
    for (std::size_t from = 0; from <= text->size();) {
      const std::size_t to = std::min(text->find('|', from), text->size());
      take(text->substr(from, to - from));
      from = to + 1;
    }
  } else {
    for (auto& name : file.texts("pos_att_type")) take(name);
  }
  return types;
}

X deberta_mask(const X& attention_mask) {
  X extended_attention_mask = attention_mask.unsqueeze(1).unsqueeze(2);
  return extended_attention_mask.mul(extended_attention_mask.squeeze(-2).unsqueeze(-1));
}

class DebertaLayer::Attention final : public Base {
 public:
  Attention(const std::string& prefix, std::shared_ptr<DebertaSelfAttention> self, JointPtr output)
      : Base(prefix + "Attention"),
        self_(register_module("self", std::move(self))),
        output_(register_module("output", std::move(output))) {}
  X operator()(const X& hidden_states, const DebertaContext& context) {
    Entered scope(*this);
    X self_output = (*self_)(hidden_states, context);
    X attention_output = (*output_)(self_output, hidden_states);
    return attention_output;
  }

 private:
  std::shared_ptr<DebertaSelfAttention> self_;
  JointPtr output_;
};

DebertaLayer::DebertaLayer(const EncoderConfig& c, const std::string& prefix, std::shared_ptr<DebertaSelfAttention> self,
                           JointPtr self_output, JointPtr output)
    : DecoderLayer(prefix + "Layer", c.options),
      attention_(register_module("attention", std::make_shared<Attention>(prefix, std::move(self), std::move(self_output)))),
      intermediate_(register_module("intermediate", make_intermediate(prefix + "Intermediate", c))),
      output_(register_module("output", std::move(output))) {}

X DebertaLayer::forward(X hidden_states, const LayerCall& call) {
  X attention_output = (*attention_)(hidden_states, {call.mask, call.position_ids, call.position_embeddings.first});
  X intermediate_output = (*intermediate_)(attention_output);
  X layer_output = (*output_)(intermediate_output, attention_output);
  return leave(layer_output, attention_output, intermediate_output);
}

namespace {

class DebertaEmbeddings final : public Base {
 public:
  DebertaEmbeddings(const std::string& prefix, const EncoderConfig& c, UnaryPtr layer_norm)
      : Base(prefix + "Embeddings"), word_embeddings(child<Embedding>("word_embeddings", c.vocab, c.embedding, c.pad_token.value_or(0))) {
    if (c.file.boolean_or("position_biased_input", true))
      position_embeddings = &child<Embedding>("position_embeddings", c.positions, c.embedding);
    if (c.types > 0) token_type_embeddings = &child<Embedding>("token_type_embeddings", c.types, c.embedding);
    if (c.embedding != c.hidden) embed_proj = &child<Linear>("embed_proj", c.embedding, c.hidden, false);
    norm_ = register_module("LayerNorm", std::move(layer_norm));
    dropout = &child<Dropout>("dropout", c.hidden_dropout);
    new_buffer("position_ids", {1, c.positions}, DType::int64);
  }
  X operator()(const X& input_ids, const X& token_type_ids, X mask) {
    Entered scope(*this);
    X position_ids = X(buffer(0)).whole_slices(1).slice(1, 0, input_ids.size(1));
    X inputs_embeds = word_embeddings(input_ids);
    X positions = position_embeddings ? (*position_embeddings)(position_ids) : X(aten("zeros_like", {Tensor(inputs_embeds)}));
    X embeddings = inputs_embeds, types;
    if (position_embeddings) embeddings = embeddings.add(positions);
    if (token_type_embeddings) {
      types = (*token_type_embeddings)(token_type_ids);
      embeddings = embeddings.add(types);
    }
    if (embed_proj) embeddings = (*embed_proj)(embeddings);
    embeddings = (*norm_)(embeddings);
    mask = mask.unsqueeze(2);
    mask = mask.to(embeddings.dtype());
    embeddings = embeddings.mul(mask);
    embeddings = (*dropout)(embeddings);
    return leave(embeddings, mask, inputs_embeds, positions, types);
  }

 private:
  Embedding &word_embeddings, *position_embeddings = nullptr, *token_type_embeddings = nullptr;
  Linear* embed_proj = nullptr;
  UnaryPtr norm_;
  Dropout* dropout;
};

class DebertaModel final : public EncoderBody {
 public:
  DebertaModel(const std::string& prefix, const EncoderConfig& c, UnaryPtr embeddings_norm, std::shared_ptr<DebertaEncoder> encoder)
      : EncoderBody(prefix + "Model"),
        file_(c.file),
        embeddings(child<DebertaEmbeddings>("embeddings", prefix, c, std::move(embeddings_norm))),
        encoder_(register_module("encoder", std::move(encoder))) {}

 protected:
  EncoderOutput forward(X input_ids, bool) override {
    warn_if_padding(file_, input_ids);
    X attention_mask = ones(input_ids.sizes(), DType::float32);
    X token_type_ids = zeros(input_ids.sizes(), DType::int64);
    X embedding_output = embeddings(input_ids, token_type_ids, attention_mask);
    std::vector<X> encoded_layers = (*encoder_)(embedding_output, attention_mask);
    X sequence_output = encoded_layers.back();
    return {sequence_output, {}};
  }

 private:
  Config file_;
  DebertaEmbeddings& embeddings;
  std::shared_ptr<DebertaEncoder> encoder_;
};

class ContextPooler final : public Unary {
 public:
  explicit ContextPooler(const EncoderConfig& c)
      : Unary("ContextPooler"),
        dense(child<Linear>("dense", width(c), width(c))),
        dropout(child<Dropout>("dropout", c.file.number_or("pooler_dropout", 0.0))),
        act_(c.file.text_or("pooler_hidden_act", "gelu")) {}

 protected:
  X forward(X hidden_states) override {
    X context_token = hidden_states.whole_slices(1).select(1, 0);
    context_token = dropout(context_token);
    X pooled_output = dense(context_token);
    pooled_output = act_.forward(pooled_output);
    return pooled_output;
  }

 private:
  static I width(const EncoderConfig& c) { return c.file.size_or("pooler_hidden_size", c.hidden); }

  Linear& dense;
  Dropout& dropout;
  Activation act_;
};

class LegacyHead final : public Unary {
 public:
  LegacyHead(const EncoderConfig& c, const std::string& prefix) : Unary("Legacy" + prefix + "LMPredictionHead") {
    new_parameter("bias", {c.vocab});
    transform_ =
        register_module("transform", make_head_transform("Legacy" + prefix + "PredictionHeadTransform", c.hidden, c.embedding, c.act));
    decoder = &child<Linear>("decoder", c.embedding, c.vocab);
  }

 protected:
  X forward(X hidden_states) override {
    hidden_states = (*transform_)(hidden_states);
    hidden_states = (*decoder)(hidden_states);
    return hidden_states;
  }

 private:
  UnaryPtr transform_;
  Linear* decoder;
};
class LegacyOnlyMLMHead final : public Unary {
 public:
  LegacyOnlyMLMHead(const EncoderConfig& c, const std::string& prefix)
      : Unary("Legacy" + prefix + "OnlyMLMHead"), predictions(child<LegacyHead>("predictions", c, prefix)) {}

 protected:
  X forward(X sequence_output) override { return predictions(sequence_output); }

 private:
  LegacyHead& predictions;
};

/// The loss where labels below zero are left out; which they are is read from their values, and here all count.
X labeled_loss(X labels, X logits, I labels_count) {
  if (labels_count == 1) return ops::mse_loss(logits.view({-1}).to(labels.dtype()), labels.view({-1}), 1);
  X label_index = zeros({labels.size(0), 1}, DType::int64);
  X labeled_logits = aten("gather", {Tensor(logits), I{0}, Tensor(label_index.expand({label_index.size(0), logits.size(1)}))});
  labels = aten("gather", {Tensor(labels), I{0}, Tensor(label_index.view({-1}))});
  return cross_entropy(labeled_logits.view({-1, labels_count}).to_float(), labels.view({-1}));
}

}  // namespace

std::shared_ptr<EncoderBody> make_deberta_model(const std::string& prefix, const EncoderConfig& c, UnaryPtr embeddings_norm,
                                                std::shared_ptr<DebertaEncoder> encoder) {
  return std::make_shared<DebertaModel>(prefix, c, std::move(embeddings_norm), std::move(encoder));
}

EncoderForm deberta_form(const std::string& prefix) {
  EncoderForm f;
  f.prefix = prefix;
  f.base_prefix = "deberta";
  f.adjust = [](EncoderConfig& c) {
    c.options.attention = Attention::eager;
    c.embedding = c.file.size_or("embedding_size", c.hidden);
    c.types = c.file.integer_or("type_vocab_size", 0);
    c.classifier_dropout = c.hidden_dropout;
    c.is_decoder = false;
    if (c.options.task == Task::masked_lm && !c.file.boolean_or("legacy", true))
      throw c.file.error("legacy", "memest builds the legacy head of masked language models only");
  };
  f.lm_head = [=](const EncoderConfig& c) { return EncoderForm::Heads{{"cls", std::make_shared<LegacyOnlyMLMHead>(c, prefix)}}; };
  f.ties = {{"cls.predictions.decoder.weight", "deberta.embeddings.word_embeddings.weight"},
            {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  auto pooled = [](const EncoderConfig& c, I outputs) {
    return EncoderForm::Heads{{"pooler", std::make_shared<ContextPooler>(c)},
                              {"dropout", make_dropout(c.file.number_or("cls_dropout", c.hidden_dropout))},
                              {"classifier", make_linear(c.hidden, outputs)}};
  };
  f.classifier = [=](const EncoderConfig& c) { return pooled(c, num_labels(c.file)); };
  f.choice = [=](const EncoderConfig& c) { return pooled(c, 1); };
  f.sequence_loss = labeled_loss;
  return f;
}

}  // namespace memest::hf
