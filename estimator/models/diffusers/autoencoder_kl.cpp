// models/autoencoders/autoencoder_kl.py and vae.py of diffusers 0.42.1.
#include "base/text.h"
#include "models/diffusers/resnet.h"

namespace memest::diffusers {
namespace {

struct CoderForm {
  CoderForm(const Config& c, bool checkpoints)
      : widths(c.integers("block_out_channels")),
        layers(c.size("layers_per_block")),
        latent_channels(c.size("latent_channels")),
        mid_block_add_attention(c.boolean("mid_block_add_attention")),
        checkpoint(checkpoints),
        resnet{.in_channels = 0,
               .out_channels = 0,
               .temb_channels = {},
               .groups = c.size("norm_num_groups"),
               .eps = 1e-6,
               .act_fn = c.text("act_fn")} {
    const std::pair<const char*, const char*> kBlocks[] = {{"down_block_types", "DownEncoderBlock2D"},
                                                           {"up_block_types", "UpDecoderBlock2D"}};
    for (auto& [key, type] : kBlocks) {
      const std::vector<std::string> types = c.texts(key);
      if (types.size() != widths.size() || types.empty())
        throw c.error(key, "expected " + std::to_string(widths.size()) + " entries, as block_out_channels has, found " +
                               std::to_string(types.size()));
      for (auto& found : types)
        if (found != type) throw c.error(key, "memest builds no block '" + found.substr(0, 60) + "'", std::string("it builds ") + type);
    }
    if (widths.size() > 20) throw c.error("block_out_channels", "expected at most 20 entries, found " + std::to_string(widths.size()));
    for (I w : widths)
      if (w < 1) throw c.error("block_out_channels", "expected positive integers, found " + std::to_string(w));
    if (layers > 10'000) throw c.error("layers_per_block", "expected at most 10000, found " + std::to_string(layers));
  }
  ResnetForm resnet_of(I in, I out) const {
    ResnetForm form = resnet;
    form.in_channels = in;
    form.out_channels = out;
    return form;
  }
  std::vector<I> widths;
  I layers, latent_channels;
  bool mid_block_add_attention, checkpoint;
  ResnetForm resnet;
};

/// DownEncoderBlock2D and UpDecoderBlock2D: resnets, then a layer that resizes.
template <class Resize>
class CoderBlock final : public Module<CoderBlock<Resize>> {
 public:
  template <class... A>
  CoderBlock(std::string type, const CoderForm& form, const char* name, I count, I in, I out, bool resizes, A... arguments)
      : Module<CoderBlock<Resize>>(std::move(type)),
        resnets_(*this, "resnets", count, [&](I i) { return std::make_shared<ResnetBlock2D>(form.resnet_of(i == 0 ? in : out, out)); }) {
    if (!resizes) return;
    resize_ = std::make_shared<Resize>(out, arguments...);
    this->register_module(name, std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}))->append(resize_);
  }
  X forward(X hidden_states) {
    for (auto& resnet : resnets_) hidden_states = (*resnet)(hidden_states);
    if (resize_) hidden_states = (*resize_)(hidden_states);
    return hidden_states;
  }

 private:
  Layers<ResnetBlock2D> resnets_;
  std::shared_ptr<Resize> resize_;
};
using DownEncoderBlock2D = CoderBlock<Downsample2D>;
using UpDecoderBlock2D = CoderBlock<Upsample2D>;

/// self._gradient_checkpointing_func(block, sample)
template <class Block>
X run_block(bool checkpoint, Block& block, const X& sample) {
  return called(checkpoint, [&block](const Tensors& x) { return Tensors{block(X(x[0]))}; }, {sample})[0];
}

class Encoder final : public Module<Encoder> {
 public:
  Encoder(const CoderForm& form, I in_channels) : Module("Encoder"), checkpoint_(form.checkpoint) {
    const auto& widths = form.widths;
    const I last = widths.back();
    conv_in = &child<Conv2d>("conv_in", in_channels, widths[0], 3, 1, 1);
    down_blocks.emplace(*this, "down_blocks", I(widths.size()), [&](I i) {
      const std::size_t level = std::size_t(i);
      return std::make_shared<DownEncoderBlock2D>("DownEncoderBlock2D", form, "downsamplers", form.layers, widths[level ? level - 1 : 0],
                                                  widths[level], level + 1 < widths.size(), I{0});
    });
    mid_block = &child<UNetMidBlock2D>("mid_block", form.resnet_of(last, last), 1, form.mid_block_add_attention, form.checkpoint);
    conv_norm_out = &child<GroupNorm>("conv_norm_out", form.resnet.groups, last, 1e-6);
    conv_act = &child<Activation>("conv_act", "silu");
    conv_out = &child<Conv2d>("conv_out", last, checked_mul(2, form.latent_channels), 3, 1, 1);
  }
  X forward(X sample) {
    sample = (*conv_in)(sample);
    for (auto& down_block : *down_blocks) sample = run_block(checkpoint_, *down_block, sample);
    sample = run_block(checkpoint_, *mid_block, sample);
    sample = (*conv_norm_out)(sample);
    sample = (*conv_act)(sample);
    sample = (*conv_out)(sample);
    return sample;
  }

 private:
  bool checkpoint_;
  Conv2d *conv_in, *conv_out;
  std::optional<Layers<DownEncoderBlock2D>> down_blocks;
  UNetMidBlock2D* mid_block;
  GroupNorm* conv_norm_out;
  Activation* conv_act;
};

class Decoder final : public Module<Decoder> {
 public:
  Decoder(const CoderForm& form, I out_channels) : Module("Decoder"), checkpoint_(form.checkpoint) {
    const std::vector<I> widths(form.widths.rbegin(), form.widths.rend());
    conv_in = &child<Conv2d>("conv_in", form.latent_channels, widths[0], 3, 1, 1);
    up_blocks.emplace(*this, "up_blocks", I(widths.size()), [&](I i) {
      const std::size_t level = std::size_t(i);
      return std::make_shared<UpDecoderBlock2D>("UpDecoderBlock2D", form, "upsamplers", form.layers + 1, widths[level ? level - 1 : 0],
                                                widths[level], level + 1 < widths.size());
    });
    mid_block = &child<UNetMidBlock2D>("mid_block", form.resnet_of(widths[0], widths[0]), 1, form.mid_block_add_attention, form.checkpoint);
    conv_norm_out = &child<GroupNorm>("conv_norm_out", form.resnet.groups, widths.back(), 1e-6);
    conv_act = &child<Activation>("conv_act", "silu");
    conv_out = &child<Conv2d>("conv_out", widths.back(), out_channels, 3, 1, 1);
  }
  X forward(X sample) {
    sample = (*conv_in)(sample);
    sample = run_block(checkpoint_, *mid_block, sample);
    for (auto& up_block : *up_blocks) sample = run_block(checkpoint_, *up_block, sample);
    sample = (*conv_norm_out)(sample);
    sample = (*conv_act)(sample);
    sample = (*conv_out)(sample);
    return sample;
  }

 private:
  bool checkpoint_;
  Conv2d *conv_in, *conv_out;
  std::optional<Layers<UpDecoderBlock2D>> up_blocks;
  UNetMidBlock2D* mid_block;
  GroupNorm* conv_norm_out;
  Activation* conv_act;
};

struct DiagonalGaussianDistribution {
  explicit DiagonalGaussianDistribution(X h) : parameters(std::move(h)) {
    std::vector<X> chunks = parameters.chunk(2, 1);
    mean = chunks[0];
    logvar = chunks[1];
    logvar = aten("clamp", {Tensor(logvar), -30.0, 20.0});
    std = logvar.mul(0.5).exp();
    var = logvar.exp();
  }
  void reset() {
    for (X* x : {&parameters, &mean, &logvar, &std, &var}) x->reset();
  }
  X parameters, mean, logvar, std, var;
};

/// --task: forward, which encodes and decodes, or one of the two alone.
class AutoencoderKL final : public Network {
 public:
  AutoencoderKL(const Config& config, const Options& options)
      : Network("AutoencoderKL", options),
        c_(config),
        form_(config, options.checkpoint),
        in_channels(config.size("in_channels")),
        out_channels(config.size("out_channels")),
        encoder(child<Encoder>("encoder", form_, in_channels)),
        decoder(child<Decoder>("decoder", form_, out_channels)) {
    if (!options.task.empty() && options.task != "encode" && options.task != "decode")
      throw Error("--task: '" + options.task.substr(0, 60) + "' is none of AutoencoderKL's",
                  "encode and decode are; without it the autoencoder encodes and decodes");
    const I latent_channels = form_.latent_channels;
    if (config.boolean("use_quant_conv")) quant_conv = &child<Conv2d>("quant_conv", 2 * latent_channels, 2 * latent_channels, 1, 1);
    if (config.boolean("use_post_quant_conv")) post_quant_conv = &child<Conv2d>("post_quant_conv", latent_channels, latent_channels, 1, 1);
  }
  std::vector<std::pair<std::string, I>> default_sizes() const override {
    const ConfigValue* size = c_.find("sample_size");
    if (!size || !size->list()) return image_sizes(c_.size("sample_size"));
    const std::vector<I> sides = c_.integers("sample_size");
    if (sides.size() != 2 || sides[0] < 1 || sides[1] < 1) throw c_.error("sample_size", "expected one or two positive integers");
    return {{"height", sides[0]}, {"width", sides[1]}};
  }
  std::string latents() const override { return ""; }

 protected:
  std::vector<nn::InputSpec> arguments() const override {
    const nn::SizeExpression batch("batch"), height("height"), width("width");
    if (!decodes_only()) return {{"sample", {batch, number(in_channels), height, width}, DType::float32}};
    return {{"z", {batch, number(form_.latent_channels), reduced("height"), reduced("width")}, DType::float32}};
  }
  std::vector<nn::SizeExpression> target() const override {
    const nn::SizeExpression batch("batch"), height("height"), width("width");
    if (options_.task == "encode") return {batch, number(form_.latent_channels), reduced("height"), reduced("width")};
    if (options_.task == "decode") return {batch, number(out_channels), height, width};
    return {};
  }
  X sample(const std::vector<X>& arguments) override {
    const X& x = arguments[0];
    if (decodes_only()) return decode(x);
    DiagonalGaussianDistribution posterior = encode(x);
    X z = posterior.mean;
    if (options_.task == "encode") return leave(z, posterior);
    X dec = decode(z);
    return leave(dec, posterior, z);
  }

 private:
  bool decodes_only() const { return options_.task == "decode"; }
  /// A side of the latents: each level but the last halves it.
  nn::SizeExpression reduced(const char* side) const {
    return nn::SizeExpression(std::string(side) + "//" + std::to_string(I(1) << (form_.widths.size() - 1)));
  }
  DiagonalGaussianDistribution encode(const X& x) {
    X enc = encoder(x);
    if (quant_conv) enc = (*quant_conv)(enc);
    return DiagonalGaussianDistribution(enc);
  }
  X decode(X z) {
    if (post_quant_conv) z = (*post_quant_conv)(z);
    X dec = decoder(z);
    return leave(dec, z);
  }

  const Config c_;
  const CoderForm form_;
  const I in_channels, out_channels;
  Encoder& encoder;
  Decoder& decoder;
  Conv2d *quant_conv = nullptr, *post_quant_conv = nullptr;
};

const ModelClass autoencoder_kl{"AutoencoderKL", make_class<AutoencoderKL>, true};

}  // namespace
}  // namespace memest::diffusers
