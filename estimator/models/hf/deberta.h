// What DeBERTa and DeBERTa-v2 share: their layers around another self-attention, their heads and the mask.
#pragma once
#include "models/hf/encoder.h"

namespace memest::hf {

/// config.pos_att_type: a list, or a text with |.
struct DebertaTypes {
  bool c2p = false, p2c = false;
  I count = 0;
};
DebertaTypes deberta_types(const Config& file);
/// get_attention_mask: [batch, length] to [batch, 1, length, length].
X deberta_mask(const X& attention_mask);
/// What a layer gets beside the hidden states.
struct DebertaContext {
  X attention_mask, relative_pos, rel_embeddings;
};
/// DisentangledSelfAttention.
class DebertaSelfAttention : public Base {
 public:
  using Base::Base;
  virtual X operator()(const X& hidden_states, const DebertaContext& context) = 0;
};
/// DebertaLayer, whose SelfOutput and Output are given.
class DebertaLayer final : public DecoderLayer {
 public:
  DebertaLayer(const EncoderConfig& c, const std::string& prefix, std::shared_ptr<DebertaSelfAttention> self, JointPtr self_output,
               JointPtr output);
  X operator()(X hidden_states, const DebertaContext& context) {
    return DecoderLayer::operator()(std::move(hidden_states), {context.attention_mask, {context.rel_embeddings, {}}, context.relative_pos});
  }

 protected:
  X forward(X hidden_states, const LayerCall& call) override;
  bool mask_by_position() const override { return true; }

 private:
  class Attention;
  std::shared_ptr<Attention> attention_;
  UnaryPtr intermediate_;
  JointPtr output_;
};

/// DebertaEncoder: the hidden states before the first layer and after each.
class DebertaEncoder : public Base {
 public:
  using Base::Base;
  virtual std::vector<X> operator()(const X& hidden_states, X attention_mask) = 0;
};
/// PREFIXModel with PREFIXEmbeddings, whose norm is given.
std::shared_ptr<EncoderBody> make_deberta_model(const std::string& prefix, const EncoderConfig& c, UnaryPtr embeddings_norm,
                                                std::shared_ptr<DebertaEncoder> encoder);

/// The heads of PREFIXForMaskedLM and the rest; the body is the family's.
EncoderForm deberta_form(const std::string& prefix);

}  // namespace memest::hf
