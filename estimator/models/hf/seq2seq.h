// What encoder-decoder models share, and the families after BART (models/bart/modeling_bart.py): transformers writes them with the same
// statements, so that a family is a choice of parts.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// A class that takes input_ids of src_seq tokens, and labels or decoder_input_ids of tgt_seq.
class Seq2SeqNetwork : public Network {
 public:
  using Network::Network;
  std::vector<nn::InputSpec> inputs() const override;
};

/// shift_tokens_right of bart, t5's _shift_right: the ids behind the start token, -100 replaced by padding.
X shift_tokens_right(X input_ids);
/// shift_tokens_right of mbart: the last token that is no padding comes first.
X wrap_tokens_right(X input_ids);
/// What the output object holds: the loss, what the head gives, the decoder's cache and the encoder's last hidden state.
Value seq2seq_output(std::initializer_list<X> tensors, const EncoderDecoderCache* cache, const X& encoder_last_hidden_state);

// ---- BART ----------------------------------------------------------------------------------------------------------------------

/// The fields that the families after BART have in common.
struct Seq2SeqConfig {
  Seq2SeqConfig(const Config& file, const Options& options);
  struct Stack {
    I layers, heads, intermediate;
  };
  Config file;
  Options options;
  I vocab, decoder_vocab, hidden, positions;
  Stack encoder, decoder;
  double dropout, attention_dropout, activation_dropout;
  std::string act;
  std::optional<I> pad_token;
  bool tie;
};

/// BartAttention: of the hidden states among themselves, or of them with another sequence. Returns the output and the weights.
class CrossMixer : public Base {
 public:
  using Base::Base;
  Pair operator()(X hidden_states, X key_value_states, X attention_mask, Cache* cache) {
    Entered scope(*this);
    Pair result = forward(hidden_states, key_value_states, attention_mask, cache);
    (hidden_states.reset(), key_value_states.reset(), attention_mask.reset());
    return result;
  }

 protected:
  virtual Pair forward(const X& hidden_states, const X& key_value_states, X attention_mask, Cache* cache) = 0;
  using Base::forward;
};
using CrossMixerPtr = std::shared_ptr<CrossMixer>;
CrossMixerPtr make_cross_attention(const Seq2SeqConfig& c, const std::string& prefix, I heads, I layer, bool causal, bool bias = true);

/// embed_positions of a stack: [1 or batch, length, hidden].
class PositionEmbedding : public Base {
 public:
  using Base::Base;
  X operator()(const X& input_ids, const X& inputs_embeds, X position_ids = {}) {
    Entered scope(*this);
    return forward(input_ids, inputs_embeds, std::move(position_ids));
  }

 protected:
  virtual X forward(const X& input_ids, const X& inputs_embeds, X position_ids) = 0;
  using Base::forward;
};
using PositionEmbeddingPtr = std::shared_ptr<PositionEmbedding>;

/// The encoder: input_ids to its last hidden state.
class Seq2SeqEncoder : public Base {
 public:
  using Base::Base;
  X operator()(X input_ids, X attention_mask = {}) {
    Entered scope(*this);
    X result = forward(input_ids, std::move(attention_mask));
    input_ids.reset();
    return result;
  }

 protected:
  virtual X forward(const X& input_ids, X attention_mask) = 0;
  using Base::forward;
};
using Seq2SeqEncoderPtr = std::shared_ptr<Seq2SeqEncoder>;
/// BartScaledWordEmbedding, which multiplies what it reads.
UnaryPtr make_scaled_embedding(const Seq2SeqConfig& c, const std::string& prefix, I vocab);

struct Seq2SeqForm {
  std::string prefix = "Bart";  ///< of the class names
  std::string generation_suffix = "ForConditionalGeneration";
  std::string model_name = "model";  ///< of the model in the classes with a head
  bool norm_before = false;          ///< a layer's norms stand before its parts (mbart)
  /// clamp() of an encoder layer's output in fp16.
  enum class Clamp { if_overflown, always } clamp = Clamp::if_overflown;
  bool scales_itself = true;   ///< BartScaledWordEmbedding: the embedding's module multiplies
  bool decoder_scales = true;  ///< else only the encoder multiplies (blenderbot_small)
  enum class Positions {
    offset,      ///< learned, with two more rows (BartLearnedPositionalEmbedding)
    learned,     ///< BlenderbotLearnedPositionalEmbedding
    sinusoidal,  ///< an embedding that takes no gradient (marian)
    counted,     ///< a buffer, read at the number of tokens so far that are no padding (m2m_100)
  } positions = Positions::offset;
  /// Whether the decoder makes position_ids, and when.
  enum class PositionIds { none, before_mask, after_mask } position_ids = PositionIds::before_mask;
  bool keeps_position_ids = true;          ///< their name is not bound to the embedded positions
  bool norms_embedding = true;             ///< layernorm_embedding
  bool norms_before_positions = false;     ///< the decoder's, before the positions are added (blenderbot_small)
  bool norms_end = false;                  ///< layer_norm after the layers
  const char* end_norm = "layer_norm";     ///< its name
  bool ones_mask = true;                   ///< the decoder makes an attention mask of ones
  bool keeps_ones_mask = false;            ///< its name is not bound to the causal mask
  bool names_layer_outputs = false;        ///< the decoder's last layer_outputs live until it returns (blenderbot)
  X (*shift)(X ids) = shift_tokens_right;  ///< labels to decoder_input_ids
  bool shifts_input = true;                ///< without decoder_input_ids the model shifts input_ids
  bool labels_end_cache = true;            ///< use_cache = False where labels are given
  bool logits_bias = true;                 ///< final_logits_bias
  bool ties_causal_head = true;
  /// Other positions, or another encoder.
  std::function<PositionEmbeddingPtr(const Seq2SeqConfig& c)> own_positions = {};
  std::function<Seq2SeqEncoderPtr(const Seq2SeqConfig& c)> encoder = {};
  /// Another attention than BartAttention.
  std::function<CrossMixerPtr(const Seq2SeqConfig& c, I heads, I layer)> attention = {};
  bool generates = true;
  std::string shared = "shared";  ///< the embedding that the stacks' are tied to; empty: there is none (marian's choice)
};

PositionEmbeddingPtr make_positions(const Seq2SeqConfig& c, const Seq2SeqForm& form);
/// An encoder layer's end in fp16: clamp() where torch.isfinite(x).all() does not hold. Values are not known: it is taken not to.
X clamp_overflown(X hidden_states);
NetworkPtr make_seq2seq(const Config& config, const Options& options, Seq2SeqForm form);
/// PREFIXForConditionalGeneration and the rest, made by `make`.
std::vector<TaskClass> seq2seq_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                       std::vector<Task> tasks, const std::string& generation = "ForConditionalGeneration");

}  // namespace memest::hf
