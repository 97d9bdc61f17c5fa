// What the families after BERT share (models/bert/modeling_bert.py): transformers writes their attention, layers and heads with the same
// statements, so that a family is its embeddings, its heads and its names.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// The fields that encoders have in common.
struct EncoderConfig {
  EncoderConfig(const Config& file, const Options& options);
  Config file;
  Options options;
  I vocab, hidden, embedding, intermediate, layers, heads, head_dim, positions, types;
  std::optional<I> pad_token;
  std::string act;
  double hidden_dropout, attention_dropout, classifier_dropout;
  bool is_decoder, tie;
};

/// eager_attention_forward of bert: the softmax keeps the scores' type.
Pair bert_eager_attention_forward(X query, X key, X value, AttentionCall call);
Pair bert_attention_interface(const Options& options, X query, X key, X value, AttentionCall call);

/// BertSelfAttention.
MixerPtr make_self_attention(const EncoderConfig& c, I layer, const std::string& prefix);
/// A module of two tensors: the hidden states and what they are added to.
class Joint : public Base {
 public:
  using Base::Base;
  X operator()(X hidden_states, X input_tensor) {
    Entered scope(*this);
    X result = forward(hidden_states, input_tensor);
    input_tensor.reset();
    hidden_states.reset();
    return result;
  }

 protected:
  virtual X forward(X hidden_states, X input_tensor) = 0;
  using Base::forward;
};
using JointPtr = std::shared_ptr<Joint>;
/// BertSelfOutput and BertOutput: norm(dropout(dense(x)) + input), with the norm N(width).
template <class N>
class ResidualOutput final : public Joint {
 public:
  ResidualOutput(std::string type, const EncoderConfig& c, I in)
      : Joint(std::move(type)),
        dense(child<Linear>("dense", in, c.hidden)),
        norm(child<N>("LayerNorm", c.hidden)),
        dropout(child<Dropout>("dropout", c.hidden_dropout)) {}

 protected:
  X forward(X hidden_states, X input_tensor) override {
    hidden_states = dense(hidden_states);
    hidden_states = dropout(hidden_states);
    hidden_states = norm(hidden_states.add(input_tensor));
    return hidden_states;
  }

 private:
  Linear& dense;
  N& norm;
  Dropout& dropout;
};
/// The same with nn.LayerNorm.
JointPtr make_residual_output(std::string type, const EncoderConfig& c, I in);
/// BertIntermediate: act(dense(x)).
UnaryPtr make_intermediate(std::string type, const EncoderConfig& c);
/// BertPooler and ViTPooler: act(dense(x[:, 0])).
UnaryPtr make_pooler(std::string type, I hidden, I out, const std::string& act);
/// BertLayer.
DecoderLayerPtr make_encoder_layer(const EncoderConfig& c, I layer, const std::string& prefix);
/// The same around another self-attention, which returns no weights or its own.
DecoderLayerPtr make_encoder_layer(const EncoderConfig& c, MixerPtr self_attention, const std::string& prefix);

struct EncoderOutput {
  X last_hidden_state, pooler_output;
  CachePtr cache = {};
};
/// The model under the heads.
class EncoderBody : public Base {
 public:
  using Base::Base;
  EncoderOutput operator()(X input_ids, bool use_cache = true) {
    Entered scope(*this);
    return forward(std::move(input_ids), use_cache);
  }

 protected:
  virtual EncoderOutput forward(X input_ids, bool use_cache) = 0;
  using Base::forward;
};

struct EmbeddingsForm {
  bool skip_padding = false;  ///< positions count from the tokens that are no padding (RobertaEmbeddings)
  bool norm = true;
  I task_types = 0;  ///< of task_type_embeddings, added in place (ernie)
};
/// BertEmbeddings and RobertaEmbeddings: words, types from the buffer, and positions.
UnaryPtr make_embeddings(std::string type, const EncoderConfig& c, EmbeddingsForm form);
/// create_position_ids_from_input_ids of roberta: padding_idx + the number of tokens so far that are no padding. `cached`: adds the
/// length of a cache.
X position_ids_of(const X& input_ids, bool cached = true);
/// nn.Linear, an activation, nn.Dropout and x[:, 0] as modules of a chain.
UnaryPtr make_linear(I in, I out, bool bias = true);
UnaryPtr make_activation(const std::string& name);
UnaryPtr make_dropout(double p);
UnaryPtr make_first_token();
/// x.mean(dim=1).
UnaryPtr make_sequence_mean();
/// RobertaClassificationHead: out(dropout(act(dense(dropout(x[:, 0, :]))))).
UnaryPtr make_classification_head(std::string type, const EncoderConfig& c, const std::string& act);
/// SequenceSummary as ELECTRA, XLNet and XLM have it: one vector for each sequence, by the fields summary_*.
UnaryPtr make_sequence_summary(std::string type, const Config& file, I hidden);
/// BertOnlyMLMHead, whose `predictions` hold the transform, the decoder and its bias.
UnaryPtr make_mlm_head(const EncoderConfig& c, const std::string& prefix);
/// BertPredictionHeadTransform: norm(act(dense(x))).
UnaryPtr make_head_transform(std::string type, I hidden, I out, const std::string& act);
/// RobertaLMHead.
UnaryPtr make_roberta_lm_head(const EncoderConfig& c, const std::string& prefix);

struct EncoderForm {
  /// Modules that are called one after another; those without a name are functions of the forward.
  using Heads = std::vector<std::pair<std::string, UnaryPtr>>;
  std::string prefix = "Bert";  ///< of the class names
  std::string base_prefix = "bert";
  /// What the class names or defaults otherwise.
  std::function<void(EncoderConfig& c)> adjust = {};
  std::function<UnaryPtr(const EncoderConfig& c)> embeddings = {};
  bool project = false;  ///< the embeddings have config.embedding_size, and embeddings_project where it differs
  /// Embeddings of input_ids and token_type_ids, which the model makes (of zeros).
  std::function<JointPtr(const EncoderConfig& c)> typed_embeddings = {};
  bool ones_mask = false;  ///< the model makes an attention_mask of ones, [batch, seq]
  std::string encoder_name = "encoder";
  /// An encoder with layers of its own that takes the mask and fills the cache.
  std::function<MixerPtr(const EncoderConfig& c)> masked_encoder = {};
  /// The encoder of a family whose layers are no list.
  std::function<UnaryPtr(const EncoderConfig& c)> encoder = {};
  std::function<DecoderLayerPtr(const EncoderConfig& c, I layer)> layer = {};
  std::string encoder_norm = {};                             ///< the encoder's norm after its layers
  std::string norm_after = {};                               ///< the model's norm after the encoder
  bool pools = true;                                         ///< has a pooler
  std::function<Heads(const EncoderConfig& c)> pooler = {};  ///< BertPooler unless given
  /// The modules of the language-model head, in order.
  std::function<Heads(const EncoderConfig& c)> lm_head = {};
  bool heads_first = false;  ///< registered before the model
  /// The tied parameters: from, to; in the class of a head.
  std::vector<std::pair<std::string, std::string>> ties = {};
  /// Sequence classification over the whole sequence_output; without it the pooled output gets dropout and `classifier`.
  std::function<Heads(const EncoderConfig& c)> classifier = {};
  X (*sequence_loss)(X labels, X logits, I num_labels) = nullptr;  ///< of sequence classification, where it is another
  std::string causal_name = {};                                    ///< PREFIXForCausalLM unless given
  /// Question answering: what comes before qa_outputs; its logits are copied unless `answers_are_views`.
  std::function<Heads(const EncoderConfig& c)> before_answers = {};
  bool answers_are_views = false;
  std::string answers_name = "qa_outputs";
  /// Token classification; dropout and `classifier` unless given.
  std::function<Heads(const EncoderConfig& c)> token_classifier = {};
  X (*language_loss)(X logits, X labels, I vocab_size) = nullptr;  ///< of masked language modelling, where it is another
  /// Multiple choice: from the sequence_output to one number; without it the pooled output gets dropout and `classifier`.
  std::function<Heads(const EncoderConfig& c)> choice = {};
  /// Pre-training: a head on the sequence_output and one on the pooled output, with the losses of both; children of a module of that name
  /// where it is given.
  struct TwoHeads {
    std::string name;
    Heads language, relation;
  };
  std::function<TwoHeads(const EncoderConfig& c)> pretraining = {};
  /// Another model under the heads; then the fields above that speak of embeddings, encoder and pooler do not count. `pools`: the head
  /// wants a pooled output.
  std::function<std::shared_ptr<EncoderBody>(const EncoderConfig& c, bool pools)> body = {};
  /// Pre-training of a discriminator: logits of each token.
  std::function<Heads(const EncoderConfig& c)> discriminator = {};
};
/// The names of RoBERTa's classes: their embeddings, lm_head and classifier. `base`: of the model in them.
EncoderForm roberta_form(const std::string& prefix, const std::string& base, EmbeddingsForm embeddings = {.skip_padding = true});
/// The names of BERT's classes, their embeddings and `cls`.
EncoderForm bert_form(const std::string& prefix, const std::string& base);
NetworkPtr make_encoder(const Config& config, const Options& options, EncoderForm form);
/// PREFIXForMaskedLM and the rest, made by `make`. `pretrains`: PREFIXForPreTraining, too.
std::vector<TaskClass> encoder_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                       const std::string& causal_name = {}, bool pretrains = false);
/// The same without PREFIXForCausalLM.
std::vector<TaskClass> bidirectional_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                             bool pretrains = false);

}  // namespace memest::hf
