// Encoders in transformers' older form (megatron_bert, rembert, roformer, ...): the attention has no interface and is always eager, and a
// layer returns its attention's weights, which live until the next layer has returned its own.
#pragma once
#include "models/hf/encoder.h"

namespace memest::hf {

/// A layer that returns its output and the attention's weights.
class ClassicLayer : public Base {
 public:
  ClassicLayer(std::string type, const Options& options)
      : Base(std::move(type)), checkpoint_(options.checkpoint), reentrant_(options.reentrant) {}
  Pair operator()(X hidden_states, LayerCall call);

 protected:
  virtual Pair forward(X hidden_states, const LayerCall& call) = 0;
  using Base::forward;

 private:
  bool checkpoint_, reentrant_;
};
using ClassicLayerPtr = std::shared_ptr<ClassicLayer>;

/// scores = q k^T / sqrt(d) + mask; softmax, dropout; weights v, contiguous and joined. The module's own dropout, so that it is in the
/// trace. Drops the three layers at its end, as the frame that holds them does.
Pair classic_attention(X& query_layer, X& key_layer, X& value_layer, const X& attention_mask, Dropout& dropout);
/// RemBertSelfAttention: query, key, value, dropout.
MixerPtr make_classic_self_attention(const EncoderConfig& c, I layer, std::string type);

/// The position table of an encoder that hands it to its layers; it gets the hidden states for their length.
using Positions = std::function<UnaryPtr(const EncoderConfig& c)>;

struct ClassicForm {
  std::string prefix;
  bool pre_norm = false;  ///< megatron_bert: LayerNorms called `ln` before attention and feed-forward, and one after the layers
  bool projects = false;  ///< rembert: embedding_hidden_mapping_in before the layers
  std::string projection = "embedding_hidden_mapping_in";
  std::function<MixerPtr(const EncoderConfig& c, I layer)> self_attention = {};
  Positions embed_positions = {};  ///< its result is the layers' position_embeddings.first
};
/// PREFIXEncoder with its PREFIXLayers.
MixerPtr make_classic_encoder(const EncoderConfig& c, const ClassicForm& form);
/// Words, types and positions, the positions added in place; a LayerNorm where `norm`.
JointPtr make_classic_embeddings(std::string type, const EncoderConfig& c, bool norm);

}  // namespace memest::hf
