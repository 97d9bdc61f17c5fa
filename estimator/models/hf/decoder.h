// What the decoder-only families share: transformers writes most of them with the same statements, so that a family is a choice of parts.
// Each part is one form of forward in modeling_*.py, with its lifetimes; the heads are those of modeling_layers.py.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/hf/attention.h"
#include "models/hf/cache.h"
#include "models/hf/family.h"
#include "models/hf/masks.h"
#include "models/hf/norms.h"
#include "models/hf/rotary.h"

namespace memest::hf {

/// num_hidden_layers, within what memest builds.
I layer_count(const Config& config);

/// The fields that decoders have in common, with the class's own fallbacks resolved.
struct DecoderConfig {
  DecoderConfig(const Config& file, const Options& options);
  Config file;
  Options options;
  I vocab, hidden, intermediate, layers, heads, kv_heads, head_dim;
  std::string act;
  double attention_dropout, hidden_dropout = 0;
  bool attention_bias, mlp_bias, tie;
  std::optional<I> sliding_window;
  std::vector<std::string> layer_types;  ///< empty: all alike
  /// Router logits of the layers as they run, where config.output_router_logits asks for them; null where it does not.
  std::shared_ptr<std::vector<X>> router_logits;
  bool sliding(I layer) const { return layer < I(layer_types.size()) && layer_types[std::size_t(layer)] == "sliding_attention"; }
};

/// What a layer's forward gets beside the hidden states.
struct LayerCall {
  X mask;
  Pair position_embeddings;
  X position_ids;
  Cache* cache = nullptr;
  // of layers that attend to images (mllama)
  X cross_attention_states = {}, cross_attention_mask = {}, full_text_row_masked_out_mask = {};
};

/// An attention, or what stands in its place: returns the output and the weights.
class Mixer : public Base {
 public:
  using Base::Base;
  Pair operator()(X hidden_states, const LayerCall& call) {
    Entered scope(*this);
    Pair result = forward(hidden_states, call);
    hidden_states.reset();
    return result;
  }

 protected:
  virtual Pair forward(X hidden_states, const LayerCall& call) = 0;
  using Base::forward;
};
using MixerPtr = std::shared_ptr<Mixer>;

/// GradientCheckpointingLayer.
class DecoderLayer : public Base {
 public:
  DecoderLayer(std::string type, const Options& options)
      : Base(std::move(type)), checkpoint_(options.checkpoint), reentrant_(options.reentrant) {}
  X operator()(X hidden_states, LayerCall call);

 protected:
  virtual X forward(X hidden_states, const LayerCall& call) = 0;
  using Base::forward;
  /// The model's call gives the mask by position: a reentrant checkpoint saves it and lets go of it in backward, while arguments by name
  /// live as long as the node (modeling_layers.py binds them to the function).
  virtual bool mask_by_position() const { return false; }

 private:
  bool checkpoint_, reentrant_;
};
using DecoderLayerPtr = std::shared_ptr<DecoderLayer>;

// ---- attention -------------------------------------------------------------------------------------------------------------

struct Biases {
  bool q = false, k = false, v = false, o = false;
};

/// LlamaAttention.forward, with the steps in which other families differ.
class DecoderAttention : public Mixer {
 public:
  DecoderAttention(const DecoderConfig& c, I layer, std::string type, Biases biases, const char* output = "o_proj");

 protected:
  /// Makes no projections: the derived class registers its own.
  DecoderAttention(const DecoderConfig& c, I layer, std::string type);
  /// The names of the Python frame.
  struct Frame {
    const X& hidden_states;
    Dims input_shape, hidden_shape;
    X query, key, value;
    std::vector<X> locals = {};  ///< others that live until the forward returns
  };
  virtual void project(Frame& f);
  virtual void rotate(Frame& f, const LayerCall& call);
  virtual Pair attend(Frame& f, AttentionCall call);
  virtual X output(X attn_output) { return (*o_proj_)(attn_output); }
  Pair forward(X hidden_states, const LayerCall& call) final;

  const Options options_;
  I layer_, heads_, kv_heads_, head_dim_, groups_;
  double dropout_;
  Linear *q_proj_ = nullptr, *k_proj_ = nullptr, *v_proj_ = nullptr, *o_proj_ = nullptr;
};

/// q_norm and k_norm: over each head before the transpose (qwen3), after it (gemma3), or over the whole projection (olmo2).
enum class QkNorm { before_transpose, after_transpose, full };
MixerPtr make_attention(const DecoderConfig& c, I layer, std::string type, Biases biases);
MixerPtr make_attention_with_qk_norm(const DecoderConfig& c, I layer, std::string type, Biases biases, QkNorm where, Norm norm,
                                     const char* q_norm = "q_norm", const char* k_norm = "k_norm");

// ---- feed-forward ------------------------------------------------------------------------------------------------------------

/// down(act(gate(x)) * up(x)).
UnaryPtr make_gated_mlp(std::string type, I hidden, I intermediate, bool bias, const std::string& act);
/// second(act(first(x))).
UnaryPtr make_plain_mlp(std::string type, const char* first, const char* second, I hidden, I intermediate, bool bias,
                        const std::string& act, double dropout = 0);
/// A gated MLP with nn.functional.dropout at its end (seed_oss).
UnaryPtr make_gated_mlp(std::string type, I hidden, I intermediate, bool bias, const std::string& act, double dropout);
/// Phi3MLP: gate_up_proj, chunked.
UnaryPtr make_fused_gated_mlp(std::string type, I hidden, I intermediate, const std::string& act);

// ---- layers ------------------------------------------------------------------------------------------------------------------

/// The order in which a layer registers and uses its parts.
struct LayerForm {
  std::string type = "LlamaDecoderLayer";
  enum class Order {
    pre,       ///< x + attn(norm(x)), x + mlp(norm(x)): llama
    post,      ///< x + norm(attn(x)), x + norm(mlp(x)): olmo2
    sandwich,  ///< a norm before and after each, registered in the order of use: gemma2
    glm4,      ///< the same, registered as glm4 does
  } order = Order::pre;
  Norm norm = Norm::llama;
  std::string norm_type = "LlamaRMSNorm";
  std::vector<const char*> norms = {"input_layernorm", "post_attention_layernorm"};
  const char* attention = "self_attn";
  const char* mlp = "mlp";
  bool multiplier = false;             ///< residual + x * residual_multiplier (granite)
  std::optional<double> dropout = {};  ///< on what is added (phi3)
};
DecoderLayerPtr make_layer(const DecoderConfig& c, const LayerForm& form, MixerPtr attention, UnaryPtr mlp);

// ---- the model -----------------------------------------------------------------------------------------------------------------

struct DecoderForm {
  std::string prefix = "Llama";  ///< of the class names
  std::function<DecoderLayerPtr(const DecoderConfig& c, I layer)> layer = {};
  Norm norm = Norm::llama;
  std::string norm_type = "LlamaRMSNorm";
  std::function<std::shared_ptr<RotaryEmbedding>(const DecoderConfig& c)> rotary = {};
  bool rotary_by_layer_type = false;
  bool rotary_before_norm = false;  ///< registered so
  enum class Masks {
    causal,          ///< create_causal_mask for all
    sliding_if_set,  ///< create_sliding_window_causal_mask where config.sliding_window is set (mistral)
    by_layer_type    ///< one for each kind in layer_types (qwen2)
  } masks = Masks::causal;
  bool both_masks = false;       ///< by_layer_type: the sliding one is made whether or not a layer slides (gemma2)
  bool only_used_masks = false;  ///< by_layer_type: none for a kind that no layer has (mellum)
  /// Replaces nn.Embedding; its parameter is called weight.
  std::function<UnaryPtr(const DecoderConfig& c)> embedding = {};
  /// inputs_embeds = f(inputs_embeds), before the masks.
  std::function<X(X, const DecoderConfig& c)> after_embedding = {};
  /// hidden_states = f(inputs_embeds), after the rotary tables.
  std::function<X(X, const DecoderConfig& c, bool training)> first_hidden = {};
  const char* base_prefix = "model";
  const char* embedding_name = "embed_tokens";
  const char* layers_name = "layers";
  const char* norm_name = "norm";
  const char* head_name = "lm_head";
  const char* causal_suffix = "ForCausalLM";    ///< of the class with that head
  const char* token_classifier_name = "score";  ///< of PREFIXForTokenClassification
  bool head_bias = false;
  X (*token_classification_loss)(X logits, X labels, I num_labels) = nullptr;  ///< the generic one unless given
  std::function<I(const DecoderConfig& c)> head_width = {};                    ///< of what the heads get, where it is not hidden
  /// What follows lm_head.
  std::function<X(X logits, const DecoderConfig& c)> logits = {};
  /// The routers' loss from their logits: times router_aux_loss_coef it is added to that of the labels.
  std::function<X(const std::vector<X>& router_logits, const DecoderConfig& c)> aux_loss = {};
  /// Another body than DecoderModel; then the fields above that speak of one do not count.
  std::function<std::shared_ptr<class DecoderBody>(std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm> form)> body =
      {};
};

/// The attention_mask that a model of several parts prepares for its decoder.
struct DecoderMasks {
  X full, sliding;
  bool mapping = true;  ///< a dictionary, taken as it is; else a mask for all layers, which the decoder makes where it is undefined
};

/// What a head stands on: last_hidden_state, and the cache that it filled.
class DecoderBody : public Base {
 public:
  using Base::Base;
  /// position_ids and cache as generate() gives them; without them the forward makes its own. `input`: input_ids or inputs_embeds.
  std::pair<X, CachePtr> operator()(X input, X position_ids = {}, CachePtr cache = {}, std::optional<DecoderMasks> masks = {}) {
    Entered scope(*this);
    position_ids_ = std::move(position_ids);
    cache_ = std::move(cache);
    masks_ = std::move(masks);
    auto result = forward(input);
    masks_.reset();
    position_ids_.reset();
    cache_.reset();
    input.reset();
    return result;
  }
  /// get_input_embeddings()(input_ids)
  virtual X embed(const X& input_ids);
  /// DynamicCache(config): generate's, before the first call.
  virtual CachePtr new_generation_cache(const DecoderConfig& c) const { return dynamic_cache(c); }

 protected:
  virtual std::pair<X, CachePtr> forward(X input_ids) = 0;
  using Base::forward;
  /// The call's cache, or DynamicCache(config) where it uses one.
  CachePtr new_cache(const DecoderConfig& c, bool is_training) const;
  /// The call's position_ids, or the default ones.
  X default_position_ids(const X& inputs_embeds) const;
  static CachePtr dynamic_cache(const DecoderConfig& c);
  const std::optional<DecoderMasks>& masks() const { return masks_; }
  /// The layers as a ModuleList; registers them.
  std::vector<DecoderLayerPtr> add_layers(const std::string& name, I count, const std::function<DecoderLayerPtr(I)>& make);

 private:
  X position_ids_;
  CachePtr cache_;
  std::optional<DecoderMasks> masks_;
};

class DecoderModel final : public DecoderBody {
 public:
  DecoderModel(std::shared_ptr<const DecoderConfig> config, std::shared_ptr<const DecoderForm> form);
  X embed(const X& input_ids) override { return (*embed_tokens_)(input_ids); }

 protected:
  std::pair<X, CachePtr> forward(X input) override;

 private:
  DecoderMasks make_masks(const X& inputs_embeds, const Cache* cache, const X& position_ids) const;
  bool has_layers(bool sliding) const;
  std::shared_ptr<const DecoderConfig> c_;
  std::shared_ptr<const DecoderForm> form_;
  UnaryPtr embed_tokens_;
  std::vector<DecoderLayerPtr> layers_;
  UnaryPtr norm_;
  std::shared_ptr<RotaryEmbedding> rotary_emb_;
};

/// config.layer_types where the file gives none: `type(i)` for each layer.
void default_layer_types(Config& config, const std::function<const char*(I)>& type);

/// The form's body, or a DecoderModel.
std::shared_ptr<DecoderBody> make_decoder_body(const DecoderParts& parts);
/// hidden_states[:, slice_indices, :] with slice_indices = slice(-logits_to_keep, None).
X slice_logits_to_keep(const X& hidden_states, std::optional<I> logits_to_keep);

/// The class of that task over a DecoderModel: LlamaForCausalLM, the generic heads, or the model itself.
NetworkPtr make_decoder(const Config& config, const Options& options, DecoderForm form);

/// torch.arange(length) + seen, with a leading dimension.
X default_position_ids(const X& inputs_embeds);
/// The generic sequence classification on logits of each token: those of the last token that is no padding, and the loss.
nn::Outcome classify_last_token(const Config& config, const X& input_ids, const X& logits, const X& labels, const Cache* cache);

/// The logits of question answering, [batch, length, 2], as start and end logits, and the loss. `contiguous`: the two are copied.
nn::Outcome answer_questions(const X& logits, const Batch& batch, bool contiguous = true);

/// PREFIXForCausalLM, PREFIXForSequenceClassification, PREFIXModel, and those generic heads that the family has beside them.
std::vector<TaskClass> decoder_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options),
                                       std::initializer_list<Task> more = {});

/// What the output object holds: the loss and logits first, then the cache and the rest.
Value model_output(std::initializer_list<X> tensors, const Cache* cache = nullptr);

}  // namespace memest::hf
