// models/transformers/transformer_chroma.py of diffusers 0.42.1: Flux's blocks, modulated by one small network for all of them.
#include "models/diffusers/flux_parts.h"

namespace memest::diffusers {
namespace {

/// ChromaAdaLayerNormZeroPruned (6 parts) and ChromaAdaLayerNormZeroSinglePruned (3): the parts come ready.
class PrunedAdaLayerNorm final : public Base {
 public:
  PrunedAdaLayerNorm(I dim, I parts)
      : Base(parts == 6 ? "ChromaAdaLayerNormZeroPruned" : "ChromaAdaLayerNormZeroSinglePruned"), parts_(parts) {
    norm = &child<LayerNorm>("norm", dim, 1e-6, false);
  }
  AdaLayerNorm::Result operator()(const X& x, const X& emb) {
    Entered scope(*this);
    std::vector<X> chunks = emb.flatten(1, 2).chunk(parts_, 1);  // shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp
    AdaLayerNorm::Result result;
    result.gate_msa = chunks[2];
    if (parts_ == 6) {
      result.shift_mlp = chunks[3];
      result.scale_mlp = chunks[4];
      result.gate_mlp = chunks[5];
    }
    result.hidden_states = modulated((*norm)(x), chunks[1], chunks[0]);
    return result;
  }

 private:
  I parts_;
  LayerNorm* norm;
};

class ContinuousPruned final : public Module<ContinuousPruned> {
 public:
  explicit ContinuousPruned(I dim) : Module("ChromaAdaLayerNormContinuousPruned") { norm = &child<LayerNorm>("norm", dim, 1e-6, false); }
  X forward(X x, const X& emb) {
    std::vector<X> chunks = emb.flatten(1, 2).to(x.dtype()).chunk(2, 1);  // shift, scale
    x = (*norm)(x);
    X scale = chunks[1].add(1);
    scale = scale.whole_slices(1).unsqueeze(1);
    return std::move(x).mul(std::move(scale)).add(chunks[0].whole_slices(1).unsqueeze(1));
  }

 private:
  LayerNorm* norm;
};

X repeated(X x, const Dims& times) { return aten("repeat", {Tensor(std::move(x)), list_of(times)}); }

/// ChromaCombinedTimestepTextProjEmbeddings: for each modulation its own number, beside the timestep.
class TimestepOfModulations final : public Module<TimestepOfModulations> {
 public:
  TimestepOfModulations(I num_channels, I out_dim) : Module("ChromaCombinedTimestepTextProjEmbeddings"), channels_(num_channels) {
    time_proj = &child<Timesteps>("time_proj", num_channels, true);
    child<Timesteps>("guidance_proj", num_channels, true);
    new_buffer("mod_proj", {out_dim, checked_mul(2, num_channels)}, runtime().default_dtype);
  }
  X forward(const X& timestep) {
    const X stored(buffer(0));
    const I mod_index_length = stored.size(0), batch_size = timestep.size(0);
    X timesteps_proj = (*time_proj)(timestep).to(timestep.dtype());
    X guidance_proj = empty({batch_size, channels_}, timestep.dtype());  // computed on the host
    X mod_proj = repeated(stored.to(timesteps_proj.dtype()), {batch_size, 1, 1});
    X timestep_guidance = repeated(cat({timesteps_proj, guidance_proj}, 1).unsqueeze(1), {1, mod_index_length, 1});
    X input_vec = cat({timestep_guidance, mod_proj}, -1);
    return leave(input_vec.to(timestep.dtype()), timesteps_proj, guidance_proj, mod_proj, timestep_guidance, input_vec);
  }

 private:
  I channels_;
  Timesteps* time_proj;
};

class ChromaApproximator final : public Module<ChromaApproximator> {
 public:
  ChromaApproximator(I in_dim, I out_dim, I hidden_dim, I n_layers) : Module("ChromaApproximator") {
    in_proj = &child<Linear>("in_proj", in_dim, hidden_dim);
    layers.emplace(*this, "layers", n_layers, [&](I) { return std::make_shared<TextProjection>(hidden_dim, hidden_dim, "silu"); });
    norms.emplace(*this, "norms", n_layers, [&](I) { return std::make_shared<RmsNorm>(hidden_dim); });
    out_proj = &child<Linear>("out_proj", hidden_dim, out_dim);
  }
  X forward(X x) {
    x = (*in_proj)(x);
    auto norm = norms->begin();
    for (auto& layer : *layers) x = x.add((*layer)((**norm++)(x)));
    return (*out_proj)(x);
  }

 private:
  Linear *in_proj, *out_proj;
  std::optional<Layers<TextProjection>> layers;
  std::optional<Layers<RmsNorm>> norms;
};

class ChromaTransformerBlock final : public TwoStreamBlock<PrunedAdaLayerNorm> {
 public:
  ChromaTransformerBlock(I dim, I head_dim) : TwoStreamBlock("ChromaTransformerBlock", dim, head_dim) {}
  Pair operator()(const X& given, const X& encoder_given, const X& temb, const Pair& image_rotary_emb) {
    Entered scope(*this);
    const X temb_img = temb.whole_slices(1).slice(1, std::nullopt, 6), temb_txt = temb.whole_slices(1).slice(1, 6, std::nullopt);
    return run(given, encoder_given, temb_img, temb_txt, image_rotary_emb);
  }
};

class ChromaSingleTransformerBlock final : public OneStreamBlock<PrunedAdaLayerNorm> {
 public:
  ChromaSingleTransformerBlock(I dim, I head_dim) : OneStreamBlock("ChromaSingleTransformerBlock", dim, head_dim) {}
  X operator()(const X& hidden_states, const X& temb, const Pair& image_rotary_emb) {
    Entered scope(*this);
    return run(hidden_states, temb, image_rotary_emb);
  }
};

class ChromaTransformer2DModel final : public Network {
 public:
  ChromaTransformer2DModel(const Config& c, const Options& options)
      : Network("ChromaTransformer2DModel", options),
        in_channels(c.size("in_channels")),
        joint_attention_dim(c.size("joint_attention_dim")) {
    const I head_dim = c.size("attention_head_dim"), inner_dim = checked_mul(c.size("num_attention_heads"), head_dim);
    const I doubles = block_count(c, "num_layers"), singles = block_count(c, "num_single_layers");
    const I channels = c.size("approximator_num_channels");
    if (channels % 4 != 0) throw c.error("approximator_num_channels", "expected a multiple of 4, found " + std::to_string(channels));
    out_channels = checked_mul(checked_mul(c.size("patch_size"), c.size("patch_size")), c.size_or("out_channels", in_channels));
    pos_embed = &child<FluxPosEmbed>("pos_embed", rotary_axes(c, head_dim));
    time_text_embed = &child<TimestepOfModulations>("time_text_embed", channels / 4, 3 * singles + 12 * doubles + 2);
    distilled_guidance_layer = &child<ChromaApproximator>("distilled_guidance_layer", channels, inner_dim,
                                                          c.size("approximator_hidden_dim"), block_count(c, "approximator_layers"));
    context_embedder = &child<Linear>("context_embedder", joint_attention_dim, inner_dim);
    x_embedder = &child<Linear>("x_embedder", in_channels, inner_dim);
    transformer_blocks.emplace(*this, "transformer_blocks", doubles,
                               [&](I) { return std::make_shared<ChromaTransformerBlock>(inner_dim, head_dim); });
    single_transformer_blocks.emplace(*this, "single_transformer_blocks", singles,
                                      [&](I) { return std::make_shared<ChromaSingleTransformerBlock>(inner_dim, head_dim); });
    norm_out = &child<ContinuousPruned>("norm_out", inner_dim);
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
    return {{"hidden_states", {batch, packed_latents(), number(in_channels)}, DType::float32},
            {"encoder_hidden_states", {batch, seq, number(joint_attention_dim)}, DType::float32},
            {"timestep", {batch}, DType::float32},
            {"img_ids", {packed_latents(), number(3)}, DType::float32},
            {"txt_ids", {seq, number(3)}, DType::float32}};
  }
  std::vector<nn::SizeExpression> target() const override { return {nn::SizeExpression("batch"), packed_latents(), number(out_channels)}; }

  X sample(const std::vector<X>& arguments) override {
    X hidden_states = arguments[0], encoder_hidden_states = arguments[1], timestep = arguments[2];
    const X &img_ids = arguments[3], &txt_ids = arguments[4];
    hidden_states = (*x_embedder)(hidden_states);
    timestep = timestep.to(hidden_states.dtype()).mul(1000);
    X input_vec = (*time_text_embed)(timestep);
    X pooled_temb = (*distilled_guidance_layer)(input_vec);
    encoder_hidden_states = (*context_embedder)(encoder_hidden_states);
    X ids = cat({txt_ids, img_ids}, 0);
    Pair image_rotary_emb = (*pos_embed)(ids);
    X temb;
    auto modulation = [&pooled_temb](I from, I count) { return pooled_temb.whole_slices(1).slice(1, from, from + count); };
    const I image = 3 * I(single_transformer_blocks->size()), text = image + 6 * I(transformer_blocks->size());
    I index = 0;
    for (auto& block : *transformer_blocks) {
      temb = cat({modulation(image + 6 * index, 6), modulation(text + 6 * index, 6)}, 1);
      ++index;
      const Tensors both = called(options_.checkpoint,
                                  [&block = *block, image_rotary_emb](const Tensors& x) {
                                    Pair result = block(X(x[0]), X(x[1]), X(x[2]), image_rotary_emb);
                                    return Tensors{result.first, result.second};
                                  },
                                  {hidden_states, encoder_hidden_states, temb});
      encoder_hidden_states = both[0], hidden_states = both[1];
    }
    hidden_states = cat({encoder_hidden_states, hidden_states}, 1);
    index = 0;
    for (auto& block : *single_transformer_blocks) {
      temb = modulation(3 * index++, 3);
      hidden_states =
          called(options_.checkpoint,
                 [&block = *block, image_rotary_emb](const Tensors& x) { return Tensors{block(X(x[0]), X(x[1]), image_rotary_emb)}; },
                 {hidden_states, temb})[0];
    }
    hidden_states = hidden_states.whole_slices(1).slice(1, encoder_hidden_states.size(1), std::nullopt);
    temb = pooled_temb.whole_slices(1).slice(1, -2, std::nullopt);
    hidden_states = (*norm_out)(hidden_states, temb);
    X output = (*proj_out)(hidden_states);
    return leave(output, hidden_states, encoder_hidden_states, timestep, input_vec, pooled_temb, ids, image_rotary_emb.second,
                 image_rotary_emb.first, temb);
  }

 private:
  const I in_channels, joint_attention_dim;
  I out_channels = 0;
  FluxPosEmbed* pos_embed;
  TimestepOfModulations* time_text_embed;
  ChromaApproximator* distilled_guidance_layer;
  Linear *context_embedder, *x_embedder, *proj_out;
  std::optional<Layers<ChromaTransformerBlock>> transformer_blocks;
  std::optional<Layers<ChromaSingleTransformerBlock>> single_transformer_blocks;
  ContinuousPruned* norm_out;
};

const ModelClass chroma{"ChromaTransformer2DModel", make_class<ChromaTransformer2DModel>};

}  // namespace
}  // namespace memest::diffusers
