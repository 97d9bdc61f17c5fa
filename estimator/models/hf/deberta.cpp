#include "models/hf/deberta.h"

#include "models/hf/loss.h"

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

namespace {

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
