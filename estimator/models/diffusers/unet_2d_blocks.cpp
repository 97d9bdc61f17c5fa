#include "models/diffusers/unet_2d_blocks.h"

namespace memest::diffusers {
namespace {

std::shared_ptr<nn::ModuleList> empty_list() { return std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}); }

}  // namespace

// ---- Transformer2DModel ----------------------------------------------------------------------------------------------------

class Transformer2DModel::Block final : public Module<Block> {
 public:
  Block(I dim, const UNetLevel& level) : Module("BasicTransformerBlock"), only_cross_attention_(level.only_cross_attention) {
    const I head_dim = dim / level.heads;
    auto attention = [&](const char* name, bool cross) {
      return &child<Attention>(name, AttentionForm{.query_dim = dim,
                                                   .cross_attention_dim = cross ? std::optional(level.cross_attention_dim) : std::nullopt,
                                                   .heads = level.heads,
                                                   .dim_head = head_dim});
    };
    norm1 = &child<LayerNorm>("norm1", dim);
    attn1 = attention("attn1", level.only_cross_attention);
    norm2 = &child<LayerNorm>("norm2", dim);
    attn2 = attention("attn2", true);
    norm3 = &child<LayerNorm>("norm3", dim);
    ff = &child<FeedForward>("ff", dim, "geglu");
  }
  X forward(X hidden_states, const X& encoder_hidden_states) {
    X norm_hidden_states = (*norm1)(hidden_states);
    X attn_output = (*attn1)(norm_hidden_states, only_cross_attention_ ? encoder_hidden_states : X());
    hidden_states = attn_output.add(hidden_states);
    norm_hidden_states = (*norm2)(hidden_states);
    attn_output = (*attn2)(norm_hidden_states, encoder_hidden_states);
    hidden_states = attn_output.add(hidden_states);
    norm_hidden_states = (*norm3)(hidden_states);
    X ff_output = (*ff)(norm_hidden_states);
    hidden_states = ff_output.add(hidden_states);
    return leave(hidden_states, norm_hidden_states, attn_output, ff_output);
  }

 private:
  bool only_cross_attention_;
  LayerNorm *norm1, *norm2, *norm3;
  Attention *attn1, *attn2;
  FeedForward* ff;
};

Transformer2DModel::Transformer2DModel(const UNetLevel& level, I num_layers)
    : Module("Transformer2DModel"), checkpoint_(level.checkpoint), inner_dim_(level.channels / level.heads * level.heads) {
  norm = &child<GroupNorm>("norm", level.resnet.groups, level.channels, 1e-6);
  if (level.use_linear_projection)
    linear_in = &child<Linear>("proj_in", level.channels, inner_dim_);
  else
    conv_in = &child<Conv2d>("proj_in", level.channels, inner_dim_, 1, 1);
  auto list = register_module("transformer_blocks", empty_list());
  for (I i = 0; i < num_layers; ++i) {
    transformer_blocks.push_back(std::make_shared<Block>(inner_dim_, level));
    list->append(transformer_blocks.back());
  }
  if (level.use_linear_projection)
    linear_out = &child<Linear>("proj_out", inner_dim_, level.channels);
  else
    conv_out = &child<Conv2d>("proj_out", inner_dim_, level.channels, 1, 1);
}
Transformer2DModel::~Transformer2DModel() = default;

X Transformer2DModel::on_continuous_inputs(X hidden_states) {
  const I batch = hidden_states.size(0), height = hidden_states.size(2), width = hidden_states.size(3);
  hidden_states = (*norm)(hidden_states);
  if (conv_in) hidden_states = (*conv_in)(hidden_states);
  hidden_states = hidden_states.permute({0, 2, 3, 1}).reshape({batch, checked_mul(height, width), hidden_states.size(1)});
  if (linear_in) hidden_states = (*linear_in)(hidden_states);
  return hidden_states;
}
X Transformer2DModel::output_for_continuous_inputs(X hidden_states, const X& residual, I height, I width) {
  const I batch_size = residual.size(0);
  if (linear_out) hidden_states = (*linear_out)(hidden_states);
  hidden_states = hidden_states.reshape({batch_size, height, width, hidden_states.size(-1)}).permute({0, 3, 1, 2}).contiguous();
  if (conv_out) hidden_states = (*conv_out)(hidden_states);
  return hidden_states.add(residual);
}

X Transformer2DModel::forward(X hidden_states, const X& encoder_hidden_states) {
  const I height = hidden_states.size(2), width = hidden_states.size(3);
  X residual = hidden_states;
  hidden_states = on_continuous_inputs(hidden_states);
  for (auto& block : transformer_blocks)
    hidden_states = called(checkpoint_, [&block](const Tensors& x) { return Tensors{(*block)(X(x[0]), X(x[1]))}; },
                           {hidden_states, encoder_hidden_states})[0];
  X output = output_for_continuous_inputs(hidden_states, residual, height, width);
  return leave(output, hidden_states, residual);
}

// ---- blocks ----------------------------------------------------------------------------------------------------------------

void UNetBlock::add_layers(const UNetLevel& level, const std::vector<I>& in_channels, std::size_t attention_count) {
  if (level.cross_attention) {
    auto attention_list = register_module("attentions", empty_list());
    for (std::size_t i = 0; i < attention_count; ++i) {
      attentions.push_back(std::make_shared<Transformer2DModel>(level, level.transformer_layers[i]));
      attention_list->append(attentions.back());
    }
  }
  auto resnet_list = register_module("resnets", empty_list());
  for (I channels : in_channels) {
    ResnetForm form = level.resnet;
    form.in_channels = channels;
    form.out_channels = level.channels;
    resnets.push_back(std::make_shared<ResnetBlock2D>(form));
    resnet_list->append(resnets.back());
  }
}

X UNetBlock::run_layer(std::size_t i, X hidden_states, const X& temb, const X& encoder_hidden_states) {
  hidden_states = run_resnet(checkpoint_, *resnets[i], hidden_states, temb);
  if (!attentions.empty()) hidden_states = (*attentions[i])(hidden_states, encoder_hidden_states);
  return hidden_states;
}

UNetDownBlock::UNetDownBlock(const UNetLevel& level, I num_layers, I in_channels, bool add_downsample, I padding)
    : UNetBlock(level.cross_attention ? "CrossAttnDownBlock2D" : "DownBlock2D", level) {
  std::vector<I> channels(std::size_t(num_layers), level.channels);
  channels[0] = in_channels;
  add_layers(level, channels, channels.size());
  if (!add_downsample) return;
  downsampler = std::make_shared<Downsample2D>(level.channels, padding);
  register_module("downsamplers", empty_list())->append(downsampler);
}
std::pair<X, std::vector<X>> UNetDownBlock::operator()(X hidden_states, X temb, X encoder_hidden_states) {
  Entered scope(*this);
  std::vector<X> output_states;
  for (std::size_t i = 0; i < resnets.size(); ++i) {
    hidden_states = run_layer(i, std::move(hidden_states), temb, encoder_hidden_states);
    output_states.push_back(hidden_states);
  }
  if (downsampler) {
    hidden_states = (*downsampler)(hidden_states);
    output_states.push_back(hidden_states);
  }
  return {hidden_states, output_states};
}

UNetMidBlock::UNetMidBlock(const UNetLevel& level) : UNetBlock("UNetMidBlock2DCrossAttn", level) {
  add_layers(level, {level.channels, level.channels}, 1);
}
X UNetMidBlock::operator()(X hidden_states, X temb, X encoder_hidden_states) {
  Entered scope(*this);
  hidden_states = (*resnets[0])(hidden_states, temb);
  hidden_states = (*attentions[0])(hidden_states, encoder_hidden_states);
  hidden_states = run_resnet(checkpoint_, *resnets[1], hidden_states, temb);
  return hidden_states;
}

UNetUpBlock::UNetUpBlock(const UNetLevel& level, I num_layers, I in_channels, I prev_output_channel, bool add_upsample)
    : UNetBlock(level.cross_attention ? "CrossAttnUpBlock2D" : "UpBlock2D", level) {
  std::vector<I> channels;
  for (I i = 0; i < num_layers; ++i)
    channels.push_back(checked_add(i == 0 ? prev_output_channel : level.channels, i == num_layers - 1 ? in_channels : level.channels));
  add_layers(level, channels, channels.size());
  if (!add_upsample) return;
  upsampler = std::make_shared<Upsample2D>(level.channels);
  register_module("upsamplers", empty_list())->append(upsampler);
}
X UNetUpBlock::operator()(X hidden_states, std::vector<X> res_hidden_states_tuple, X temb, X encoder_hidden_states,
                          const Dims& upsample_size) {
  Entered scope(*this);
  X res_hidden_states;
  for (std::size_t i = 0; i < resnets.size(); ++i) {
    res_hidden_states = res_hidden_states_tuple.back();
    res_hidden_states_tuple.pop_back();
    hidden_states = cat({hidden_states, res_hidden_states}, 1);
    hidden_states = run_layer(i, std::move(hidden_states), temb, encoder_hidden_states);
  }
  if (upsampler) hidden_states = (*upsampler)(hidden_states, upsample_size);
  return hidden_states;
}

}  // namespace memest::diffusers
