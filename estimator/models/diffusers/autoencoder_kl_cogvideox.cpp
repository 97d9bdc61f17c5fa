// models/autoencoders/autoencoder_kl_cogvideox.py of diffusers 0.42.1: its parameters; the run, over batches of frames, is not built.
#include "models/diffusers/model.h"
#include "models/hf/weights.h"

namespace memest::diffusers {
namespace {

using hf::Weights;

/// CogVideoXSafeConv3d at that name, within a CogVideoXCausalConv3d where `causal`.
void conv3d(Weights& owner, const std::string& name, I in, I out, I kernel, bool causal = true) {
  Weights& conv =
      causal ? owner.part(name, "CogVideoXCausalConv3d").part("conv", "CogVideoXSafeConv3d") : owner.part(name, "CogVideoXSafeConv3d");
  conv.new_parameter("weight", {out, in, kernel, kernel, kernel});
  conv.new_parameter("bias", {out});
}
/// A GroupNorm, or with the latents' channels a CogVideoXSpatialNorm3D around one.
void norm(Weights& owner, const std::string& name, I channels, std::optional<I> latents) {
  Weights& group = latents ? owner.part(name, "CogVideoXSpatialNorm3D").part("norm_layer", "GroupNorm") : owner.part(name, "GroupNorm");
  group.new_parameter("weight", {channels});
  group.new_parameter("bias", {channels});
  if (!latents) return;
  Weights& spatial = static_cast<Weights&>(*owner.find(name));
  conv3d(spatial, "conv_y", *latents, channels, 1);
  conv3d(spatial, "conv_b", *latents, channels, 1);
}
void resnet(Weights& resnets, I index, I in, I out, std::optional<I> latents) {
  Weights& block = resnets.part(std::to_string(index), "CogVideoXResnetBlock3D");
  norm(block, "norm1", in, latents);
  norm(block, "norm2", out, latents);
  conv3d(block, "conv1", in, out, 3);
  conv3d(block, "conv2", out, out, 3);
  if (in != out) conv3d(block, "conv_shortcut", in, out, 1, false);
}

/// CogVideoXEncoder3D, or with the latents' channels CogVideoXDecoder3D.
struct Half {
  std::vector<I> widths;
  I layers, in, out;
  std::optional<I> latents = {};
};
void add_half(Weights& half, const Half& h) {
  conv3d(half, "conv_in", h.in, h.widths.front(), 3);
  auto mid_block = [&] {
    Weights& resnets = half.part("mid_block", "CogVideoXMidBlock3D").part("resnets", "ModuleList");
    const I width = h.latents ? h.widths.front() : h.widths.back();
    for (I i = 0; i < 2; ++i) resnet(resnets, i, width, width, h.latents);
  };
  if (h.latents) mid_block();
  Weights& blocks = half.part(h.latents ? "up_blocks" : "down_blocks", "ModuleList");
  I width = h.widths.front();
  for (std::size_t i = 0; i < h.widths.size(); ++i) {
    const I before = std::exchange(width, h.widths[i]);
    Weights& block = blocks.part(std::to_string(i), h.latents ? "CogVideoXUpBlock3D" : "CogVideoXDownBlock3D");
    Weights& resnets = block.part("resnets", "ModuleList");
    for (I layer = 0; layer < h.layers; ++layer) resnet(resnets, layer, layer == 0 ? before : width, width, h.latents);
    if (i + 1 == h.widths.size()) continue;
    Weights& samplers = block.part(h.latents ? "upsamplers" : "downsamplers", "ModuleList");
    samplers.part("0", h.latents ? "CogVideoXUpsample3D" : "CogVideoXDownsample3D").conv("conv", width, width, 3);
  }
  if (!h.latents) mid_block();
  norm(half, "norm_out", h.widths.back(), h.latents);
  conv3d(half, "conv_out", h.widths.back(), h.out, 3);
}

class AutoencoderKLCogVideoX final : public Network {
 public:
  AutoencoderKLCogVideoX(const Config& c, const Options& options) : Network("AutoencoderKLCogVideoX", options) {
    const I in = c.size("in_channels"), out = c.size("out_channels"), latent_channels = c.size("latent_channels");
    const I layers = c.size("layers_per_block");
    if (layers > 1000) throw c.error("layers_per_block", "expected at most 1000, found " + std::to_string(layers));
    std::vector<I> widths = c.integers("block_out_channels");
    for (I width : widths)
      if (width < 1) throw c.error("block_out_channels", "expected positive numbers, found " + std::to_string(width));
    for (const char* key : {"down_block_types", "up_block_types"})
      if (widths.empty() || c.texts(key).size() != widths.size())
        throw c.error(key, "expected one for each of the " + std::to_string(widths.size()) + " block_out_channels");
    add_half(child<Weights>("encoder", "CogVideoXEncoder3D"), {widths, layers, in, checked_mul(2, latent_channels)});
    std::reverse(widths.begin(), widths.end());
    add_half(child<Weights>("decoder", "CogVideoXDecoder3D"), {widths, layers + 1, latent_channels, out, latent_channels});
    for (auto [key, width] : {std::pair("quant_conv", checked_mul(2, out)), {"post_quant_conv", out}}) {
      if (!c.boolean(std::string("use_") + key)) continue;
      Weights& conv = child<Weights>(key, "CogVideoXSafeConv3d");
      conv.new_parameter("weight", {width, width, 1, 1, 1});
      conv.new_parameter("bias", {width});
    }
  }
  bool runs() const override { return false; }
  std::vector<std::pair<std::string, I>> default_sizes() const override { return {}; }
  std::string latents() const override { return {}; }

 protected:
  std::vector<nn::InputSpec> arguments() const override { return {}; }
  std::vector<nn::SizeExpression> target() const override { return {}; }
  X sample(const std::vector<X>&) override { return {}; }
};

const ModelClass cogvideox_vae{"AutoencoderKLCogVideoX", make_class<AutoencoderKLCogVideoX>};

}  // namespace
}  // namespace memest::diffusers
