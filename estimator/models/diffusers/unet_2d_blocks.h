// Blocks of conditional UNets of diffusers 0.42.1: models/unets/unet_2d_blocks.py, transformers/transformer_2d.py, attention.py.
#pragma once
#include "models/diffusers/resnet.h"

namespace memest::diffusers {

/// What the blocks of one level share.
struct UNetLevel {
  bool cross_attention;               ///< CrossAttnDownBlock2D and the like, else DownBlock2D
  ResnetForm resnet;                  ///< of channels as each resnet has them
  I channels;                         ///< out_channels
  std::vector<I> transformer_layers;  ///< of each attention
  I heads, cross_attention_dim;
  bool use_linear_projection, only_cross_attention, checkpoint;
};

/// Transformer2DModel on continuous input, of BasicTransformerBlocks with layer norms.
class Transformer2DModel final : public Module<Transformer2DModel> {
 public:
  Transformer2DModel(const UNetLevel& level, I num_layers);
  ~Transformer2DModel() override;
  X forward(X hidden_states, const X& encoder_hidden_states);

 private:
  class Block;
  X on_continuous_inputs(X hidden_states);
  X output_for_continuous_inputs(X hidden_states, const X& residual, I height, I width);
  bool checkpoint_;
  I inner_dim_;
  GroupNorm* norm;
  Linear *linear_in = nullptr, *linear_out = nullptr;  ///< proj_in and proj_out with use_linear_projection
  Conv2d *conv_in = nullptr, *conv_out = nullptr;      ///< without
  std::vector<std::shared_ptr<Block>> transformer_blocks;
};

/// The parts of a block: attentions, resnets and what comes behind them.
class UNetBlock : public Base {
 public:
  UNetBlock(std::string type, const UNetLevel& level) : Base(std::move(type)), checkpoint_(level.checkpoint) {}

 protected:
  /// in_channels of each resnet; as many attentions where the level has them, one fewer in the middle.
  void add_layers(const UNetLevel& level, const std::vector<I>& in_channels, std::size_t attention_count);
  /// resnet and attention i
  X run_layer(std::size_t i, X hidden_states, const X& temb, const X& encoder_hidden_states);

  bool checkpoint_;
  std::vector<std::shared_ptr<Transformer2DModel>> attentions;
  std::vector<std::shared_ptr<ResnetBlock2D>> resnets;
};

class UNetDownBlock final : public UNetBlock {
 public:
  UNetDownBlock(const UNetLevel& level, I num_layers, I in_channels, bool add_downsample, I padding);
  /// hidden_states, output_states
  std::pair<X, std::vector<X>> operator()(X hidden_states, X temb, X encoder_hidden_states);

 private:
  std::shared_ptr<Downsample2D> downsampler;
};

class UNetMidBlock final : public UNetBlock {
 public:
  explicit UNetMidBlock(const UNetLevel& level);
  X operator()(X hidden_states, X temb, X encoder_hidden_states);
};

class UNetUpBlock final : public UNetBlock {
 public:
  UNetUpBlock(const UNetLevel& level, I num_layers, I in_channels, I prev_output_channel, bool add_upsample);
  X operator()(X hidden_states, std::vector<X> res_hidden_states_tuple, X temb, X encoder_hidden_states, const Dims& upsample_size);
  std::size_t layers() const { return resnets.size(); }

 private:
  std::shared_ptr<Upsample2D> upsampler;
};

}  // namespace memest::diffusers
