// models/transformers/transformer_sd3.py and JointTransformerBlock (models/attention.py) of diffusers 0.42.1.
#include "models/diffusers/parts.h"

namespace memest::diffusers {
namespace {

/// PatchEmbed with a table of positions that the middle is cut from.
class PatchEmbed final : public Module<PatchEmbed> {
 public:
  PatchEmbed(const Config& c, I embed_dim)
      : Module("PatchEmbed"), patch_size_(c.size("patch_size")), pos_embed_max_size_(c.size("pos_embed_max_size")) {
    proj = &child<Conv2d>("proj", c.size("in_channels"), embed_dim, patch_size_, patch_size_);
    new_buffer("pos_embed", {1, checked_mul(pos_embed_max_size_, pos_embed_max_size_), embed_dim}, runtime().default_dtype);
  }
  X forward(X latent) {
    const I height = latent.size(2) / patch_size_, width = latent.size(3) / patch_size_;
    latent = (*proj)(latent);
    latent = latent.flatten(2).transpose(1, 2);
    X pos_embed = cropped_pos_embed(height, width);
    X result = latent.add(pos_embed).to(latent.dtype());
    return leave(result, latent, pos_embed);
  }

 private:
  X cropped_pos_embed(I height, I width) const {
    const I most = pos_embed_max_size_;
    if (height > most || width > most)
      throw Error("Height (" + std::to_string(height) + ") and width (" + std::to_string(width) +
                      ") cannot be greater than `pos_embed_max_size`: " + std::to_string(most) + ".",
                  "a smaller --image");
    const I top = (most - height) / 2, left = (most - width) / 2;
    X spatial_pos_embed = X(buffer(0)).reshape({1, most, most, -1});
    spatial_pos_embed = spatial_pos_embed.whole_slices(1).slice(1, top, top + height).slice(2, left, left + width);
    spatial_pos_embed = spatial_pos_embed.reshape({1, -1, spatial_pos_embed.size(-1)});
    return spatial_pos_embed;
  }
  I patch_size_, pos_embed_max_size_;
  Conv2d* proj;
};

/// Attention with JointAttnProcessor2_0. `text`: states of the text come apart, with projections of their own.
struct JointForm {
  I dim, head_dim;
  bool qk_norm, text = false, context_pre_only = false;
};
class JointAttention final : public Base {
 public:
  explicit JointAttention(const JointForm& f) : Base("Attention"), heads_(f.dim / f.head_dim), head_dim_(f.head_dim) {
    if (f.qk_norm) {
      norm_q = &child<PythonRmsNorm>("norm_q", f.head_dim);
      norm_k = &child<PythonRmsNorm>("norm_k", f.head_dim);
    }
    to_q = &child<Linear>("to_q", f.dim, f.dim);
    to_k = &child<Linear>("to_k", f.dim, f.dim);
    to_v = &child<Linear>("to_v", f.dim, f.dim);
    if (f.text) {
      add_k_proj = &child<Linear>("add_k_proj", f.dim, f.dim);
      add_v_proj = &child<Linear>("add_v_proj", f.dim, f.dim);
      add_q_proj = &child<Linear>("add_q_proj", f.dim, f.dim);
    }
    to_out = ToOut(*this, f.dim, f.dim);
    if (f.text && !f.context_pre_only) to_add_out = &child<Linear>("to_add_out", f.dim, f.dim);
    if (f.text && f.qk_norm) {
      norm_added_q = &child<PythonRmsNorm>("norm_added_q", f.head_dim);
      norm_added_k = &child<PythonRmsNorm>("norm_added_k", f.head_dim);
    }
  }
  Pair operator()(X hidden_states, X encoder_hidden_states = {}) {
    Entered scope(*this);
    const X residual = hidden_states, given = encoder_hidden_states;
    X query = (*to_q)(hidden_states), key = (*to_k)(hidden_states), value = (*to_v)(hidden_states);
    query = in_heads(query);
    key = in_heads(key);
    value = in_heads(value);
    if (norm_q) query = (*norm_q)(query);
    if (norm_k) key = (*norm_k)(key);
    X encoder_query, encoder_key, encoder_value;
    if (encoder_hidden_states) {
      encoder_query = (*add_q_proj)(encoder_hidden_states);
      encoder_key = (*add_k_proj)(encoder_hidden_states);
      encoder_value = (*add_v_proj)(encoder_hidden_states);
      encoder_query = in_heads(encoder_query);
      encoder_key = in_heads(encoder_key);
      encoder_value = in_heads(encoder_value);
      if (norm_added_q) encoder_query = (*norm_added_q)(encoder_query);
      if (norm_added_k) encoder_key = (*norm_added_k)(encoder_key);
      query = cat({query, encoder_query}, 2);
      key = cat({key, encoder_key}, 2);
      value = cat({value, encoder_value}, 2);
    }
    hidden_states = attend(query, key, value);
    hidden_states = hidden_states.transpose(1, 2).reshape({hidden_states.size(0), -1, heads_ * head_dim_});
    hidden_states = hidden_states.to(query.dtype());
    if (encoder_hidden_states) {
      const I image = residual.size(1);
      X first = hidden_states.whole_slices(1).slice(1, std::nullopt, image);
      encoder_hidden_states = hidden_states.whole_slices(1).slice(1, image, std::nullopt);
      hidden_states = std::move(first);
      if (to_add_out) encoder_hidden_states = (*to_add_out)(encoder_hidden_states);
    }
    hidden_states = to_out(hidden_states);
    return leave(Pair(hidden_states, encoder_hidden_states), query, key, value, encoder_query, encoder_key, encoder_value);
  }

 private:
  X in_heads(const X& x) const { return x.view({x.size(0), -1, heads_, head_dim_}).transpose(1, 2); }
  I heads_, head_dim_;
  PythonRmsNorm *norm_q = nullptr, *norm_k = nullptr, *norm_added_q = nullptr, *norm_added_k = nullptr;
  Linear *to_q, *to_k, *to_v, *add_q_proj = nullptr, *add_k_proj = nullptr, *add_v_proj = nullptr, *to_add_out = nullptr;
  ToOut to_out;
};

/// What a block gives: encoder_hidden_states (none of the last one's), hidden_states.
class JointTransformerBlock final : public Base {
 public:
  JointTransformerBlock(I dim, I head_dim, bool qk_norm, bool context_pre_only, bool use_dual_attention) : Base("JointTransformerBlock") {
    norm1 = &child<AdaLayerNorm>("norm1", dim, use_dual_attention ? 9 : 6);
    if (context_pre_only)
      last_norm1_context = &child<AdaLayerNormContinuous>("norm1_context", dim);
    else
      norm1_context = &child<AdaLayerNorm>("norm1_context", dim, 6);
    attn = &child<JointAttention>("attn", JointForm{dim, head_dim, qk_norm, true, context_pre_only});
    if (use_dual_attention) attn2 = &child<JointAttention>("attn2", JointForm{dim, head_dim, qk_norm});
    norm2 = &child<LayerNorm>("norm2", dim, 1e-6, false);
    ff = &child<FeedForward>("ff", dim, "gelu-approximate");
    if (context_pre_only) return;
    norm2_context = &child<LayerNorm>("norm2_context", dim, 1e-6, false);
    ff_context = &child<FeedForward>("ff_context", dim, "gelu-approximate");
  }
  Pair operator()(const X& given, const X& encoder_given, const X& temb) {
    Entered scope(*this);
    X context_ff_output, ff_output, attn_output2, context_attn_output, attn_output;  // in reverse: names go in Python's order, also where a
    AdaLayerNorm::Result c_norm, norm;                                               // checkpoint stops
    X encoder_hidden_states = encoder_given, hidden_states = given;

    norm = (*norm1)(hidden_states, temb);
    if (last_norm1_context)
      c_norm.hidden_states = (*last_norm1_context)(encoder_hidden_states, temb);
    else
      c_norm = (*norm1_context)(encoder_hidden_states, temb);
    std::tie(attn_output, context_attn_output) = (*attn)(norm.hidden_states, c_norm.hidden_states);
    attn_output = norm.gate_msa.unsqueeze(1).mul(attn_output);
    hidden_states = hidden_states.add(attn_output);
    if (attn2) {
      attn_output2 = (*attn2)(norm.hidden_states2).first;
      attn_output2 = norm.gate_msa2.unsqueeze(1).mul(attn_output2);
      hidden_states = hidden_states.add(attn_output2);
    }
    norm.hidden_states = (*norm2)(hidden_states);
    norm.hidden_states = modulated(norm.hidden_states, norm.scale_mlp, norm.shift_mlp);
    ff_output = (*ff)(norm.hidden_states);
    ff_output = norm.gate_mlp.unsqueeze(1).mul(ff_output);
    hidden_states = hidden_states.add(ff_output);
    if (last_norm1_context) {
      encoder_hidden_states.reset();
    } else {
      context_attn_output = c_norm.gate_msa.unsqueeze(1).mul(context_attn_output);
      encoder_hidden_states = encoder_hidden_states.add(context_attn_output);
      c_norm.hidden_states = (*norm2_context)(encoder_hidden_states);
      c_norm.hidden_states = modulated(c_norm.hidden_states, c_norm.scale_mlp, c_norm.shift_mlp);
      context_ff_output = (*ff_context)(c_norm.hidden_states);
      encoder_hidden_states = encoder_hidden_states.add(c_norm.gate_mlp.unsqueeze(1).mul(context_ff_output));
    }
    return {encoder_hidden_states, hidden_states};
  }

 private:
  AdaLayerNorm *norm1, *norm1_context = nullptr;
  AdaLayerNormContinuous* last_norm1_context = nullptr;
  JointAttention *attn, *attn2 = nullptr;
  LayerNorm *norm2, *norm2_context = nullptr;
  FeedForward *ff, *ff_context = nullptr;
};

class SD3Transformer2DModel final : public Network {
 public:
  SD3Transformer2DModel(const Config& c, const Options& options)
      : Network("SD3Transformer2DModel", options),
        sample_size_(c.size("sample_size")),
        patch_size(c.size("patch_size")),
        in_channels(c.size("in_channels")),
        out_channels(c.size_or("out_channels", in_channels)),
        joint_attention_dim(c.size("joint_attention_dim")),
        pooled_projection_dim(c.size("pooled_projection_dim")) {
    const I head_dim = c.size("attention_head_dim"), inner_dim = checked_mul(c.size("num_attention_heads"), head_dim);
    const I num_layers = c.size("num_layers"), caption_projection_dim = c.size("caption_projection_dim");
    if (num_layers > 10'000) throw c.error("num_layers", "expected at most 10000, found " + std::to_string(num_layers));
    if (caption_projection_dim != inner_dim)
      throw c.error("caption_projection_dim", "expected num_attention_heads x attention_head_dim " + std::to_string(inner_dim) +
                                                  ", found " + std::to_string(caption_projection_dim));
    const std::string qk_norm = c.text_or("qk_norm", "");
    if (!qk_norm.empty() && qk_norm != "rms_norm")
      throw c.error("qk_norm", "memest does not build '" + qk_norm.substr(0, 60) + "'", "it builds rms_norm or none");
    const std::vector<I> dual = c.integers("dual_attention_layers");
    pos_embed = &child<PatchEmbed>("pos_embed", c, inner_dim);
    time_text_embed = &child<TimeTextEmbeddings>("time_text_embed", inner_dim, pooled_projection_dim, false);
    context_embedder = &child<Linear>("context_embedder", joint_attention_dim, caption_projection_dim);
    transformer_blocks.emplace(*this, "transformer_blocks", num_layers, [&](I i) {
      return std::make_shared<JointTransformerBlock>(inner_dim, head_dim, !qk_norm.empty(), i == num_layers - 1,
                                                     std::find(dual.begin(), dual.end(), i) != dual.end());
    });
    norm_out = &child<AdaLayerNormContinuous>("norm_out", inner_dim);
    proj_out = &child<Linear>("proj_out", inner_dim, checked_mul(checked_mul(patch_size, patch_size), out_channels));
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override {
    auto sizes = image_sizes(checked_mul(8, sample_size_));
    sizes.emplace_back("seq", 333);  // 77 of CLIP and 256 of T5 (pipeline_stable_diffusion_3.py: max_sequence_length)
    return sizes;
  }

 protected:
  std::vector<nn::InputSpec> arguments() const override {
    const nn::SizeExpression batch("batch"), seq("seq");
    return {{"hidden_states", {batch, number(in_channels), latent("height"), latent("width")}, DType::float32},
            {"encoder_hidden_states", {batch, seq, number(joint_attention_dim)}, DType::float32},
            {"pooled_projections", {batch, number(pooled_projection_dim)}, DType::float32},
            {"timestep", {batch}, DType::float32, true}};
  }
  std::vector<nn::SizeExpression> target() const override {
    return {nn::SizeExpression("batch"), number(out_channels), latent("height"), latent("width")};
  }
  X sample(const std::vector<X>& arguments) override {
    X hidden_states = arguments[0], encoder_hidden_states = arguments[1];
    const X &pooled_projections = arguments[2], &timestep = arguments[3];
    const I height = hidden_states.size(2) / patch_size, width = hidden_states.size(3) / patch_size;
    hidden_states = (*pos_embed)(hidden_states);
    hidden_states = hidden_states.contiguous();
    X temb = (*time_text_embed)(timestep, X(), pooled_projections);
    encoder_hidden_states = (*context_embedder)(encoder_hidden_states);
    for (auto& block : *transformer_blocks) {
      const Tensors both = called(options_.checkpoint,
                                  [&block](const Tensors& x) {
                                    Pair result = (*block)(X(x[0]), X(x[1]), X(x[2]));
                                    return Tensors{result.first, result.second};
                                  },
                                  {hidden_states, encoder_hidden_states, temb});
      encoder_hidden_states = X(both[0]);
      hidden_states = X(both[1]);
    }
    hidden_states = (*norm_out)(hidden_states, temb);
    hidden_states = (*proj_out)(hidden_states);
    const I batch = hidden_states.size(0);
    hidden_states = hidden_states.reshape({batch, height, width, patch_size, patch_size, out_channels});
    hidden_states = aten("einsum", {std::string("nhwpqc->nchpwq"), list_of(Tensors{hidden_states})});
    X output = hidden_states.reshape({batch, out_channels, height * patch_size, width * patch_size});
    return leave(output, hidden_states, encoder_hidden_states, temb);
  }

 private:
  const I sample_size_, patch_size, in_channels, out_channels, joint_attention_dim, pooled_projection_dim;
  PatchEmbed* pos_embed;
  TimeTextEmbeddings* time_text_embed;
  Linear *context_embedder, *proj_out;
  std::optional<Layers<JointTransformerBlock>> transformer_blocks;
  AdaLayerNormContinuous* norm_out;
};

const ModelClass sd3{"SD3Transformer2DModel", make_class<SD3Transformer2DModel>};

}  // namespace
}  // namespace memest::diffusers
