#include "models/diffusers/resnet.h"

#include "nn/layer.h"

namespace memest::diffusers {

ResnetBlock2D::ResnetBlock2D(const ResnetForm& f) : Module("ResnetBlock2D"), scale_shift_(f.scale_shift) {
  norm1 = &child<GroupNorm>("norm1", f.groups, f.in_channels, f.eps);
  conv1 = &child<Conv2d>("conv1", f.in_channels, f.out_channels, 3, 1, 1);
  if (f.temb_channels)
    time_emb_proj = &child<Linear>("time_emb_proj", *f.temb_channels, f.scale_shift ? checked_mul(2, f.out_channels) : f.out_channels);
  norm2 = &child<GroupNorm>("norm2", f.groups, f.out_channels, f.eps);
  dropout = &child<hf::Dropout>("dropout", f.dropout);
  conv2 = &child<Conv2d>("conv2", f.out_channels, f.out_channels, 3, 1, 1);
  nonlinearity = &child<Activation>("nonlinearity", f.act_fn);
  if (f.in_channels != f.out_channels) conv_shortcut = &child<Conv2d>("conv_shortcut", f.in_channels, f.out_channels, 1, 1);
}

X ResnetBlock2D::forward(const X& given, const X& emb) {
  X time_shift, time_scale, hidden_states = given, temb = emb, input_tensor = given;  // go in the order of Python's names: the last first
  hidden_states = (*norm1)(hidden_states);
  hidden_states = (*nonlinearity)(hidden_states);
  hidden_states = (*conv1)(hidden_states);
  if (time_emb_proj) {
    temb = (*nonlinearity)(temb);
    temb = (*time_emb_proj)(temb).whole_slices(2).unsqueeze(2).unsqueeze(3);
  }
  if (scale_shift_) {
    std::vector<X> chunks = temb.chunk(2, 1);
    time_scale = chunks[0], time_shift = chunks[1];
    hidden_states = (*norm2)(hidden_states);
    hidden_states = hidden_states.mul(time_scale.add(1)).add(time_shift);
  } else {
    if (temb) hidden_states = hidden_states.add(temb);
    hidden_states = (*norm2)(hidden_states);
  }
  hidden_states = (*nonlinearity)(hidden_states);
  hidden_states = (*dropout)(hidden_states);
  hidden_states = (*conv2)(hidden_states);
  if (conv_shortcut) {
    if (training) input_tensor = input_tensor.contiguous();
    input_tensor = (*conv_shortcut)(input_tensor);
  }
  return input_tensor.add(hidden_states).div(1.0);  // output_scale_factor
}

Downsample2D::Downsample2D(I channels, I padding)
    : Module("Downsample2D"), padding_(padding), conv(child<Conv2d>("conv", channels, channels, 3, 2, padding)) {}
X Downsample2D::forward(X hidden_states) {
  if (padding_ == 0) hidden_states = aten("constant_pad_nd", {Tensor(hidden_states), list_of(Dims{0, 1, 0, 1}), 0.0});
  hidden_states = conv(hidden_states);
  return hidden_states;
}

Upsample2D::Upsample2D(I channels) : Module("Upsample2D"), conv(child<Conv2d>("conv", channels, channels, 3, 1, 1)) {}
X Upsample2D::operator()(X hidden_states, const Dims& output_size) {
  Entered scope(*this);
  return leave(forward(hidden_states, output_size), hidden_states);
}
X Upsample2D::forward(X hidden_states, const Dims& output_size) {
  if (hidden_states.size(0) >= 64) hidden_states = hidden_states.contiguous();
  const KeywordArguments size =
      output_size.empty() ? KeywordArguments{{"scale_factor", 2.0}} : KeywordArguments{{"size", list_of(output_size)}};
  hidden_states = Unbox<Tensor>::from(nn::call_function("interpolate", {Tensor(hidden_states)}, size));
  hidden_states = conv(hidden_states);
  return hidden_states;
}

X run_resnet(bool checkpoint, ResnetBlock2D& resnet, const X& hidden_states, const X& temb) {
  const Tensors inputs = temb ? Tensors{hidden_states, temb} : Tensors{hidden_states};
  return called(
      checkpoint, [&resnet](const Tensors& x) { return Tensors{resnet(x[0], x.size() > 1 ? X(x[1]) : X())}; }, inputs)[0];
}

UNetMidBlock2D::UNetMidBlock2D(const ResnetForm& form, I num_layers, bool add_attention, bool checkpoint)
    : Module("UNetMidBlock2D"), checkpoint_(checkpoint) {
  const I channels = form.in_channels;
  auto attention_list = register_module("attentions", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
  auto resnet_list = register_module("resnets", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
  for (I i = 0; i <= num_layers; ++i) {
    resnets.push_back(std::make_shared<ResnetBlock2D>(form));
    resnet_list->append(resnets.back());
    if (i == num_layers || !add_attention) continue;
    attentions.push_back(std::make_shared<Attention>(AttentionForm{.query_dim = channels,
                                                                   .heads = 1,
                                                                   .dim_head = channels,
                                                                   .bias = true,
                                                                   .norm_num_groups = form.groups,
                                                                   .eps = form.eps,
                                                                   .residual_connection = true}));
    attention_list->append(attentions.back());
  }
}

X UNetMidBlock2D::forward(X hidden_states, const X& temb) {
  hidden_states = (*resnets[0])(hidden_states, temb);
  for (std::size_t i = 1; i < resnets.size(); ++i) {
    if (!attentions.empty()) hidden_states = (*attentions[i - 1])(hidden_states);
    hidden_states = run_resnet(checkpoint_, *resnets[i], hidden_states, temb);
  }
  return hidden_states;
}

}  // namespace memest::diffusers
