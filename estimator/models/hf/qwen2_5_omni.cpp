// models/qwen2_5_omni/modeling_qwen2_5_omni.py (transformers 5.24): the parameters of the thinker, the talker and the vocoder.
#include "models/hf/weights_only.h"

#include "models/hf/rotary.h"

namespace memest::hf {
namespace {

void add_rotary(Weights& owner, const std::string& name, std::string type, I width) {
  Weights& rotary = owner.part(name, std::move(type));
  rotary.new_buffer("inv_freq", {ceil_div(width, 2)}, DType::float32);
  rotary.new_buffer("original_inv_freq", {ceil_div(width, 2)}, DType::float32);
}
I count(const Config& c, const char* key) {
  constexpr I kMost = 10'000;
  const I n = c.size(key);
  if (n > kMost) throw c.error(key, "expected at most " + std::to_string(kMost) + ", found " + std::to_string(n));
  return n;
}

void add_audio_tower(Weights& tower, const Config& c) {
  const I width = c.size("d_model"), intermediate = c.size("encoder_ffn_dim"), out = c.size("output_dim");
  tower.conv1d("conv1", c.size("num_mel_bins"), width, 3);
  tower.conv1d("conv2", width, width, 3);
  tower.part("positional_embedding", "SinusoidsPositionEmbedding")
      .new_buffer("positional_embedding", {c.size("max_source_positions"), width}, DType::float32);
  tower.embedding("audio_bos_eos_token", 2, out);
  Weights& layers = tower.part("layers", "ModuleList");
  for (I i = 0; i < count(c, "encoder_layers"); ++i) {
    Weights& layer = layers.part(std::to_string(i), "Qwen2_5OmniAudioEncoderLayer");
    Weights& attention = layer.part("self_attn", "Qwen2_5OmniAudioAttention");
    attention.linear("k_proj", width, width, false);
    for (const char* name : {"v_proj", "q_proj", "out_proj"}) attention.linear(name, width, width);
    layer.norm("self_attn_layer_norm", width);
    layer.linear("fc1", width, intermediate);
    layer.linear("fc2", intermediate, width);
    layer.norm("final_layer_norm", width);
  }
  tower.norm("ln_post", width);
  tower.linear("proj", width, out);
}

void add_rms_norm(Weights& owner, const std::string& name, I width) {
  owner.part(name, "Qwen2_5OmniRMSNorm").new_parameter("weight", {width});
}

void add_vision_tower(Weights& tower, const Config& c) {
  const I hidden = c.size("hidden_size"), merge = c.size("spatial_merge_size"), intermediate = c.size("intermediate_size"),
          patch = c.size("patch_size"), merged = checked_mul(hidden, checked_mul(merge, merge));
  tower.part("patch_embed", "Qwen2_5_VisionPatchEmbed")
      .part("proj", "Conv3d")
      .new_parameter("weight", {hidden, c.size("in_channels"), c.size("temporal_patch_size"), patch, patch});
  add_rotary(tower, "rotary_pos_emb", "Qwen2_5_VisionRotaryEmbedding", hidden / c.size("num_heads") / 2);
  Weights& blocks = tower.part("blocks", "ModuleList");
  for (I i = 0; i < count(c, "depth"); ++i) {
    Weights& block = blocks.part(std::to_string(i), "Qwen2_5OmniVisionBlock");
    add_rms_norm(block, "norm1", hidden);
    add_rms_norm(block, "norm2", hidden);
    Weights& attention = block.part("attn", "Qwen2_5OmniVisionAttention");
    for (const char* name : {"q", "k", "v", "proj"}) attention.linear(name, hidden, hidden);
    Weights& mlp = block.part("mlp", "Qwen2_5OmniMLP");
    mlp.linear("gate_proj", hidden, intermediate);
    mlp.linear("up_proj", hidden, intermediate);
    mlp.linear("down_proj", intermediate, hidden);
  }
  Weights& merger = tower.part("merger", "Qwen2_5OmniPatchMerger");
  add_rms_norm(merger, "ln_q", hidden);
  Weights& mlp = merger.part("mlp", "Sequential");
  mlp.linear("0", merged, merged);
  mlp.linear("2", merged, c.size("out_hidden_size"));
}

/// The text model of the thinker and of the talker; `embedding_width`: what an embedding has.
void add_text_model(Weights& model, const Config& c, I embedding_width) {
  const I hidden = c.size("hidden_size"), heads = c.size("num_attention_heads"), intermediate = c.size("intermediate_size"),
          head_dim = c.size_or("head_dim", hidden / heads), queries = checked_mul(heads, head_dim),
          keys = checked_mul(c.size_or("num_key_value_heads", heads), head_dim);
  model.embedding("embed_tokens", c.size("vocab_size"), embedding_width);
  Weights& layers = model.part("layers", "ModuleList");
  for (I i = 0; i < count(c, "num_hidden_layers"); ++i) {
    Weights& layer = layers.part(std::to_string(i), "Qwen2_5OmniDecoderLayer");
    Weights& attention = layer.part("self_attn", "Qwen2_5OmniAttention");
    attention.linear("q_proj", hidden, queries);
    attention.linear("k_proj", hidden, keys);
    attention.linear("v_proj", hidden, keys);
    attention.linear("o_proj", queries, hidden, false);
    Weights& mlp = layer.part("mlp", "Qwen2MLP");
    mlp.linear("gate_proj", hidden, intermediate, false);
    mlp.linear("up_proj", hidden, intermediate, false);
    mlp.linear("down_proj", intermediate, hidden, false);
    add_rms_norm(layer, "input_layernorm", hidden);
    add_rms_norm(layer, "post_attention_layernorm", hidden);
  }
  add_rms_norm(model, "norm", hidden);
  add_rotary(model, "rotary_emb", "Qwen2_5OmniRotaryEmbedding", head_dim);
}

void add_thinker(Weights& thinker, const Config& c) {
  const Config text = c.section("text_config");
  Weights& model = thinker.part("model", "Qwen2_5OmniThinkerModel");
  add_audio_tower(model.part("audio_tower", "Qwen2_5OmniAudioEncoder"), c.section("audio_config"));
  add_vision_tower(model.part("visual", "Qwen2_5OmniVisionEncoder"), c.section("vision_config"));
  add_text_model(model.part("language_model", "Qwen2_5OmniThinkerTextModel"), text, text.size("hidden_size"));
  thinker.linear("lm_head", text.size("hidden_size"), text.size("vocab_size"), false);
}

void add_talker(Weights& talker, const Config& c) {
  const I hidden = c.size("hidden_size"), width = c.size("embedding_size");
  talker.linear("thinker_to_talker_proj", width, hidden);
  add_text_model(talker.part("model", "Qwen2_5OmniTalkerModel"), c, width);
  talker.linear("codec_head", hidden, c.size("vocab_size"), false);
}

void add_conv_block(Weights& owner, const std::string& name, I in, I out, I kernel) {
  owner.part(name, "TimeDelayNetBlock").conv1d("conv", in, out, kernel);
}

void add_speaker_encoder(Weights& encoder, const Config& c) {
  const std::vector<I> channels = c.integers("enc_channels"), kernels = c.integers("enc_kernel_sizes");
  if (channels.size() < 2 || channels.size() != kernels.size())
    throw c.error("enc_channels", "expected as many channels as enc_kernel_sizes has entries, and at least 2");
  const I last = channels.back(), attention = c.size("enc_attention_channels"), scale = c.size("enc_res2net_scale"),
          se_channels = c.size("enc_se_channels");
  Weights& blocks = encoder.part("blocks", "ModuleList");
  add_conv_block(blocks, "0", c.size("mel_dim"), channels[0], kernels[0]);
  for (std::size_t i = 1; i + 1 < channels.size(); ++i) {
    const I out = channels[i];
    Weights& block = blocks.part(std::to_string(i), "SqueezeExcitationRes2NetBlock");
    add_conv_block(block, "tdnn1", channels[i - 1], out, 1);
    Weights& parts = block.part("res2net_block", "Res2NetBlock").part("blocks", "ModuleList");
    for (I j = 0; j + 1 < scale; ++j) add_conv_block(parts, std::to_string(j), out / scale, out / scale, kernels[i]);
    add_conv_block(block, "tdnn2", out, out, 1);
    Weights& excitation = block.part("se_block", "SqueezeExcitationBlock");
    excitation.conv1d("conv1", out, se_channels, 1);
    excitation.conv1d("conv2", se_channels, out, 1);
  }
  add_conv_block(encoder, "mfa", last, last, kernels.back());
  Weights& pooling = encoder.part("asp", "AttentiveStatisticsPooling");
  add_conv_block(pooling, "tdnn", checked_mul(last, 3), attention, 1);
  pooling.conv1d("conv", attention, last, 1);
  encoder.conv1d("fc", checked_mul(last, 2), c.size("enc_dim"), 1);
}

void add_diffusion_model(Weights& model, const Config& c) {
  constexpr I kFrequencies = 256;  // DiTTimestepEmbedding's freq_embed_dim
  const I hidden = c.size("hidden_size"), inner = checked_mul(c.size("head_dim"), c.size("num_attention_heads")), mel = c.size("mel_dim"),
          ff = I(double(hidden) * c.number("ff_mult"));
  Weights& time_mlp = model.part("time_embed", "DiTTimestepEmbedding").part("time_mlp", "ModuleList");
  time_mlp.linear("0", kFrequencies, hidden);
  time_mlp.linear("2", hidden, hidden);
  model.part("text_embed", "DiTCodecEmbedding").embedding("codec_embed", checked_add(c.size("num_embeds"), 1), c.size("emb_dim"));
  Weights& input = model.part("input_embed", "DiTInputEmbedding");
  input.linear("proj", mel + c.size("enc_dim") + c.size("enc_emb_dim") + c.size("emb_dim"), hidden);
  add_speaker_encoder(input.part("spk_encoder", "ECAPA_TimeDelayNet"), c);
  add_rotary(model, "rotary_embed", "Qwen2_5OmniDiTRotaryEmbedding", c.size("head_dim"));
  Weights& blocks = model.part("transformer_blocks", "ModuleList");
  for (I i = 0; i < count(c, "num_hidden_layers"); ++i) {
    Weights& block = blocks.part(std::to_string(i), "DiTDecoderLayer");
    block.part("attn_norm", "Qwen2_5_OmniAdaLayerNormZero").linear("linear", hidden, checked_mul(hidden, 6));
    Weights& attention = block.part("attn", "DiTAttention");
    for (const char* name : {"to_q", "to_k", "to_v"}) attention.linear(name, hidden, inner);
    attention.part("to_out", "ModuleList").linear("0", inner, hidden);
    Weights& mlp = block.part("ff", "DiTMLP").part("ff", "ModuleList");
    mlp.linear("0", hidden, ff);
    mlp.linear("3", ff, hidden);
  }
  model.part("norm_out", "Qwen2_5_OmniAdaLayerNormZero_Final").linear("linear", hidden, checked_mul(hidden, 2));
  model.linear("proj_out", hidden, mel);
}

void add_activation(Weights& owner, const std::string& name, I channels) {
  constexpr I kFilter = 12;  // AntiAliasedActivation1d's kernel sizes
  Weights& activation = owner.part(name, "Qwen2_5OmniAntiAliasedActivation1d");
  Weights& act = activation.part("act", "Qwen2_5OmniSnakeBeta");
  act.new_parameter("alpha", {channels});
  act.new_parameter("beta", {channels});
  for (const char* filter : {"upsample", "downsample"})
    activation.part(filter, "Qwen2_5OmniKaiserSincFilter1d").new_buffer("filter", {1, 1, kFilter}, DType::float32);
}

void add_vocoder(Weights& model, const Config& c) {
  const std::vector<I> kernels = c.integers("upsample_kernel_sizes"), block_kernels = c.integers("resblock_kernel_sizes");
  constexpr std::size_t kMostLayers = 30;
  if (kernels.empty() || kernels.size() > kMostLayers) throw c.error("upsample_kernel_sizes", "expected 1 to 30 kernels");
  const I initial = c.size("upsample_initial_channel");
  auto channels = [&](std::size_t layer) { return initial >> layer; };
  model.conv1d("conv_pre", c.size("mel_dim"), initial, 7);
  Weights& ups = model.part("ups", "ModuleList");
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    Weights& up = ups.part(std::to_string(i), "ModuleList").part("0", "ConvTranspose1d");
    up.new_parameter("weight", {channels(i), channels(i + 1), kernels[i]});
    up.new_parameter("bias", {channels(i + 1)});
  }
  Weights& blocks = model.part("resblocks", "ModuleList");
  I index = 0;
  for (std::size_t i = 0; i < kernels.size(); ++i)
    for (I kernel : block_kernels) {
      constexpr int kConvolutions = 3;  // of each kind in Qwen2_5OmniAMPBlock, for its three dilations
      const I width = channels(i + 1);
      Weights& block = blocks.part(std::to_string(index++), "Qwen2_5OmniAMPBlock");
      for (const char* list : {"convs1", "convs2"}) {
        Weights& convolutions = block.part(list, "ModuleList");
        for (int j = 0; j < kConvolutions; ++j) convolutions.conv1d(std::to_string(j), width, width, kernel);
      }
      Weights& activations = block.part("activations", "ModuleList");
      for (int j = 0; j < 2 * kConvolutions; ++j) add_activation(activations, std::to_string(j), width);
    }
  add_activation(model, "activation_post", channels(kernels.size()));
  model.conv1d("conv_post", channels(kernels.size()), 1, 7, false);
}

NetworkPtr qwen2_5_omni(const Config& config, const Options& o) {
  auto network = std::make_shared<WeightsOnly>("Qwen2_5OmniForConditionalGeneration", o);
  add_thinker(network->part("thinker", "Qwen2_5OmniThinkerForConditionalGeneration"), config.section("thinker_config"));
  if (config.boolean_or("enable_audio_output", true)) {
    add_talker(network->part("talker", "Qwen2_5OmniTalkerForConditionalGeneration"), config.section("talker_config"));
    const Config token2wav = config.section("token2wav_config");
    Weights& model = network->part("token2wav", "Qwen2_5OmniToken2WavModel");
    add_diffusion_model(model.part("code2wav_dit_model", "Qwen2_5OmniToken2WavDiTModel"), token2wav.section("dit_config"));
    add_vocoder(model.part("code2wav_bigvgan_model", "Qwen2_5OmniToken2WavBigVGANModel"), token2wav.section("bigvgan_config"));
  }
  return network;
}
const Family qwen2_5_omni_family{{"qwen2_5_omni"}, {{Task::seq2seq, "Qwen2_5OmniForConditionalGeneration", qwen2_5_omni}}};

}  // namespace
}  // namespace memest::hf
