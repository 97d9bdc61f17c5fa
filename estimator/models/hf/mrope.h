// Decoders of text whose rotary positions have three axes, of time, height and width: Qwen2-VL and its kin (transformers 5.24,
// models/qwen2_vl, qwen2_5_vl, qwen3_vl, glm4v).
#pragma once
#include "models/hf/decoder.h"
#include "nn/embedded_model.h"

namespace memest::hf {

struct MropeForm {
  /// recomposition_frequencies: sections of the axes one after another, doubled or each repeated twice; or axes overwritten in place.
  enum class Table { doubled, repeated, interleaved } table = Table::doubled;
  std::vector<I> section;       ///< mrope_section, where the file gives none
  bool text_positions = false;  ///< the model's own positions have a fourth axis, that of the text, which the mask is made from
  bool layer_outputs = false;   ///< what the last layer gave has a name of its own
};

/// q_proj, k_proj and v_proj one after another, and then their views.
class ViewsLastAttention : public DecoderAttention {
 public:
  using DecoderAttention::DecoderAttention;

 protected:
  void project(Frame& f) override {
    f.query = (*q_proj_)(f.hidden_states);
    f.key = (*k_proj_)(f.hidden_states);
    f.value = (*v_proj_)(f.hidden_states);
    for (X* states : {&f.query, &f.key, &f.value}) *states = states->view(f.hidden_shape).transpose(1, 2);
  }
};

/// The parts of such a text model: `form` holds its layers and names, and gets its body.
DecoderForm mrope_decoder(DecoderForm form, MropeForm mrope);

/// What the model under the heads hands to the text model beside embeddings and positions (DeepStack of Qwen3-VL).
class MropeTextModel : public DecoderBody, public nn::EmbeddedModel {
 public:
  using DecoderBody::DecoderBody;
  struct Deepstack {
    X visual_pos_masks;
    std::vector<X> visual_embeds;  ///< added after the first layers
    I visual_tokens = 0;           ///< that the mask holds
  };
  virtual void set_deepstack(Deepstack deepstack) = 0;
};

}  // namespace memest::hf
