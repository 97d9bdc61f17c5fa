// What models of diffusers are made of: embeddings.py, activations.py, normalization.py, attention.py and attention_processor.py of 0.42.1.
#pragma once
#include "models/diffusers/model.h"

namespace memest::diffusers {

/// torch.nn's module of that name: silu, swish, mish, gelu, relu (get_activation). Throws Error for another.
class Activation final : public Module<Activation> {
 public:
  explicit Activation(const std::string& act_fn);
  X forward(const X& input) { return f_(input); }

 private:
  X (*f_)(X);
};

class GroupNorm final : public Module<GroupNorm> {
 public:
  GroupNorm(I groups, I channels, double eps) : Module("GroupNorm"), groups_(groups), eps_(eps) {
    if (groups < 1 || channels % groups != 0)
      throw Error("num_channels must be divisible by num_groups: " + std::to_string(channels) + " channels, " + std::to_string(groups) +
                  " groups");
    new_parameter("weight", {channels});
    new_parameter("bias", {channels});
  }
  X forward(const X& input) { return ops::group_norm(input, groups_, parameter(0), parameter(1), eps_, true); }

 private:
  I groups_;
  double eps_;
};

/// RMSNorm of diffusers, in Python.
class PythonRmsNorm final : public Module<PythonRmsNorm> {
 public:
  explicit PythonRmsNorm(I dim) : Module("RMSNorm") { new_parameter("weight", {dim}); }
  X forward(X hidden_states);
};

// ---- embeddings ------------------------------------------------------------------------------------------------------------

/// get_timestep_embedding: [N] to [N, channels] in float32.
X timestep_embedding(X timesteps, I embedding_dim, bool flip_sin_to_cos);

class Timesteps final : public Module<Timesteps> {
 public:
  Timesteps(I channels, bool flip_sin_to_cos) : Module("Timesteps"), channels_(channels), flip_(flip_sin_to_cos) {}
  X forward(const X& timesteps) { return timestep_embedding(timesteps, channels_, flip_); }

 private:
  I channels_;
  bool flip_;
};

struct TimestepEmbeddingForm {
  std::string act_fn = "silu", post_act_fn = {};  ///< post_act_fn: empty, none
  std::optional<I> cond_proj_dim = {};
};
class TimestepEmbedding final : public Module<TimestepEmbedding> {
 public:
  TimestepEmbedding(I in_channels, I time_embed_dim, const TimestepEmbeddingForm& form = {});
  X forward(X sample, const X& condition);
  X operator()(X sample, X condition = {}) { return Module::operator()(std::move(sample), std::move(condition)); }

 private:
  Linear *linear_1, *cond_proj = nullptr, *linear_2;
  Activation *act, *post_act = nullptr;
};

/// PixArtAlphaTextProjection.
class TextProjection final : public Module<TextProjection> {
 public:
  TextProjection(I in_features, I hidden_size, const std::string& act_fn);
  X forward(const X& caption);

 private:
  Linear& linear_1;
  Activation& act_1;
  Linear& linear_2;
};

/// CombinedTimestepTextProjEmbeddings, with `guides` CombinedTimestepGuidanceTextProjEmbeddings.
class TimeTextEmbeddings final : public Module<TimeTextEmbeddings> {
 public:
  TimeTextEmbeddings(I embedding_dim, I pooled_projection_dim, bool guides);
  X forward(const X& timestep, const X& guidance, const X& pooled_projection);

 private:
  Timesteps* time_proj;
  TimestepEmbedding *timestep_embedder, *guidance_embedder = nullptr;
  TextProjection* text_embedder;
};

// ---- norms that the time embedding shifts and scales -----------------------------------------------------------------------

/// AdaLayerNormZero (6 parts), AdaLayerNormZeroSingle (3), SD35AdaLayerNormZeroX (9).
class AdaLayerNorm final : public Base {
 public:
  AdaLayerNorm(I embedding_dim, I parts);
  struct Result {  // C++ destroys members in reverse: Python's order of these names
    X gate_msa2, hidden_states2, gate_mlp, scale_mlp, shift_mlp, gate_msa, hidden_states;
  };
  Result operator()(X hidden_states, X emb);

 private:
  Activation* silu;
  Linear* linear;
  LayerNorm* norm;
  I parts_;
};

/// AdaLayerNormContinuous without affine parameters.
class AdaLayerNormContinuous final : public Module<AdaLayerNormContinuous> {
 public:
  explicit AdaLayerNormContinuous(I dim);
  X forward(X x, const X& conditioning_embedding);

 private:
  Activation* silu;
  Linear* linear;
  LayerNorm* norm;
};

/// x * (1 + scale[:, None]) + shift[:, None]
X modulated(X x, const X& scale, const X& shift);

// ---- attention and feed-forward --------------------------------------------------------------------------------------------

/// FeedForward: geglu, gelu and gelu-approximate.
class FeedForward final : public Module<FeedForward> {
 public:
  FeedForward(I dim, const std::string& activation_fn, double dropout = 0);
  X forward(X hidden_states);

 private:
  hf::UnaryPtr act_fn;
  std::shared_ptr<hf::Dropout> dropout;
  std::shared_ptr<Linear> project_out;
};

/// self.to_out = ModuleList([Linear, Dropout])
class ToOut {
 public:
  ToOut() = default;
  ToOut(nn::Module& owner, I in, I out, double dropout = 0);
  X operator()(X hidden_states) const {
    hidden_states = (*linear_)(hidden_states);
    hidden_states = (*dropout_)(hidden_states);
    return hidden_states;
  }

 private:
  std::shared_ptr<Linear> linear_;
  std::shared_ptr<hf::Dropout> dropout_;
};
/// F.scaled_dot_product_attention(query, key, value, dropout_p=0.0, is_causal=False)
X attend(X query, X key, X value);

struct AttentionForm {
  I query_dim;
  std::optional<I> cross_attention_dim = {};
  I heads, dim_head;
  double dropout = 0;
  bool bias = false;
  std::optional<I> norm_num_groups = {};
  double eps = 1e-5;
  bool residual_connection = false;
};
/// Attention with AttnProcessor2_0.
class Attention final : public Module<Attention> {
 public:
  explicit Attention(const AttentionForm& form);
  X forward(X hidden_states, X encoder_hidden_states);
  X operator()(X hidden_states, X encoder_hidden_states = {}) {
    return Module::operator()(std::move(hidden_states), std::move(encoder_hidden_states));
  }

 private:
  AttentionForm form_;
  GroupNorm* group_norm = nullptr;
  Linear *to_q, *to_k, *to_v;
  ToOut to_out;
};

}  // namespace memest::diffusers
