// models/pixtral/modeling_pixtral.py (transformers 5.24): images of any size as one sequence of patches, a mask between them.
#include <algorithm>

#include "models/hf/clip_encoder.h"
#include "models/hf/release.h"

namespace memest::hf {
namespace {

class PixtralRotaryEmbedding final : public Module<PixtralRotaryEmbedding> {
 public:
  explicit PixtralRotaryEmbedding(I head_dim) : Module("PixtralVisionRotaryEmbedding") {
    new_buffer("inv_freq", {ceil_div(head_dim, 2)}, DType::float32);
    if (release().rotary_registers_original()) new_buffer("original_inv_freq", {ceil_div(head_dim, 2)}, DType::float32);
  }
  Pair forward(const X& x, const X& position_ids) {
    X freqs = position_ids.unsqueeze(-1).to_float().mul(X(buffer(0)));
    X cos = aten("cos", {Tensor(freqs)}).mul(1.0);
    X sin = aten("sin", {Tensor(freqs)}).mul(1.0);
    cos = recomposed(cos);
    sin = recomposed(sin);
    X cast_cos = cos.to(x.dtype());
    X cast_sin = sin.to(x.dtype());
    return leave(Pair{cast_cos, cast_sin}, freqs, cos, sin);
  }

 private:
  static X recomposed(const X& freq) {
    std::vector<X> parts = freq.chunk(2, -1);
    X freq_hw = cat({parts[0].whole_slices(1).select(1, 0), parts[1].whole_slices(1).select(1, 1)}, -1);
    return cat({freq_hw, freq_hw}, -1);
  }
};

class PixtralAttention final : public Mixer {
 public:
  explicit PixtralAttention(const ClipVisionConfig& c)
      : Mixer("PixtralAttention"),
        options_(c.options),
        heads_(c.heads),
        head_dim_(c.hidden / c.heads),
        dropout_(c.attention_dropout),
        k_proj(child<Linear>("k_proj", c.hidden, c.hidden, false)),
        v_proj(child<Linear>("v_proj", c.hidden, c.hidden, false)),
        q_proj(child<Linear>("q_proj", c.hidden, c.hidden, false)),
        o_proj(child<Linear>("o_proj", c.hidden, c.hidden, false)) {}

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    if (options_.attention == Attention::flash)
      throw Error("--attn flash: memest has no flash attention over packed images", "use --attn sdpa or eager");
    const I batch_size = hidden_states.size(0), patches = hidden_states.size(1);
    X query_states = q_proj(hidden_states);
    X key_states = k_proj(hidden_states);
    X value_states = v_proj(hidden_states);
    for (X* states : {&query_states, &key_states, &value_states})
      *states = states->view({batch_size, patches, heads_, head_dim_}).transpose(1, 2);
    std::tie(query_states, key_states) =
        apply_rotary_pos_emb(query_states, key_states, call.position_embeddings.first, call.position_embeddings.second, 0);
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = call.mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape({batch_size, patches, -1}).contiguous();
    attn_output = o_proj(attn_output);
    for (X* states : {&query_states, &key_states, &value_states}) states->reset();
    return {attn_output, attn_weights};
  }

 private:
  const Options options_;
  I heads_, head_dim_;
  double dropout_;
  Linear &k_proj, &v_proj, &q_proj, &o_proj;
};

UnaryPtr make_pixtral_norm(I width) { return make_norm(Norm::llama, width, "PixtralRMSNorm"); }

class PixtralAttentionLayer final : public DecoderLayer {
 public:
  explicit PixtralAttentionLayer(const ClipVisionConfig& c)
      : DecoderLayer("PixtralAttentionLayer", c.options),
        attention_norm(register_module("attention_norm", make_pixtral_norm(c.hidden))),
        feed_forward(register_module("feed_forward", make_gated_mlp("PixtralMLP", c.hidden, c.intermediate, false, c.act))),
        attention(register_module("attention", std::make_shared<PixtralAttention>(c))),
        ffn_norm(register_module("ffn_norm", make_pixtral_norm(c.hidden))) {}

 protected:
  bool mask_by_position() const override { return true; }
  X forward(X hidden_states, const LayerCall& call) override {
    X residual = hidden_states;
    hidden_states = (*attention_norm)(hidden_states);
    X weights;
    std::tie(hidden_states, weights) = (*attention)(hidden_states, call);
    hidden_states = residual.add(hidden_states);
    residual = hidden_states;
    hidden_states = (*ffn_norm)(hidden_states);
    hidden_states = (*feed_forward)(hidden_states);
    hidden_states = residual.add(hidden_states);
    return hidden_states;
  }

 private:
  UnaryPtr attention_norm, feed_forward;
  MixerPtr attention;
  UnaryPtr ffn_norm;
};

class PixtralTransformer final : public Base {
 public:
  explicit PixtralTransformer(const ClipVisionConfig& c)
      : Base("PixtralTransformer"), layers_(*this, "layers", c.layers, [&](I) { return std::make_shared<PixtralAttentionLayer>(c); }) {}
  /// `keep` gets the layers' inputs and the last one's output.
  template <class F>
  X operator()(const X& inputs_embeds, const LayerCall& call, F keep) {
    Entered scope(*this);
    X hidden_states = inputs_embeds;
    keep(hidden_states);
    for (auto& layer : layers_) {
      hidden_states = (*layer)(hidden_states, call);
      keep(hidden_states);
    }
    return hidden_states;
  }

 private:
  Layers<PixtralAttentionLayer> layers_;
};

class PixtralVisionModel final : public VisionTower {
 public:
  explicit PixtralVisionModel(const ClipVisionConfig& c)
      : VisionTower("PixtralVisionModel", {c.patches(), c.hidden, c.layers, c.channels, c.image, c.patch}),
        patch_conv(child<PatchConvolution>("patch_conv", c.channels, c.hidden, c.patch, false)),
        ln_pre(register_module("ln_pre", make_pixtral_norm(c.hidden))),
        transformer(child<PixtralTransformer>("transformer", c)),
        patch_positional_embedding(
            child<PixtralRotaryEmbedding>("patch_positional_embedding", c.file.size_or("head_dim", c.hidden / c.heads))) {}
  nn::InputEmbedding* input_embedding() override { return &patch_conv; }

 protected:
  VisionOutput forward(X pixel_values, const std::vector<I>& selected) override {
    const I images = pixel_values.size(0), rows = sizes().height / shape.patch, columns = sizes().width / shape.patch;
    X patch_embeds = patch_conv(pixel_values.to(patch_conv.dtype()));
    std::vector<X> patch_embeds_list = trimmed(patch_embeds, rows, columns);
    {
      std::vector<X> flat;
      for (auto& p : patch_embeds_list) flat.push_back(p.flatten(1).t());
      patch_embeds = cat(std::move(flat), 0).unsqueeze(0);
    }
    patch_embeds = (*ln_pre)(patch_embeds);
    X hpos_ids, wpos_ids, position_ids;
    std::vector<X> of_images;
    for (I i = 0; i < images; ++i) {
      {
        X first = arange(rows), second = arange(columns);
        std::vector<X> grids = X::list(Unbox<Tensors>::from(call_op(
            "aten::meshgrid", {make_list({Tensor(std::move(first)), Tensor(std::move(second))})}, {{"indexing", std::string("ij")}})));
        hpos_ids = grids[0];
        wpos_ids = grids[1];
      }
      of_images.push_back(stack({hpos_ids.flatten(0), wpos_ids.flatten(0)}, -1));
    }
    position_ids = cat(of_images, 0);
    of_images.clear();
    Pair position_embeddings = patch_positional_embedding(patch_embeds, position_ids);
    X attention_mask = block_attention_mask(patch_embeds);
    VisionOutput output;
    I index = 0;
    output.last_hidden_state = transformer(patch_embeds, {attention_mask, position_embeddings, {}}, [&](const X& x) {
      if (std::find(selected.begin(), selected.end(), index++) != selected.end()) output.hidden_states.push_back(x);
    });
    patch_embeds.reset();
    patch_embeds_list.clear();
    for (X* local : {&position_ids, &hpos_ids, &wpos_ids, &position_embeddings.first, &position_embeddings.second, &attention_mask})
      local->reset();
    return output;
  }

 private:
  /// embed[..., : size[0] // patch_size, : size[1] // patch_size] of each image: the numbers are read from the device.
  std::vector<X> trimmed(const X& patch_embeds, I rows, I columns) const {
    std::vector<X> list, embeds = patch_embeds.unbind(0);
    for (I i = 0; i < I(embeds.size()); ++i) {
      X height, width;
      if (const X& all = sizes().tensor) {
        const X size = all.select(0, i);
        height = aten("floor_divide", {Tensor(size.select(0, 0)), shape.patch});
        width = aten("floor_divide", {Tensor(size.select(0, 1)), shape.patch});
      }
      list.push_back(embeds[std::size_t(i)].slice(1, std::nullopt, rows).slice(2, std::nullopt, columns));
    }
    return list;
  }
  static X block_attention_mask(const X& tensor) {
    const I seq_len = tensor.size(1);
    X causal_mask = full({seq_len, seq_len}, -3e38, tensor.dtype());
    return causal_mask.unsqueeze(0).unsqueeze(0).expand({tensor.size(0), 1, -1, -1});
  }

  PatchConvolution& patch_conv;
  UnaryPtr ln_pre;
  PixtralTransformer& transformer;
  PixtralRotaryEmbedding& patch_positional_embedding;
};

const VisionModel pixtral_tower{"pixtral", [](const Config& config, const Options& o) -> VisionTowerPtr {
                                  return std::make_shared<PixtralVisionModel>(ClipVisionConfig(config, o));
                                }};

}  // namespace
}  // namespace memest::hf
