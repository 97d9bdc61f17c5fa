// models/swin/modeling_swin.py; models/donut/modeling_donut_swin.py, which has its older form; and models/swinv2, made of that.
#include "fake/checkpoint.h"
#include "models/hf/loss.h"
#include "models/hf/masked_image.h"
#include "models/hf/vision_parts.h"

namespace memest::hf {
namespace {

enum class Kind { swin, donut, second };

struct SwinConfig {
  SwinConfig(const Config& f, const Options& o, Kind k)
      : file(f),
        options(o),
        kind(k),
        older(k != Kind::swin),
        prefix(k == Kind::donut    ? "DonutSwin"
               : k == Kind::second ? "Swinv2"
                                   : "Swin"),
        image(f.size("image_size")),
        patch(f.size("patch_size")),
        channels(f.size("num_channels")),
        embed_dim(f.size("embed_dim")),
        window(f.size("window_size")),
        depths(stage_sizes(f, "depths")),
        heads(stage_sizes(f, "num_heads")),
        dropout(f.number_or("hidden_dropout_prob", 0.0)),
        attention_dropout(f.number_or("attention_probs_dropout_prob", 0.0)),
        drop_path(f.number_or("drop_path_rate", 0.1)),
        mlp_ratio(f.number_or("mlp_ratio", 4.0)),
        act(f.text_or("hidden_act", "gelu")),
        qkv_bias(f.boolean_or("qkv_bias", true)) {
    if (heads.size() != depths.size() || depths.empty() || depths.size() > 16)
      throw f.error("num_heads", "expected as many entries as depths, 1 to 16, found " + std::to_string(heads.size()));
    I layers = 0;
    for (I d : depths) layers += d;
    if (layers > 10'000) throw f.error("depths", "expected at most 10000 layers, found " + std::to_string(layers));
    if (patch > image)
      throw f.error("patch_size", "expected at most the image_size " + std::to_string(image) + ", found " + std::to_string(patch));
    for (std::size_t s = 0; s < depths.size(); ++s)
      if (width(I(s)) % heads[s] != 0)
        throw f.error("num_heads",
                      "expected a divisor of the stage's width " + std::to_string(width(I(s))) + ", found " + std::to_string(heads[s]));
  }
  I width(I stage) const { return embed_dim << stage; }
  I features() const { return width(I(depths.size()) - 1); }
  Config file;
  Options options;
  Kind kind;
  bool older;
  std::string prefix;
  I image, patch, channels, embed_dim, window;
  std::vector<I> depths, heads;
  double dropout, attention_dropout, drop_path, mlp_ratio;
  std::string act;
  bool qkv_bias;
};

X pad(const X& x, const Dims& amounts) { return aten("constant_pad_nd", {Tensor(x), list_of(amounts), 0}); }
X roll(const X& x, I shift) { return aten("roll", {Tensor(x), list_of(Dims{shift, shift}), list_of(Dims{1, 2})}); }

X window_partition(X input_feature, I window) {
  const I batch = input_feature.size(0), height = input_feature.size(1), width = input_feature.size(2), channels = input_feature.size(3);
  input_feature = input_feature.view({batch, height / window, window, width / window, window, channels});
  return input_feature.transpose(2, 3).contiguous().view({-1, window, window, channels});
}
X window_reverse(X windows, I window, I height, I width) {
  const I channels = windows.size(-1);
  windows = windows.view({-1, height / window, width / window, window, window, channels});
  windows = windows.transpose(2, 3).contiguous().view({-1, height, width, channels});
  return windows;
}

/// Runs a GradientCheckpointingLayer's forward.
Tensors layer_call(const Options& o, bool training, const X& hidden_states, Region region) {
  if (!o.checkpoint || !training || !runtime().grad_mode) return region({hidden_states});
  return o.reentrant ? checkpoint_reentrant(std::move(region), {hidden_states}) : memest::checkpoint(std::move(region), {hidden_states});
}

class RelativePositionBias final : public Base {
 public:
  RelativePositionBias(const SwinConfig& c, I heads) : Base(c.prefix + "RelativePositionBias"), area_(c.window * c.window) {
    new_parameter("relative_position_bias_table", {(2 * c.window - 1) * (2 * c.window - 1), heads});
    new_buffer("relative_position_index", {area_ * area_}, DType::int64);
  }
  X operator()() {
    Entered scope(*this);
    X relative_position_bias = aten("index", {Tensor(parameter(0)), make_list({Tensor(buffer(0))})});
    relative_position_bias = relative_position_bias.view({area_, area_, -1});
    return relative_position_bias.permute({2, 0, 1}).contiguous().unsqueeze(0);
  }

 private:
  I area_;
};

class SwinAttention final : public Base {
 public:
  SwinAttention(const SwinConfig& c, I width, I heads)
      : Base("SwinAttention"),
        options_(c.options),
        head_dim_(width / heads),
        dropout_(c.attention_dropout),
        q_proj(child<Linear>("q_proj", width, width, c.qkv_bias)),
        k_proj(child<Linear>("k_proj", width, width, c.qkv_bias)),
        v_proj(child<Linear>("v_proj", width, width, c.qkv_bias)),
        o_proj(child<Linear>("o_proj", width, width)),
        bias(child<RelativePositionBias>("relative_position_bias", c, heads)) {}
  Pair operator()(const X& hidden_states, X attention_mask) {
    Entered scope(*this);
    const Dims input_shape = hidden_states.sizes().slice(0, hidden_states.dim() - 1);
    const Dims hidden_shape = input_shape + Dims{-1, head_dim_};
    X query_states = q_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_states = k_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_states = v_proj(hidden_states).view(hidden_shape).transpose(1, 2);
    X relative_position_bias = bias();
    X combined_mask = relative_position_bias;
    if (attention_mask) {
      const I batch_size = input_shape[0] / attention_mask.size(0), seq_len = input_shape[1];
      attention_mask = attention_mask.unsqueeze(1).unsqueeze(0).expand({batch_size, -1, -1, -1, -1}).reshape({-1, 1, seq_len, seq_len});
      combined_mask = relative_position_bias.add(attention_mask);
    }
    auto [attn_output, attn_weights] =
        attention_interface(options_, query_states, key_states, value_states,
                            {.mask = combined_mask, .dropout = training ? dropout_ : 0.0, .training = training, .causal = false});
    attn_output = attn_output.reshape(input_shape + Dims{-1}).contiguous();
    attn_output = o_proj(attn_output);
    return leave(Pair(attn_output, attn_weights), attention_mask, query_states, key_states, value_states, relative_position_bias,
                 combined_mask);
  }

 private:
  const Options options_;
  I head_dim_;
  double dropout_;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  RelativePositionBias& bias;
};

class OlderSelfAttention final : public Base {
 public:
  OlderSelfAttention(const SwinConfig& c, I width, I heads)
      : Base("DonutSwinSelfAttention"), area_(c.window * c.window), heads_(heads), head_dim_(width / heads) {
    new_parameter("relative_position_bias_table", {(2 * c.window - 1) * (2 * c.window - 1), heads});
    new_buffer("relative_position_index", {area_, area_}, DType::int64);
    query = &child<Linear>("query", width, width, c.qkv_bias);
    key = &child<Linear>("key", width, width, c.qkv_bias);
    value = &child<Linear>("value", width, width, c.qkv_bias);
    dropout = &child<Dropout>("dropout", c.attention_dropout);
  }
  X operator()(const X& hidden_states, const X& attention_mask) {
    Entered scope(*this);
    const I batch_size = hidden_states.size(0), dim = hidden_states.size(1);
    const Dims hidden_shape{batch_size, dim, -1, head_dim_};
    X query_layer = (*query)(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = (*key)(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = (*value)(hidden_states).view(hidden_shape).transpose(1, 2);
    X attention_scores = query_layer.matmul(key_layer.transpose(-1, -2));
    attention_scores = attention_scores.div(1.0);
    X relative_position_bias = aten("index", {Tensor(parameter(0)), make_list({Tensor(X(buffer(0)).view({-1}))})});
    relative_position_bias = relative_position_bias.view({area_, area_, -1});
    relative_position_bias = relative_position_bias.permute({2, 0, 1}).contiguous();
    attention_scores = attention_scores.add(relative_position_bias.unsqueeze(0));
    if (attention_mask) {
      const I windows = attention_mask.size(0);
      attention_scores = attention_scores.view({batch_size / windows, windows, heads_, dim, dim});
      attention_scores = attention_scores.add(attention_mask.unsqueeze(1).unsqueeze(0));
      attention_scores = attention_scores.view({-1, heads_, dim, dim});
    }
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = (*dropout)(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(context_layer, query_layer, key_layer, value_layer, attention_scores, relative_position_bias, attention_probs);
  }

 private:
  I area_, heads_, head_dim_;
  Linear *query, *key, *value;
  Dropout* dropout;
};

/// Swinv2SelfAttention: cosines, scaled, and a bias that a small network makes of the coordinates.
class CosineSelfAttention final : public Base {
 public:
  CosineSelfAttention(const SwinConfig& c, I width, I heads, I window)
      : Base("Swinv2SelfAttention"), area_(window * window), heads_(heads), head_dim_(width / heads) {
    new_parameter("logit_scale", {heads, 1, 1});
    new_buffer("relative_coords_table", {1, 2 * window - 1, 2 * window - 1, 2}, runtime().default_dtype);
    new_buffer("relative_position_index", {area_, area_}, DType::int64);
    auto list =
        register_module("continuous_position_bias_mlp", std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}, "Sequential"));
    auto first = std::make_shared<Linear>(2, 512), last = std::make_shared<Linear>(512, heads, false);
    list->append(first), list->append(last);
    first_ = first.get(), last_ = last.get();
    query = &child<Linear>("query", width, width, c.qkv_bias);
    key = &child<Linear>("key", width, width, false);
    value = &child<Linear>("value", width, width, c.qkv_bias);
    dropout = &child<Dropout>("dropout", c.attention_dropout);
  }
  X operator()(const X& hidden_states, const X& attention_mask) {
    Entered scope(*this);
    const I batch_size = hidden_states.size(0), dim = hidden_states.size(1);
    const Dims hidden_shape{batch_size, -1, heads_, head_dim_};
    X query_layer = (*query)(hidden_states).view(hidden_shape).transpose(1, 2);
    X key_layer = (*key)(hidden_states).view(hidden_shape).transpose(1, 2);
    X value_layer = (*value)(hidden_states).view(hidden_shape).transpose(1, 2);
    X attention_scores;
    {
      X q = normalize(query_layer);
      X k = normalize(key_layer);
      attention_scores = std::move(q).matmul(std::move(k).transpose(-2, -1));
    }
    X logit_scale = X(aten("clamp", {Tensor(parameter(0)), Value(), 4.6})).exp();
    attention_scores = attention_scores.mul(logit_scale);
    X table = (*first_)(X(buffer(0)));
    table = aten("relu_", {Tensor(table)});
    table = (*last_)(table).view({-1, heads_});
    X relative_position_bias = X(aten("index", {Tensor(table), make_list({Tensor(X(buffer(1)).view({-1}))})})).view({area_, area_, -1});
    relative_position_bias = relative_position_bias.permute({2, 0, 1}).contiguous();
    relative_position_bias = relative_position_bias.sigmoid().mul(16);
    attention_scores = attention_scores.add(relative_position_bias.unsqueeze(0));
    if (attention_mask) {
      const I windows = attention_mask.size(0);
      attention_scores =
          attention_scores.view({batch_size / windows, windows, heads_, dim, dim}).add(attention_mask.unsqueeze(1).unsqueeze(0));
      attention_scores = attention_scores.add(attention_mask.unsqueeze(1).unsqueeze(0));
      attention_scores = attention_scores.view({-1, heads_, dim, dim});
    }
    X attention_probs = attention_scores.softmax(-1);
    attention_probs = (*dropout)(attention_probs);
    X context_layer = attention_probs.matmul(value_layer);
    context_layer = context_layer.permute({0, 2, 1, 3}).contiguous();
    context_layer = context_layer.view({context_layer.size(0), context_layer.size(1), -1});
    return leave(context_layer, query_layer, key_layer, value_layer, attention_scores, logit_scale, table, relative_position_bias,
                 attention_probs);
  }

 private:
  /// torch.nn.functional.normalize over the last dimension.
  static X normalize(const X& input) {
    X denom = aten("linalg_vector_norm", {Tensor(input), 2.0, list_of(Dims{-1}), true});
    denom = X(aten("clamp_min", {Tensor(std::move(denom)), 1e-12})).expand(input.sizes());
    return input.div(denom);
  }

  I area_, heads_, head_dim_;
  Linear *first_, *last_, *query, *key, *value;
  Dropout* dropout;
};

class OlderAttention final : public Base {
 public:
  OlderAttention(const SwinConfig& c, I width, I heads, I window) : Base(c.prefix + "Attention") {
    if (c.kind == Kind::second)
      cosine = &child<CosineSelfAttention>("self", c, width, heads, window);
    else
      self = &child<OlderSelfAttention>("self", c, width, heads);
    output = &child<DenseDropout>("output", c.prefix + "SelfOutput", width, width, c.attention_dropout);
  }
  X operator()(const X& hidden_states, const X& attention_mask) {
    Entered scope(*this);
    X self_outputs = self ? (*self)(hidden_states, attention_mask) : (*cosine)(hidden_states, attention_mask);
    X attention_output = (*output)(self_outputs);
    return leave(attention_output, self_outputs);
  }

 private:
  OlderSelfAttention* self = nullptr;
  CosineSelfAttention* cosine = nullptr;
  DenseDropout* output;
};

class OlderIntermediate final : public Unary {
 public:
  OlderIntermediate(const SwinConfig& c, I width)
      : Unary(c.prefix + "Intermediate"),
        dense(child<Linear>("dense", width, I(c.mlp_ratio * double(width)))),
        intermediate_act_fn(child<Activation>("intermediate_act_fn", c.act)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = dense(hidden_states);
    hidden_states = intermediate_act_fn(hidden_states);
    return hidden_states;
  }

 private:
  Linear& dense;
  Activation& intermediate_act_fn;
};

class SwinLayer final : public Base {
 public:
  /// `resolution`: of the stage's input, in patches; the second version's window is no larger.
  SwinLayer(const SwinConfig& c, I width, I heads, double rate, I shift, I resolution)
      : Base(c.prefix + "Layer"),
        options_(c.options),
        older_(c.older),
        second_(c.kind == Kind::second),
        configured_window_(second_ ? std::min(c.window, std::max<I>(resolution, 1)) : c.window),
        configured_shift_(second_ && resolution <= configured_window_ ? 0 : shift) {
    const auto drop_path = [&] {
      if (rate > 0)
        drop_path_ =
            register_module("drop_path", std::make_shared<DropPath>(c.kind == Kind::donut ? "DonutDropPath" : c.prefix + "DropPath", rate));
    };
    if (older_) {
      if (!second_) layernorm_before = &child<LayerNorm>("layernorm_before", width);
      older_attention = &child<OlderAttention>("attention", c, width, heads, configured_window_);
      if (second_) layernorm_before = &child<LayerNorm>("layernorm_before", width);
      drop_path();
      if (!second_) layernorm_after = &child<LayerNorm>("layernorm_after", width);
      intermediate_ = register_module("intermediate", std::make_shared<OlderIntermediate>(c, width));
      mlp_ =
          register_module("output", std::make_shared<DenseDropout>(c.prefix + "Output", I(c.mlp_ratio * double(width)), width, c.dropout));
      if (second_) layernorm_after = &child<LayerNorm>("layernorm_after", width);
    } else {
      attention = &child<SwinAttention>("attention", c, width, heads);
      layernorm_before = &child<LayerNorm>("layernorm_before", width);
      layernorm_after = &child<LayerNorm>("layernorm_after", width);
      mlp_ = register_module("mlp", make_plain_mlp("SwinMLP", "fc1", "fc2", width, I(c.mlp_ratio * double(width)), true, c.act));
      dropout = &child<Dropout>("dropout", c.dropout);
      drop_path();
    }
  }
  /// The hidden states and the attention's weights.
  Pair operator()(X hidden_states, I height, I width) {
    Entered scope(*this);
    if (older_) return {older_forward(hidden_states, height, width), {}};
    Tensors outputs = layer_call(options_, training, hidden_states, [this, height, width](const Tensors& inputs) {
      Pair result = forward(X(inputs[0]), height, width);
      return Tensors{result.first, result.second};
    });
    return {outputs[0], outputs[1]};
  }

 private:
  void set_shift_and_window_size(I height, I width) {
    shift_ = configured_shift_, window_ = configured_window_;
    if (!second_ && std::min(height, width) <= window_) shift_ = 0, window_ = std::min(height, width);
  }
  X maybe_pad(const X& hidden_states, I height, I width) {
    pad_right_ = (window_ - width % window_) % window_;
    pad_bottom_ = (window_ - height % window_) % window_;
    return pad(hidden_states, {0, 0, 0, pad_right_, 0, pad_bottom_});
  }
  X get_attn_mask(I height, I width, DType dtype) const {
    if (shift_ <= 0) return {};
    X h_idx = arange(height);
    X w_idx = arange(width);
    auto region = [&](const X& idx, I size) {
      X first = X(aten("ge", {Tensor(idx), size - window_})).to(DType::int64);
      X second = X(aten("ge", {Tensor(idx), size - shift_})).to(DType::int64);
      X sum = first.add(second);
      return leave(sum, first, second);
    };
    X h_region = region(h_idx, height);
    X w_region = region(w_idx, width);
    X img_mask;
    {
      X rows = h_region.unsqueeze(0).whole_slices(2).unsqueeze(2).unsqueeze(3).mul(3);
      img_mask = rows.add(w_region.unsqueeze(0).unsqueeze(0).whole_slices(3).unsqueeze(3)).to(dtype);
    }
    X mask_windows = window_partition(img_mask, window_);
    mask_windows = mask_windows.view({-1, window_ * window_});
    X attn_mask = mask_windows.unsqueeze(1).sub(mask_windows.unsqueeze(2));
    X filled;
    {
      X other = aten("ne", {Tensor(attn_mask), 0});
      filled = aten("masked_fill", {Tensor(attn_mask), Tensor(std::move(other)), -100.0});
    }
    {
      X same = aten("eq", {Tensor(attn_mask), 0});
      X both = aten("masked_fill", {Tensor(std::move(filled)), Tensor(std::move(same)), 0.0});
      attn_mask = std::move(both);
    }
    return leave(attn_mask, h_idx, w_idx, h_region, w_region, img_mask, mask_windows);
  }
  X cyclic_shift(X hidden_states, bool reverse = false) const {
    return shift_ > 0 ? roll(hidden_states, reverse ? shift_ : -shift_) : hidden_states;
  }

  Pair forward(X hidden_states, I height, I width) {
    set_shift_and_window_size(height, width);
    const I batch_size = hidden_states.size(0), channels = hidden_states.size(2);
    X shortcut = hidden_states;
    hidden_states = (*layernorm_before)(hidden_states);
    hidden_states = hidden_states.view({batch_size, height, width, channels});
    hidden_states = maybe_pad(hidden_states, height, width);
    const I height_pad = hidden_states.size(1), width_pad = hidden_states.size(2);
    X hidden_states_windows = window_partition(cyclic_shift(hidden_states), window_);
    hidden_states_windows = hidden_states_windows.view({-1, window_ * window_, channels});
    X attn_mask = get_attn_mask(height_pad, width_pad, hidden_states.dtype());
    auto [attention_output, attn_weights] = (*attention)(hidden_states_windows, attn_mask);
    attention_output = (*dropout)(attention_output);
    X attention_windows = attention_output.view({-1, window_, window_, channels});
    attention_windows = cyclic_shift(window_reverse(attention_windows, window_, height_pad, width_pad), true);
    if (pad_right_ > 0 || pad_bottom_ > 0)
      attention_windows = attention_windows.whole_slices(1).slice(1, 0, height).slice(2, 0, width).contiguous();
    attention_windows = attention_windows.view({batch_size, height * width, channels});
    hidden_states = shortcut.add(drop_path(attention_windows));
    X residual = hidden_states;
    hidden_states = (*layernorm_after)(hidden_states);
    hidden_states = (*mlp_)(hidden_states);
    hidden_states = (*dropout)(hidden_states).add(residual);
    return leave(Pair(hidden_states, attn_weights), shortcut, hidden_states_windows, attn_mask, attention_output, attention_windows,
                 residual);
  }
  X older_forward(X hidden_states, I height, I width) {
    set_shift_and_window_size(height, width);
    const I batch_size = hidden_states.size(0), channels = hidden_states.size(2);
    X shortcut = hidden_states;
    if (!second_) hidden_states = (*layernorm_before)(hidden_states);
    hidden_states = hidden_states.view({batch_size, height, width, channels});
    hidden_states = maybe_pad(hidden_states, height, width);
    const I height_pad = hidden_states.size(1), width_pad = hidden_states.size(2);
    X shifted_hidden_states = cyclic_shift(hidden_states);
    X hidden_states_windows = window_partition(shifted_hidden_states, window_);
    hidden_states_windows = hidden_states_windows.view({-1, window_ * window_, channels});
    X attn_mask = get_attn_mask(height_pad, width_pad, hidden_states.dtype());
    X attention_output = (*older_attention)(hidden_states_windows, attn_mask);
    X attention_windows = attention_output.view({-1, window_, window_, channels});
    X shifted_windows = window_reverse(attention_windows, window_, height_pad, width_pad);
    attention_windows = cyclic_shift(shifted_windows, true);
    if (pad_right_ > 0 || pad_bottom_ > 0)
      attention_windows = attention_windows.whole_slices(1).slice(1, 0, height).slice(2, 0, width).contiguous();
    attention_windows = attention_windows.view({batch_size, height * width, channels});
    if (second_) {
      hidden_states = (*layernorm_before)(attention_windows);
      hidden_states = shortcut.add(drop_path(hidden_states));
    } else {
      hidden_states = shortcut.add(drop_path(attention_windows));
    }
    X layer_output = hidden_states;
    if (!second_) layer_output = (*layernorm_after)(layer_output);
    layer_output = (*intermediate_)(layer_output);
    if (second_) {
      layer_output = (*mlp_)(layer_output);
      layer_output = hidden_states.add(drop_path((*layernorm_after)(layer_output)));
    } else {
      layer_output = hidden_states.add((*mlp_)(layer_output));
    }
    return leave(layer_output, hidden_states, shortcut, shifted_hidden_states, hidden_states_windows, attn_mask, attention_output,
                 attention_windows, shifted_windows);
  }
  X drop_path(X x) { return drop_path_ ? (*drop_path_)(std::move(x)) : x; }

  const Options options_;
  bool older_, second_;
  I configured_window_, configured_shift_, window_ = 0, shift_ = 0, pad_right_ = 0, pad_bottom_ = 0;
  SwinAttention* attention = nullptr;
  OlderAttention* older_attention = nullptr;
  LayerNorm *layernorm_before, *layernorm_after;
  UnaryPtr intermediate_, mlp_, drop_path_;
  Dropout* dropout = nullptr;
};

class PatchMerging final : public Base {
 public:
  PatchMerging(const SwinConfig& c, I width)
      : Base(c.prefix + "PatchMerging"),
        second_(c.kind == Kind::second),
        reduction(child<Linear>("reduction", 4 * width, 2 * width, false)),
        norm(child<LayerNorm>("norm", (second_ ? 2 : 4) * width)) {}
  X operator()(X input_feature, I height, I width) {
    Entered scope(*this);
    const I batch_size = input_feature.size(0), channels = input_feature.size(2);
    input_feature = input_feature.view({batch_size, height, width, channels});
    if (height % 2 == 1 || width % 2 == 1) input_feature = pad(input_feature, {0, 0, 0, width % 2, 0, height % 2});
    std::vector<X> corners;
    for (I col = 0; col < 2; ++col)
      for (I row = 0; row < 2; ++row)
        corners.push_back(input_feature.whole_slices(1).slice(1, row, std::nullopt, 2).slice(2, col, std::nullopt, 2));
    input_feature = cat(std::move(corners), -1);
    input_feature = input_feature.view({batch_size, -1, 4 * channels});
    if (!second_) input_feature = norm(input_feature);
    input_feature = reduction(input_feature);
    if (second_) input_feature = norm(input_feature);
    return input_feature;
  }

 private:
  bool second_;
  Linear& reduction;
  LayerNorm& norm;
};

class SwinStage final : public Base {
 public:
  SwinStage(const SwinConfig& c, I stage, I first)
      : Base(c.prefix + "Stage"), options_(c.options), older_(c.older), blocks_(*this, "blocks", c.depths[std::size_t(stage)], [&](I i) {
          I total = 0;
          for (I d : c.depths) total += d;
          const double rate = c.drop_path * double(first + i) / double(std::max<I>(total - 1, 1));
          return std::make_shared<SwinLayer>(c, c.width(stage), c.heads[std::size_t(stage)], rate, i % 2 == 0 ? 0 : c.window / 2,
                                             (c.image / c.patch) >> stage);
        }) {
    if (stage + 1 < I(c.depths.size())) downsample = &child<PatchMerging>("downsample", c, c.width(stage));
  }
  /// The hidden states, what else the stage returns, and the last attention's weights.
  Tensors operator()(X hidden_states, I height, I width) {
    Entered scope(*this);
    return layer_call(options_, training, hidden_states,
                      [this, height, width](const Tensors& inputs) { return forward(X(inputs[0]), height, width); });
  }
  bool downsamples() const { return downsample != nullptr; }

 private:
  Tensors forward(X hidden_states, I height, I width) {
    X last_attn_weights;
    for (auto& layer : blocks_) std::tie(hidden_states, last_attn_weights) = (*layer)(hidden_states, height, width);
    X before = hidden_states;
    if (downsample) hidden_states = (*downsample)(before, height, width);
    if (older_) return {hidden_states, before, {}};
    const I h = downsample ? (height + 1) / 2 : height, w = downsample ? (width + 1) / 2 : width;
    X reshaped = hidden_states.view({hidden_states.size(0), h, w, hidden_states.size(2)}).permute({0, 3, 1, 2}).contiguous();
    return {hidden_states, reshaped, last_attn_weights};
  }

  const Options options_;
  bool older_;
  Layers<SwinLayer> blocks_;
  PatchMerging* downsample = nullptr;
};

class SwinEncoder final : public Base {
 public:
  explicit SwinEncoder(const SwinConfig& c)
      : Base(c.prefix + "Encoder"), layers_(*this, "layers", I(c.depths.size()), [&](I stage) {
          I first = 0;
          for (I s = 0; s < stage; ++s) first += c.depths[std::size_t(s)];
          return std::make_shared<SwinStage>(c, stage, first);
        }) {}
  X operator()(X hidden_states, I height, I width) {
    Entered scope(*this);
    Tensors outputs;
    for (auto& layer : layers_) {
      outputs = (*layer)(hidden_states, height, width);
      hidden_states = outputs[0];
      if (layer->downsamples()) height = (height + 1) / 2, width = (width + 1) / 2;
    }
    return hidden_states;
  }

 private:
  Layers<SwinStage> layers_;
};

class SwinPatchEmbeddings final : public Base {
 public:
  explicit SwinPatchEmbeddings(const SwinConfig& c)
      : Base(c.prefix + "PatchEmbeddings"),
        patch_(c.patch),
        projection(child<Conv2d>("projection", c.channels, c.embed_dim, c.patch, c.patch)) {}
  /// The embeddings; height and width become those in patches.
  X operator()(X pixel_values, I& height, I& width) {
    Entered scope(*this);
    height = pixel_values.size(2), width = pixel_values.size(3);
    if (width % patch_) pixel_values = pad(pixel_values, {0, patch_ - width % patch_});
    if (height % patch_) pixel_values = pad(pixel_values, {0, 0, 0, patch_ - height % patch_});
    X embeddings = projection(pixel_values);
    height = embeddings.size(2), width = embeddings.size(3);
    return embeddings.flatten(2).transpose(1, 2);
  }

 private:
  I patch_;
  Conv2d& projection;
};

class SwinEmbeddings final : public Base {
 public:
  explicit SwinEmbeddings(const SwinConfig& c)
      : Base(c.prefix + "Embeddings"), positions_(c.file.boolean_or("use_absolute_embeddings", false)) {
    patch_embeddings = &child<SwinPatchEmbeddings>("patch_embeddings", c);
    const I patches = (c.image / c.patch) * (c.image / c.patch);
    new_parameter("mask_token", {1, 1, c.embed_dim}, c.options.task == Task::masked_image);
    new_parameter("position_embeddings", {1, patches + (c.older ? 1 : 0), c.embed_dim}, positions_);
    norm = &child<LayerNorm>("norm", c.embed_dim);
    dropout = &child<Dropout>("dropout", c.dropout);
  }
  X operator()(const X& pixel_values, const X& bool_masked_pos, I& height, I& width) {
    Entered scope(*this);
    X embeddings = (*patch_embeddings)(pixel_values, height, width);
    embeddings = (*norm)(embeddings);
    if (bool_masked_pos) embeddings = mask_patches(embeddings, X(parameter(0)), bool_masked_pos);
    if (positions_) embeddings = embeddings.add(X(parameter(1)));
    embeddings = (*dropout)(embeddings);
    return embeddings;
  }

 private:
  bool positions_;
  SwinPatchEmbeddings* patch_embeddings;
  LayerNorm* norm;
  Dropout* dropout;
};

class SwinModel final : public Base {
 public:
  explicit SwinModel(const SwinConfig& c)
      : Base(c.prefix + "Model"),
        pools_(c.options.task != Task::masked_image),
        embeddings(child<SwinEmbeddings>("embeddings", c)),
        encoder(child<SwinEncoder>("encoder", c)) {
    if (c.kind != Kind::donut) layernorm = &child<LayerNorm>("layernorm", c.features());
  }
  Pair operator()(const X& pixel_values, const X& bool_masked_pos = {}) {
    Entered scope(*this);
    I height = 0, width = 0;
    X embedding_output = embeddings(pixel_values, bool_masked_pos, height, width);
    X encoder_output = encoder(embedding_output, height, width);
    X sequence_output = encoder_output;
    if (layernorm) sequence_output = (*layernorm)(sequence_output);
    X pooled_output;
    if (pools_) {
      pooled_output = aten("adaptive_avg_pool1d", {Tensor(sequence_output.transpose(1, 2)), list_of(Dims{1})});
      pooled_output = pooled_output.flatten(1);
    }
    return leave(Pair(sequence_output, pooled_output), embedding_output, encoder_output);
  }

 private:
  bool pools_;
  SwinEmbeddings& embeddings;
  SwinEncoder& encoder;
  LayerNorm* layernorm = nullptr;
};

const char* base_name(Kind kind) { return kind == Kind::donut ? "donut" : kind == Kind::second ? "swinv2" : "swin"; }

class SwinForMaskedImageModeling final : public ImageNetwork {
 public:
  explicit SwinForMaskedImageModeling(const SwinConfig& c)
      : ImageNetwork(c.prefix + "ForMaskedImageModeling", c.options, c.channels, c.image),
        patches_((c.image / c.patch) * (c.image / c.patch)),
        model(child<SwinModel>(base_name(c.kind), c)),
        decoder(child<PixelDecoder>("decoder", c.file, c.features(), c.channels, c.image, c.patch)) {}
  std::vector<nn::InputSpec> inputs() const override {
    auto list = ImageNetwork::inputs();
    if (options_.labels) list.back() = masked_positions(patches_);
    return list;
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    const X last_hidden_state = model(batch.input, batch.labels).first;
    return decoder.reconstruct(batch.input, last_hidden_state.transpose(1, 2), batch.labels);
  }

 private:
  I patches_;
  SwinModel& model;
  PixelDecoder& decoder;
};

class SwinNetwork final : public ImageNetwork {
 public:
  explicit SwinNetwork(const SwinConfig& c)
      : ImageNetwork(c.prefix + (c.options.task == Task::base ? "Model" : "ForImageClassification"), c.options, c.channels, c.image),
        file_(c.file),
        model(child<SwinModel>(base_name(c.kind), c)) {
    if (c.options.task != Task::base) classifier = &child<Linear>("classifier", c.features(), num_labels(c.file));
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [sequence_output, pooled_output] = model(batch.input);
    if (!classifier) return {model_output({sequence_output, pooled_output}), {}};
    X logits = (*classifier)(pooled_output);
    X loss;
    if (batch.labels) loss = sequence_classification_loss(batch.labels, logits, num_labels(file_));
    return {model_output({loss, logits}), loss};
  }

 private:
  Config file_;
  SwinModel& model;
  Linear* classifier = nullptr;
};

NetworkPtr make_swin(const SwinConfig& c) {
  if (c.options.task == Task::masked_image) return std::make_shared<SwinForMaskedImageModeling>(c);
  return std::make_shared<SwinNetwork>(c);
}
NetworkPtr swin(const Config& config, const Options& o) { return make_swin(SwinConfig(config, o, Kind::swin)); }
NetworkPtr donut_swin(const Config& config, const Options& o) { return make_swin(SwinConfig(config, o, Kind::donut)); }
NetworkPtr swinv2(const Config& config, const Options& o) { return make_swin(SwinConfig(config, o, Kind::second)); }
std::vector<TaskClass> swin_classes(const std::string& prefix, NetworkPtr (*make)(const Config& config, const Options& options)) {
  auto classes = image_classes(prefix, make);
  classes.push_back({Task::masked_image, prefix + "ForMaskedImageModeling", make});
  return classes;
}
const Family swin_family{{"swin"}, swin_classes("Swin", swin)};
const Family donut_swin_family{{"donut-swin"}, image_classes("DonutSwin", donut_swin)};
const Family swinv2_family{{"swinv2"}, swin_classes("Swinv2", swinv2)};

}  // namespace
}  // namespace memest::hf
