// models/transformers/transformer_flux.py of diffusers 0.42.1.
#include "models/diffusers/flux_parts.h"

namespace memest::diffusers {
namespace {

class FluxTransformerBlock final : public TwoStreamBlock<AdaLayerNorm> {
 public:
  FluxTransformerBlock(I dim, I head_dim) : TwoStreamBlock("FluxTransformerBlock", dim, head_dim) {}
  Pair operator()(const X& given, const X& encoder_given, const X& temb, const Pair& image_rotary_emb) {
    Entered scope(*this);
    return run(given, encoder_given, temb, temb, image_rotary_emb);
  }
};

/// It gives encoder_hidden_states and hidden_states.
class FluxSingleTransformerBlock final : public OneStreamBlock<AdaLayerNorm> {
 public:
  FluxSingleTransformerBlock(I dim, I head_dim) : OneStreamBlock("FluxSingleTransformerBlock", dim, head_dim) {}
  Pair operator()(const X& given, const X& encoder_given, const X& temb, const Pair& image_rotary_emb) {
    Entered scope(*this);
    const I text_seq_len = encoder_given.size(1);
    const X joined = cat({encoder_given, given}, 1);
    X hidden_states = run(joined, temb, image_rotary_emb);
    X encoder_hidden_states = hidden_states.whole_slices(1).slice(1, std::nullopt, text_seq_len);
    hidden_states = hidden_states.whole_slices(1).slice(1, text_seq_len, std::nullopt);
    return {encoder_hidden_states, hidden_states};
  }
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
    const std::vector<I> axes = rotary_axes(c, head_dim);
    out_channels = checked_mul(checked_mul(c.size("patch_size"), c.size("patch_size")), c.size_or("out_channels", in_channels));
    pos_embed = &child<FluxPosEmbed>("pos_embed", axes);
    time_text_embed = &child<TimeTextEmbeddings>("time_text_embed", inner_dim, pooled_projection_dim, guides_);
    context_embedder = &child<Linear>("context_embedder", joint_attention_dim, inner_dim);
    x_embedder = &child<Linear>("x_embedder", in_channels, inner_dim);
    transformer_blocks.emplace(*this, "transformer_blocks", block_count(c, "num_layers"),
                               [&](I) { return std::make_shared<FluxTransformerBlock>(inner_dim, head_dim); });
    single_transformer_blocks.emplace(*this, "single_transformer_blocks", block_count(c, "num_single_layers"),
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
    std::vector<nn::InputSpec> list{{"hidden_states", {batch, packed_latents(), number(in_channels)}, DType::float32},
                                    {"encoder_hidden_states", {batch, seq, number(joint_attention_dim)}, DType::float32},
                                    {"pooled_projections", {batch, number(pooled_projection_dim)}, DType::float32},
                                    {"timestep", {batch}, DType::float32},
                                    {"img_ids", {packed_latents(), number(3)}, DType::float32},
                                    {"txt_ids", {seq, number(3)}, DType::float32}};
    if (guides_) list.push_back({"guidance", {batch}, DType::float32, true});
    return list;
  }
  std::vector<nn::SizeExpression> target() const override { return {nn::SizeExpression("batch"), packed_latents(), number(out_channels)}; }

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
