// What the transformers of Flux and Chroma share (models/transformers/transformer_flux.py of diffusers 0.42.1).
#pragma once
#include "models/diffusers/parts.h"

namespace memest::diffusers {

/// torch.nn.RMSNorm over the last dimension.
class RmsNorm final : public Module<RmsNorm> {
 public:
  explicit RmsNorm(I dim) : Module("RMSNorm"), dim_(dim) { new_parameter("weight", {dim}); }
  X forward(const X& x) { return ops::rms_norm(x, Dims{dim_}, parameter(0), 1e-6); }

 private:
  I dim_;
};

/// FluxAttention with FluxAttnProcessor. `joint`: the text's states come apart, with projections of their own; else it has no output
/// projection (pre_only).
class FluxAttention final : public Base {
 public:
  FluxAttention(I dim, I head_dim, bool joint);
  /// hidden_states, and encoder_hidden_states where they were given.
  Pair operator()(X hidden_states, X encoder_hidden_states, Pair image_rotary_emb);

 private:
  X heads(const X& x) const { return aten("unflatten", {Tensor(x), I{-1}, list_of(Dims{-1, head_dim_})}); }
  I head_dim_;
  RmsNorm *norm_q, *norm_k, *norm_added_q = nullptr, *norm_added_k = nullptr;
  Linear *to_q, *to_k, *to_v, *add_q_proj = nullptr, *add_k_proj = nullptr, *add_v_proj = nullptr, *to_add_out = nullptr;
  ToOut to_out;
};

/// Cosines and sines of [tokens, axes] positions.
class FluxPosEmbed final : public Module<FluxPosEmbed> {
 public:
  explicit FluxPosEmbed(std::vector<I> axes_dim) : Module("FluxPosEmbed"), axes_dim_(std::move(axes_dim)) {}
  Pair forward(const X& ids);

 private:
  std::vector<I> axes_dim_;
};

/// The half's infinities are kept out of what follows.
X clipped(X x);

/// A block of two streams, with the norm that its kind has; it gives encoder_hidden_states and hidden_states.
template <class AdaNorm>
class TwoStreamBlock : public Base {
 public:
  TwoStreamBlock(std::string type, I dim, I head_dim) : Base(std::move(type)) {
    norm1 = &child<AdaNorm>("norm1", dim, 6);
    norm1_context = &child<AdaNorm>("norm1_context", dim, 6);
    attn = &child<FluxAttention>("attn", dim, head_dim, true);
    norm2 = &child<LayerNorm>("norm2", dim, 1e-6, false);
    ff = &child<FeedForward>("ff", dim, "gelu-approximate");
    norm2_context = &child<LayerNorm>("norm2_context", dim, 1e-6, false);
    ff_context = &child<FeedForward>("ff_context", dim, "gelu-approximate");
  }

 protected:
  Pair run(const X& given, const X& encoder_given, const X& temb, const X& temb_context, const Pair& image_rotary_emb) {
    X context_ff_output, ff_output, context_attn_output,
        attn_output;  // in reverse: names go in Python's order, also where a checkpoint stops
    Pair attention_outputs;
    AdaLayerNorm::Result c_norm, norm;
    X encoder_hidden_states = encoder_given, hidden_states = given;

    norm = (*norm1)(hidden_states, temb);
    c_norm = (*norm1_context)(encoder_hidden_states, temb_context);
    attention_outputs = (*attn)(norm.hidden_states, c_norm.hidden_states, image_rotary_emb);
    std::tie(attn_output, context_attn_output) = attention_outputs;

    attn_output = norm.gate_msa.unsqueeze(1).mul(attn_output);
    hidden_states = hidden_states.add(attn_output);
    norm.hidden_states = (*norm2)(hidden_states);
    norm.hidden_states = modulated(norm.hidden_states, norm.scale_mlp, norm.shift_mlp);
    ff_output = (*ff)(norm.hidden_states);
    ff_output = norm.gate_mlp.unsqueeze(1).mul(ff_output);
    hidden_states = hidden_states.add(ff_output);

    context_attn_output = c_norm.gate_msa.unsqueeze(1).mul(context_attn_output);
    encoder_hidden_states = encoder_hidden_states.add(context_attn_output);
    c_norm.hidden_states = (*norm2_context)(encoder_hidden_states);
    c_norm.hidden_states = modulated(c_norm.hidden_states, c_norm.scale_mlp, c_norm.shift_mlp);
    context_ff_output = (*ff_context)(c_norm.hidden_states);
    encoder_hidden_states = encoder_hidden_states.add(c_norm.gate_mlp.unsqueeze(1).mul(context_ff_output));
    encoder_hidden_states = clipped(encoder_hidden_states);
    return {encoder_hidden_states, hidden_states};
  }

 private:
  AdaNorm *norm1, *norm1_context;
  FluxAttention* attn;
  LayerNorm *norm2, *norm2_context;
  FeedForward *ff, *ff_context;
};

/// A block of one stream, in which attention and feed-forward run side by side.
template <class AdaNorm>
class OneStreamBlock : public Base {
 public:
  OneStreamBlock(std::string type, I dim, I head_dim) : Base(std::move(type)) {
    const I mlp_hidden_dim = checked_mul(dim, 4);
    norm = &child<AdaNorm>("norm", dim, 3);
    proj_mlp = &child<Linear>("proj_mlp", dim, mlp_hidden_dim);
    act_mlp = &child<Activation>("act_mlp", "gelu_tanh");
    proj_out = &child<Linear>("proj_out", checked_add(dim, mlp_hidden_dim), dim);
    attn = &child<FluxAttention>("attn", dim, head_dim, false);
  }

 protected:
  X run(const X& residual, const X& temb, const Pair& image_rotary_emb) {
    X attn_output, mlp_hidden_states;  // in reverse, as above
    AdaLayerNorm::Result normed;       // norm_hidden_states, gate
    X hidden_states;
    normed = (*norm)(residual, temb);
    mlp_hidden_states = (*act_mlp)((*proj_mlp)(normed.hidden_states));
    attn_output = (*attn)(normed.hidden_states, X(), image_rotary_emb).first;
    hidden_states = cat({attn_output, mlp_hidden_states}, 2);
    normed.gate_msa = normed.gate_msa.unsqueeze(1);
    hidden_states = normed.gate_msa.mul((*proj_out)(hidden_states));
    hidden_states = residual.add(hidden_states);
    return clipped(hidden_states);
  }

 private:
  AdaNorm* norm;
  Linear *proj_mlp, *proj_out;
  Activation* act_mlp;
  FluxAttention* attn;
};

/// axes_dims_rope: three even numbers that add up to a head's width. Throws Error.
std::vector<I> rotary_axes(const Config& c, I head_dim);
/// A number of blocks, which may be 0. Throws Error.
I block_count(const Config& c, const char* key);
/// The latents' 2x2 patches: "(height//16)*(width//16)".
nn::SizeExpression packed_latents();

}  // namespace memest::diffusers
