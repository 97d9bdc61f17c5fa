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

/// axes_dims_rope: three even numbers that add up to a head's width. Throws Error.
std::vector<I> rotary_axes(const Config& c, I head_dim);
/// A number of blocks, which may be 0. Throws Error.
I block_count(const Config& c, const char* key);
/// The half's infinities are kept out of what follows.
X clipped(X x);
/// The latents' 2x2 patches: "(height//16)*(width//16)".
nn::SizeExpression packed_latents();

}  // namespace memest::diffusers
