// models/transformers/transformer_flux.py of diffusers 0.42.1.
#include "models/diffusers/parts.h"

namespace memest::diffusers {
namespace {

/// get_1d_rotary_pos_embed(dim, pos, use_real=True, repeat_interleave_real=True, freqs_dtype=torch.float64)
Pair rotary_pos_embed_1d(I dim, X pos) {
  X freqs = aten("arange", {I{0}, dim, I{2}}, {{"dtype", DType::float64}}).div(I{dim});
  freqs = aten("pow", {10000.0, Tensor(std::move(freqs))});
  freqs = aten("reciprocal", {Tensor(std::move(freqs))}).mul(1.0);
  freqs = std::move(freqs).div(1.0);
  freqs = aten("outer", {Tensor(pos), Tensor(freqs)});
  auto repeated = [&](const char* function) {
    X values = aten(function, {Tensor(freqs)});
    values = aten("repeat_interleave", {Tensor(std::move(values)), I{2}}, {{"dim", I{1}}});
    return std::move(values).to_float();
  };
  X freqs_cos = repeated("cos");
  X freqs_sin = repeated("sin");
  return {freqs_cos, freqs_sin};
}

/// apply_rotary_emb(x, freqs_cis, sequence_dim=1)
X apply_rotary_emb(X x, const Pair& freqs_cis) {
  const X cos = freqs_cis.first.unsqueeze(0).whole_slices(1).unsqueeze(2), sin = freqs_cis.second.unsqueeze(0).whole_slices(1).unsqueeze(2);
  const Dims shape = x.sizes().slice(0, x.dim() - 1);
  std::vector<X> parts = x.reshape(shape + Dims{-1, 2}).unbind(-1);
  X x_real = parts[0], x_imag = parts[1];
  X x_rotated = hf::stack({x_imag.neg(), x_real}, -1).flatten(3);
  X out = x.to_float().mul(cos).add(x_rotated.to_float().mul(sin)).to(x.dtype());
  return out;
}

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
  FluxAttention(I dim, I head_dim, bool joint) : Base("FluxAttention"), head_dim_(head_dim) {
    norm_q = &child<RmsNorm>("norm_q", head_dim);
    norm_k = &child<RmsNorm>("norm_k", head_dim);
    to_q = &child<Linear>("to_q", dim, dim);
    to_k = &child<Linear>("to_k", dim, dim);
    to_v = &child<Linear>("to_v", dim, dim);
    if (!joint) return;
    to_out = ToOut(*this, dim, dim);
    norm_added_q = &child<RmsNorm>("norm_added_q", head_dim);
    norm_added_k = &child<RmsNorm>("norm_added_k", head_dim);
    add_q_proj = &child<Linear>("add_q_proj", dim, dim);
    add_k_proj = &child<Linear>("add_k_proj", dim, dim);
    add_v_proj = &child<Linear>("add_v_proj", dim, dim);
    to_add_out = &child<Linear>("to_add_out", dim, dim);
  }
  /// hidden_states, and encoder_hidden_states where they were given.
  Pair operator()(X hidden_states, X encoder_hidden_states, Pair image_rotary_emb) {
    Entered scope(*this);
    const X given = hidden_states, encoder_given = encoder_hidden_states;
    X query = (*to_q)(hidden_states), key = (*to_k)(hidden_states), value = (*to_v)(hidden_states);
    X encoder_query, encoder_key, encoder_value;
    if (to_add_out) {
      encoder_query = (*add_q_proj)(encoder_hidden_states);
      encoder_key = (*add_k_proj)(encoder_hidden_states);
      encoder_value = (*add_v_proj)(encoder_hidden_states);
    }
    query = heads(query);
    key = heads(key);
    value = heads(value);
    query = (*norm_q)(query);
    key = (*norm_k)(key);
    if (to_add_out) {
      encoder_query = heads(encoder_query);
      encoder_key = heads(encoder_key);
      encoder_value = heads(encoder_value);
      encoder_query = (*norm_added_q)(encoder_query);
      encoder_key = (*norm_added_k)(encoder_key);
      query = cat({encoder_query, query}, 1);
      key = cat({encoder_key, key}, 1);
      value = cat({encoder_value, value}, 1);
    }
    query = apply_rotary_emb(query, image_rotary_emb);
    key = apply_rotary_emb(key, image_rotary_emb);
    hidden_states = attend(query.permute({0, 2, 1, 3}), key.permute({0, 2, 1, 3}), value.permute({0, 2, 1, 3})).permute({0, 2, 1, 3});
    hidden_states = hidden_states.flatten(2, 3);
    hidden_states = hidden_states.to(query.dtype());
    if (to_add_out) {
      const I text = encoder_hidden_states.size(1);
      std::vector<X> both = hidden_states.split(Dims{text, hidden_states.size(1) - text}, 1);
      encoder_hidden_states = std::move(both[0]);
      hidden_states = std::move(both[1]);
      hidden_states = to_out(hidden_states.contiguous());
      encoder_hidden_states = (*to_add_out)(encoder_hidden_states.contiguous());
    }
    return leave(Pair(hidden_states, encoder_hidden_states), query, key, value, encoder_query, encoder_key, encoder_value);
  }

 private:
  X heads(const X& x) const { return aten("unflatten", {Tensor(x), I{-1}, list_of(Dims{-1, head_dim_})}); }
  I head_dim_;
  RmsNorm *norm_q, *norm_k, *norm_added_q = nullptr, *norm_added_k = nullptr;
  Linear *to_q, *to_k, *to_v, *add_q_proj = nullptr, *add_k_proj = nullptr, *add_v_proj = nullptr, *to_add_out = nullptr;
  ToOut to_out;
};

X clipped(X x) { return x.dtype() == DType::float16 ? aten("clip", {Tensor(x), -65504.0, 65504.0}) : x; }

/// What a block gives: encoder_hidden_states, hidden_states.
class FluxTransformerBlock final : public Base {
 public:
  FluxTransformerBlock(I dim, I head_dim) : Base("FluxTransformerBlock") {
    norm1 = &child<AdaLayerNorm>("norm1", dim, 6);
    norm1_context = &child<AdaLayerNorm>("norm1_context", dim, 6);
    attn = &child<FluxAttention>("attn", dim, head_dim, true);
    norm2 = &child<LayerNorm>("norm2", dim, 1e-6, false);
    ff = &child<FeedForward>("ff", dim, "gelu-approximate");
    norm2_context = &child<LayerNorm>("norm2_context", dim, 1e-6, false);
    ff_context = &child<FeedForward>("ff_context", dim, "gelu-approximate");
  }
  Pair operator()(const X& given, const X& encoder_given, const X& temb, const Pair& image_rotary_emb) {
    Entered scope(*this);
    X context_ff_output, ff_output, context_attn_output,
        attn_output;  // in reverse: names go in Python's order, also where a checkpoint stops
    Pair attention_outputs;
    AdaLayerNorm::Result c_norm, norm;
    X encoder_hidden_states = encoder_given, hidden_states = given;

    norm = (*norm1)(hidden_states, temb);
    c_norm = (*norm1_context)(encoder_hidden_states, temb);
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
  AdaLayerNorm *norm1, *norm1_context;
  FluxAttention* attn;
  LayerNorm *norm2, *norm2_context;
  FeedForward *ff, *ff_context;
};

class FluxSingleTransformerBlock final : public Base {
 public:
  FluxSingleTransformerBlock(I dim, I head_dim) : Base("FluxSingleTransformerBlock") {
    const I mlp_hidden_dim = checked_mul(dim, 4);
    norm = &child<AdaLayerNorm>("norm", dim, 3);
    proj_mlp = &child<Linear>("proj_mlp", dim, mlp_hidden_dim);
    act_mlp = &child<Activation>("act_mlp", "gelu_tanh");
    proj_out = &child<Linear>("proj_out", checked_add(dim, mlp_hidden_dim), dim);
    attn = &child<FluxAttention>("attn", dim, head_dim, false);
  }
  Pair operator()(const X& given, const X& encoder_given, const X& temb, const Pair& image_rotary_emb) {
    Entered scope(*this);
    X attn_output, mlp_hidden_states;  // in reverse, as above
    AdaLayerNorm::Result normed;       // norm_hidden_states, gate
    X residual, encoder_hidden_states = encoder_given, hidden_states = given;

    const I text_seq_len = encoder_hidden_states.size(1);
    hidden_states = cat({encoder_hidden_states, hidden_states}, 1);
    residual = hidden_states;
    normed = (*norm)(hidden_states, temb);
    mlp_hidden_states = (*act_mlp)((*proj_mlp)(normed.hidden_states));
    attn_output = (*attn)(normed.hidden_states, X(), image_rotary_emb).first;
    hidden_states = cat({attn_output, mlp_hidden_states}, 2);
    normed.gate_msa = normed.gate_msa.unsqueeze(1);
    hidden_states = normed.gate_msa.mul((*proj_out)(hidden_states));
    hidden_states = residual.add(hidden_states);
    hidden_states = clipped(hidden_states);
    encoder_hidden_states = hidden_states.whole_slices(1).slice(1, std::nullopt, text_seq_len);
    hidden_states = hidden_states.whole_slices(1).slice(1, text_seq_len, std::nullopt);
    return {encoder_hidden_states, hidden_states};
  }

 private:
  AdaLayerNorm* norm;
  Linear *proj_mlp, *proj_out;
  Activation* act_mlp;
  FluxAttention* attn;
};

class FluxPosEmbed final : public Module<FluxPosEmbed> {
 public:
  explicit FluxPosEmbed(std::vector<I> axes_dim) : Module("FluxPosEmbed"), axes_dim_(std::move(axes_dim)) {}
  Pair forward(const X& ids) {
    std::vector<X> cos_out, sin_out;
    X pos = ids.to_float();
    X cos, sin;
    for (std::size_t i = 0; i < axes_dim_.size(); ++i) {
      std::tie(cos, sin) = rotary_pos_embed_1d(axes_dim_[i], pos.whole_slices(1).select(1, I(i)));
      cos_out.push_back(cos);
      sin_out.push_back(sin);
    }
    X freqs_cos = cat(cos_out, -1), freqs_sin = cat(sin_out, -1);
    Pair result(std::move(freqs_cos), std::move(freqs_sin));
    drop(cos_out);
    drop(sin_out);
    return leave(std::move(result), pos, cos, sin);
  }

 private:
  /// A list lets go of its last member first.
  static void drop(std::vector<X>& list) {
    while (!list.empty()) list.pop_back();
  }
  std::vector<I> axes_dim_;
};

class FluxTransformer2DModel final : public Network {
 public:
  FluxTransformer2DModel(const Config& c, const Options& options)
      : Network("FluxTransformer2DModel", options),
        in_channels(c.size("in_channels")),
        joint_attention_dim(c.size("joint_attention_dim")),
        pooled_projection_dim(c.size("pooled_projection_dim")),
        guides_(c.boolean("guidance_embeds")) {
    const I head_dim = c.size("attention_head_dim"), inner_dim = checked_mul(c.size("num_attention_heads"), head_dim);
    const std::vector<I> axes = c.integers("axes_dims_rope");
    I sum = 0;
    for (I dim : axes) {
      if (dim < 2 || dim % 2 != 0 || dim > head_dim)
        throw c.error("axes_dims_rope", "expected even numbers up to attention_head_dim, found " + std::to_string(dim));
      sum += dim;
    }
    if (sum != head_dim || axes.size() != 3)
      throw c.error("axes_dims_rope", "expected three numbers that add up to attention_head_dim " + std::to_string(head_dim) + ", found " +
                                          std::to_string(sum));
    out_channels = checked_mul(checked_mul(c.size("patch_size"), c.size("patch_size")), c.size_or("out_channels", in_channels));
    pos_embed = &child<FluxPosEmbed>("pos_embed", axes);
    time_text_embed = &child<TimeTextEmbeddings>("time_text_embed", inner_dim, pooled_projection_dim, guides_);
    context_embedder = &child<Linear>("context_embedder", joint_attention_dim, inner_dim);
    x_embedder = &child<Linear>("x_embedder", in_channels, inner_dim);
    transformer_blocks.emplace(*this, "transformer_blocks", layer_count(c, "num_layers"),
                               [&](I) { return std::make_shared<FluxTransformerBlock>(inner_dim, head_dim); });
    single_transformer_blocks.emplace(*this, "single_transformer_blocks", layer_count(c, "num_single_layers"),
                                      [&](I) { return std::make_shared<FluxSingleTransformerBlock>(inner_dim, head_dim); });
    norm_out = &child<AdaLayerNormContinuous>("norm_out", inner_dim);
    proj_out = &child<Linear>("proj_out", inner_dim, out_channels);
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override {
    auto sizes = image_sizes(1024);
    sizes.emplace_back("seq", 512);
    return sizes;
  }

  std::string latents() const override { return "the latents are an eighth of it in height and width, packed in patches of 2x2"; }

 protected:
  std::vector<nn::InputSpec> arguments() const override {
    const nn::SizeExpression batch("batch"), seq("seq");
    std::vector<nn::InputSpec> list{{"hidden_states", {batch, packed(), number(in_channels)}, DType::float32},
                                    {"encoder_hidden_states", {batch, seq, number(joint_attention_dim)}, DType::float32},
                                    {"pooled_projections", {batch, number(pooled_projection_dim)}, DType::float32},
                                    {"timestep", {batch}, DType::float32},
                                    {"img_ids", {packed(), number(3)}, DType::float32},
                                    {"txt_ids", {seq, number(3)}, DType::float32}};
    if (guides_) list.push_back({"guidance", {batch}, DType::float32, true});
    return list;
  }
  std::vector<nn::SizeExpression> target() const override { return {nn::SizeExpression("batch"), packed(), number(out_channels)}; }

  X sample(const std::vector<X>& arguments) override {
    X hidden_states = arguments[0], encoder_hidden_states = arguments[1], timestep = arguments[3];
    const X &pooled_projections = arguments[2], &img_ids = arguments[4], &txt_ids = arguments[5];
    X guidance = guides_ ? arguments[6] : X();
    hidden_states = (*x_embedder)(hidden_states);
    timestep = timestep.to(hidden_states.dtype()).mul(1000);
    if (guidance) guidance = guidance.to(hidden_states.dtype()).mul(1000);
    X temb = (*time_text_embed)(timestep, guidance, pooled_projections);
    encoder_hidden_states = (*context_embedder)(encoder_hidden_states);
    X ids = cat({txt_ids, img_ids}, 0);
    Pair image_rotary_emb = (*pos_embed)(ids);
    for (auto& block : *transformer_blocks)
      std::tie(encoder_hidden_states, hidden_states) = run(*block, hidden_states, encoder_hidden_states, temb, image_rotary_emb);
    for (auto& block : *single_transformer_blocks)
      std::tie(encoder_hidden_states, hidden_states) = run(*block, hidden_states, encoder_hidden_states, temb, image_rotary_emb);
    hidden_states = (*norm_out)(hidden_states, temb);
    X output = (*proj_out)(hidden_states);
    return leave(output, hidden_states, encoder_hidden_states, timestep, guidance, temb, ids, image_rotary_emb.second,
                 image_rotary_emb.first);
  }

 private:
  static I layer_count(const Config& c, const char* key) {
    const I count = c.integer(key);
    if (count < 0 || count > 10'000) throw c.error(key, "expected 0 to 10000, found " + std::to_string(count));
    return count;
  }
  /// The latents' 2×2 patches.
  static nn::SizeExpression packed() { return nn::SizeExpression("(height//16)*(width//16)"); }
  template <class Block>
  Pair run(Block& block, const X& hidden_states, const X& encoder_hidden_states, const X& temb, const Pair& image_rotary_emb) {
    const Tensors both = called(options_.checkpoint,
                                [&block, image_rotary_emb](const Tensors& x) {
                                  Pair result = block(X(x[0]), X(x[1]), X(x[2]), image_rotary_emb);
                                  return Tensors{result.first, result.second};
                                },
                                {hidden_states, encoder_hidden_states, temb});
    return {X(both[0]), X(both[1])};
  }

  const I in_channels, joint_attention_dim, pooled_projection_dim;
  const bool guides_;
  I out_channels = 0;
  FluxPosEmbed* pos_embed;
  TimeTextEmbeddings* time_text_embed;
  Linear *context_embedder, *x_embedder, *proj_out;
  std::optional<Layers<FluxTransformerBlock>> transformer_blocks;
  std::optional<Layers<FluxSingleTransformerBlock>> single_transformer_blocks;
  AdaLayerNormContinuous* norm_out;
};

const ModelClass flux{"FluxTransformer2DModel", make_class<FluxTransformer2DModel>};

}  // namespace
}  // namespace memest::diffusers
