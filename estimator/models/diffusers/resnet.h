// Residual blocks and resizing of diffusers 0.42.1: models/resnet.py, downsampling.py, upsampling.py.
#pragma once
#include "models/diffusers/parts.h"

namespace memest::diffusers {

struct ResnetForm {
  I in_channels, out_channels;
  std::optional<I> temb_channels;
  I groups;
  double eps;
  std::string act_fn;
  double dropout = 0;
  bool scale_shift = false;  ///< time_embedding_norm
};
class ResnetBlock2D final : public Module<ResnetBlock2D> {
 public:
  explicit ResnetBlock2D(const ResnetForm& form);
  X forward(const X& given, const X& emb);
  X operator()(X input_tensor, X temb = {}) { return Module::operator()(std::move(input_tensor), std::move(temb)); }

 private:
  bool scale_shift_;
  GroupNorm *norm1, *norm2;
  Conv2d *conv1, *conv2, *conv_shortcut = nullptr;
  Linear* time_emb_proj = nullptr;
  hf::Dropout* dropout;
  Activation* nonlinearity;
};

/// With use_conv.
class Downsample2D final : public Module<Downsample2D> {
 public:
  Downsample2D(I channels, I padding);
  X forward(X hidden_states);

 private:
  I padding_;
  Conv2d& conv;
};
class Upsample2D final : public Module<Upsample2D> {
 public:
  explicit Upsample2D(I channels);
  /// output_size: empty, twice the size.
  X forward(X hidden_states, const Dims& output_size);
  X operator()(X hidden_states, const Dims& output_size = {});

 private:
  Conv2d& conv;
};

/// UNetMidBlock2D with one attention of one head, or none: no layer at all where the UNet has no attention.
class UNetMidBlock2D final : public Module<UNetMidBlock2D> {
 public:
  UNetMidBlock2D(const ResnetForm& form, I num_layers, bool add_attention, bool checkpoint);
  X forward(X hidden_states, const X& temb);
  X operator()(X hidden_states, X temb = {}) { return Module::operator()(std::move(hidden_states), std::move(temb)); }

 private:
  bool checkpoint_;
  std::vector<std::shared_ptr<Attention>> attentions;
  std::vector<std::shared_ptr<ResnetBlock2D>> resnets;
};
/// resnet(hidden_states, temb), by way of a checkpoint where that is enabled.
X run_resnet(bool checkpoint, ResnetBlock2D& resnet, const X& hidden_states, const X& temb);

}  // namespace memest::diffusers
