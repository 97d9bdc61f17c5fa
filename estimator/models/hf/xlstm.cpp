// models/xlstm: matrix LSTMs, by chunks as long as these are full and token by token for the rest.
#include <cmath>

#include "fake/checkpoint.h"
#include "models/hf/decoder.h"
#include "models/hf/generate.h"
#include "models/hf/linear_attention.h"
#include "models/hf/loss.h"

namespace memest::hf {
namespace {

/// The three parts of a layer's state: matrix, normalizer, greatest gate.
struct State {
  X c, n, m;
};
struct Gated {
  X query, key, value, igate, fgate;
};

/// hidden_size * config[factor], which must be a size.
double scaled(const DecoderConfig& c, const char* factor, double otherwise) {
  const double width = double(c.hidden) * c.file.number_or(factor, otherwise);
  if (!(width >= 1 && width < 1e15)) throw c.file.error(factor, "the width it gives is no size: " + std::to_string(width));
  return width;
}
I rounded_up(double x, I multiple_of) { return I(std::floor((x + double(multiple_of) - 1) / double(multiple_of)) * double(multiple_of)); }
X maximum(X a, X b) { return aten("maximum", {Tensor(std::move(a)), Tensor(std::move(b))}); }
X log_sigmoid(const X& x) { return aten("log_sigmoid", {Tensor(x)}); }
X max_of_last(const X& x) { return aten_list("max", {Tensor(x), I{-1}, false})[0]; }
X soft_cap(X values) {
  X capped = values.div(15.0).tanh().mul(15.0);
  return capped;
}

// ---- by chunks
State mlstm_chunkwise_recurrent_fw_C(const X& matK, const X& matV, const X& vecB, const X& vecI, const State& initial, I chunk_size,
                                     I num_chunks) {
  const I batch_size = matK.size(0), nh = matK.size(1), dhqk = matK.size(3), dhhv = matV.size(3);
  const DType dtype = matK.dtype();
  State all{zeros({batch_size, nh, (num_chunks + 1) * dhqk, dhhv}, dtype), zeros({batch_size, nh, (num_chunks + 1) * dhqk}, dtype),
            zeros({batch_size, nh, num_chunks + 1}, dtype)};
  X matC_k = initial.c, vecN_k = initial.n, scaM_inter_k = initial.m;
  X difference = vecB.select(-1, -1).unsqueeze(-1).sub(vecB);
  X vecA = std::move(difference).add(vecI);
  X scaG = vecB.select(-1, -1);
  X scaA_max = max_of_last(vecA);
  scaM_inter_k = scaM_inter_k.squeeze(-1);
  auto store = [&](std::optional<I> from, std::optional<I> to, I key) {
    set_item(all.c.whole_slices(2).slice(2, from, to), matC_k);
    set_item(all.n.whole_slices(2).slice(2, from, to), vecN_k);
    set_item(all.m.whole_slices(2).select(2, key), scaM_inter_k);
  };
  X scaM_inter_k_next, vecAbar_k, matK_chunk_gated, scaGbar_k, matC_k_next, vecN_k_next;
  for (I key = 0; key < num_chunks; ++key) {
    store(key * dhqk, (key + 1) * dhqk, key);
    X scaA_max_k = scaA_max.whole_slices(2).select(2, key), scaG_k = scaG.whole_slices(2).select(2, key);
    scaM_inter_k_next = aten("max", {Tensor(scaG_k.add(scaM_inter_k)), Tensor(scaA_max_k)});
    X matK_chunk = matK.whole_slices(2).slice(2, key * chunk_size, (key + 1) * chunk_size);
    X matV_chunk = matV.whole_slices(2).slice(2, key * chunk_size, (key + 1) * chunk_size);
    X vecA_k = vecA.whole_slices(2).select(2, key);
    vecAbar_k = vecA_k.sub(scaM_inter_k_next.unsqueeze(-1)).exp().unsqueeze(3);
    matK_chunk_gated = matK_chunk.mul(vecAbar_k);
    scaGbar_k = scaG_k.add(scaM_inter_k).sub(scaM_inter_k_next).exp().unsqueeze(2);
    X decayed = scaGbar_k.unsqueeze(-1).mul(matC_k);
    matC_k_next = std::move(decayed).add(matK_chunk_gated.transpose(-2, -1).matmul(matV_chunk));
    X decayed_n = scaGbar_k.mul(vecN_k);
    vecN_k_next = std::move(decayed_n).add(matK_chunk_gated.transpose(-2, -1).sum(-1));
    scaM_inter_k = scaM_inter_k_next, matC_k = matC_k_next, vecN_k = vecN_k_next;
  }
  store(-dhqk, std::nullopt, -1);
  return all;
}

X mlstm_chunkwise_parallel_fw_H(X matQ, X matK, X matV, const State& states, const X& vecI, const X& vecB, I chunk_size, I num_chunks) {
  const I batch_size = matQ.size(0), nh = matQ.size(1), dhqk = matQ.size(3), dhv = matV.size(3), nc = num_chunks;
  X matC_k_states = states.c.view({batch_size, nh, nc, dhqk, dhv});
  X vecN_k_states = states.n.view({batch_size, nh, nc, dhqk});
  matQ = matQ.view({batch_size, nh, nc, chunk_size, dhqk});
  matK = matK.view({batch_size, nh, nc, chunk_size, dhqk});
  matV = matV.view({batch_size, nh, nc, chunk_size, dhv});
  X ltr = aten("tril", {Tensor(ones({chunk_size, chunk_size}, DType::boolean))});
  X matF_logsig_chunk = vecB.unsqueeze(4).sub(vecB.unsqueeze(3));
  X matF_logsig_mask_chunk = where(ltr, matF_logsig_chunk, -1e30);
  X matLogD_chunk = matF_logsig_mask_chunk.add(vecI.unsqueeze(3));
  X vecMintra_k = max_of_last(matLogD_chunk);
  X vecM_b_inter = vecB.add(states.m.unsqueeze(3));
  X vecM_k_combine = maximum(vecM_b_inter, vecMintra_k);
  vecM_k_combine = vecM_k_combine.unsqueeze(4);
  vecM_b_inter = vecM_b_inter.unsqueeze(4);
  X matLogD_stabilized_chunk = matLogD_chunk.sub(vecM_k_combine);
  X matD_chunk = matLogD_stabilized_chunk.exp();
  X matS_chunk = matQ.matmul(matK.transpose(-2, -1)).mul(1.0);
  X matM_chunk = matS_chunk.mul(matD_chunk);
  X vecBbar = vecM_b_inter.sub(vecM_k_combine).exp();
  X matQ_chunk_gated = matQ.mul(vecBbar).mul(1.0);
  X inter = matQ_chunk_gated.matmul(matC_k_states);
  X matNumerator_common = std::move(inter).add(matM_chunk.matmul(matV));
  X inter_l = matQ_chunk_gated.matmul(vecN_k_states.unsqueeze(-1));
  X vecDenom_l_common = std::move(inter_l).add(matM_chunk.sum(-1, true));
  X magnitude = aten("abs", {Tensor(vecDenom_l_common)});
  X vecDenom_max_common = maximum(magnitude, vecM_k_combine.neg().exp());
  magnitude.reset();
  X matH_k_chunk = matNumerator_common.div(vecDenom_max_common.add(1e-6));
  return matH_k_chunk.view({batch_size, nh, nc * chunk_size, dhv});
}

std::pair<X, State> mlstm_chunkwise_native_autograd(const Gated& x, const State& initial, I chunk_size) {
  const I batch_size = x.query.size(0), nh = x.query.size(1), sequence_length = x.query.size(2), dhqk = x.query.size(3);
  const I nc = sequence_length / chunk_size;
  X vecI = x.igate.view({batch_size, nh, nc, chunk_size});
  X vecF = x.fgate.view({batch_size, nh, nc, chunk_size});
  X vecF_logsig = log_sigmoid(vecF);
  X vecB = aten("cumsum", {Tensor(vecF_logsig), I{-1}});
  State all = mlstm_chunkwise_recurrent_fw_C(x.key, x.value, vecB, vecI, initial, chunk_size, nc);
  const State before{all.c.whole_slices(2).slice(2, std::nullopt, -dhqk), all.n.whole_slices(2).slice(2, std::nullopt, -dhqk),
                     all.m.whole_slices(2).slice(2, std::nullopt, -1)};
  X matH_out = mlstm_chunkwise_parallel_fw_H(x.query, x.key, x.value, before, vecI, vecB, chunk_size, nc);
  return {matH_out,
          {all.c.whole_slices(2).slice(2, -dhqk, std::nullopt), all.n.whole_slices(2).slice(2, -dhqk, std::nullopt),
           all.m.whole_slices(2).slice(2, -1, std::nullopt)}};
}

// ---- token by token
std::pair<X, State> mlstm_recurrent_step_native(const Gated& x, const State& state, DType dtype_state) {
  const DType dtype_qkv = x.query.dtype();
  X matC_old = state.c.to(dtype_state), vecN_old = state.n.to(dtype_state), scaM_old = state.m.to(dtype_state);
  X scaF_log = log_sigmoid(x.fgate);
  X scaM_state_new = aten("max", {Tensor(scaF_log.add(scaM_old)), Tensor(x.igate)});
  X scaF_act = scaF_log.add(scaM_old).sub(scaM_state_new).exp();
  X scaI_act = x.igate.sub(scaM_state_new).exp();
  X vecQ_scaled = x.query.mul(1.0);
  X kept = scaF_act.unsqueeze(3).mul(matC_old.clone());
  X matC_state_new = std::move(kept).add(scaI_act.unsqueeze(3).mul(x.key.unsqueeze(3).matmul(x.value.unsqueeze(2))));
  X kept_n = scaF_act.mul(vecN_old.clone());
  X vecN_state_new = std::move(kept_n).add(scaI_act.mul(x.key));
  X h_num = vecQ_scaled.unsqueeze(2).matmul(matC_state_new.to(dtype_qkv));
  h_num = h_num.squeeze(2).to(dtype_state);
  X qn_dotproduct = vecQ_scaled.unsqueeze(2).matmul(vecN_state_new.unsqueeze(3).to(dtype_qkv));
  qn_dotproduct = qn_dotproduct.squeeze(2);
  X max_val = scaM_state_new.neg().exp();
  X h_denom = maximum(aten("abs", {Tensor(qn_dotproduct)}), max_val).add(1e-6).to(dtype_state);
  X h = h_num.div(h_denom);
  h = h.to(dtype_qkv);
  matC_state_new = matC_state_new.to(dtype_state);
  vecN_state_new = vecN_state_new.to(dtype_state);
  scaM_state_new = scaM_state_new.to(dtype_state);
  return {h, {matC_state_new, vecN_state_new, scaM_state_new}};
}

std::pair<X, State> mlstm_recurrent_sequence_native(const Gated& x, const State& initial, DType dtype_state) {
  State state{initial.c.to(dtype_state), initial.n.to(dtype_state), initial.m.to(dtype_state)};
  std::vector<X> vecH_list;
  X vecH;
  for (I t = 0; t < x.query.size(2); ++t) {
    auto token = [t](const X& y) { return y.whole_slices(2).select(2, t); };
    Gated at_t;
    at_t.fgate = token(x.fgate).unsqueeze(2);
    at_t.igate = token(x.igate).unsqueeze(2);
    at_t.query = token(x.query), at_t.key = token(x.key), at_t.value = token(x.value);
    std::tie(vecH, state) = mlstm_recurrent_step_native(at_t, state, dtype_state);
    vecH_list.push_back(vecH);
  }
  return {stack(vecH_list, -2), state};
}

/// wrap_chunkwise_arbitrary_sequence_length.
std::pair<X, State> mlstm(const Gated& x, const State& initial, I chunk_size, DType dtype_state) {
  const I batch_size = x.key.size(0), nh = x.key.size(1), sequence_length = x.key.size(2), dhqk = x.key.size(3), dhhv = x.value.size(3);
  State state = initial;
  if (!state.c) state.c = zeros({batch_size, nh, dhqk, dhhv}, DType::float32);
  if (!state.n) state.n = zeros({batch_size, nh, dhqk}, DType::float32);
  if (!state.m) state.m = zeros({batch_size, nh, 1}, DType::float32);
  X h_out;
  if (sequence_length == 1) {
    std::tie(h_out, state) =
        mlstm_recurrent_step_native({x.query.squeeze(2), x.key.squeeze(2), x.value.squeeze(2), x.igate, x.fgate}, state, dtype_state);
    return {h_out.unsqueeze(2), state};
  }
  std::vector<X> h_outs;
  auto part = [&](I from, I to) {
    Gated copies;
    copies.query = x.query.slice(2, from, to).contiguous();
    copies.key = x.key.slice(2, from, to).contiguous();
    copies.value = x.value.slice(2, from, to).contiguous();
    const bool gates_of_chunks = from == 0 && to >= chunk_size;  // the order of the arguments
    if (gates_of_chunks) copies.fgate = x.fgate.slice(2, from, to).contiguous();
    copies.igate = x.igate.slice(2, from, to).contiguous();
    if (!gates_of_chunks) copies.fgate = x.fgate.slice(2, from, to).contiguous();
    return copies;
  };
  const I whole = sequence_length / chunk_size * chunk_size;
  if (whole > 0) {
    std::tie(h_out, state) = mlstm_chunkwise_native_autograd(part(0, whole), state, chunk_size);
    h_outs.push_back(h_out);
  }
  if (whole < sequence_length) {
    std::tie(h_out, state) = mlstm_recurrent_sequence_native(part(whole, sequence_length), state, dtype_state);
    h_outs.push_back(h_out);
  }
  h_out = cat(h_outs, 2);
  return {h_out, state};
}

// ---- modules
class xLSTMRMSNorm final : public Unary {
 public:
  explicit xLSTMRMSNorm(I width, bool bias = false, bool fp32 = true) : Unary("xLSTMRMSNorm"), fp32_(fp32) {
    new_parameter("weight", {width});
    new_parameter("bias", {width}, bias);
  }

 protected:
  X forward(X x) override {
    x = rms_normalize(x);
    x = x.mul(X(parameter(0)));
    if (parameter(1)) x = x.add(X(parameter(1)));
    return x;
  }

 private:
  X rms_normalize(X x) const {
    const DType in_dtype = x.dtype();
    if (fp32_) x = x.to_float();
    x = x.mul(x.pow(2).mean(-1, true).add(1e-6).rsqrt());
    return x.to(in_dtype);
  }
  bool fp32_;
};

class xLSTMMultiHeadLayerNorm final : public Unary {
 public:
  xLSTMMultiHeadLayerNorm(I width, bool bias, bool fp32) : Unary("xLSTMMultiHeadLayerNorm"), fp32_(fp32) {
    new_parameter("weight", {width});
    new_parameter("bias", {width}, bias);
  }

 protected:
  X forward(X x) override {
    const I batch_size = x.size(0), sequence_length = x.size(1);
    x = layer_normalize(x);
    x = x.reshape({batch_size, sequence_length, -1});
    x = x.mul(X(parameter(0)));
    if (parameter(1)) x = x.add(X(parameter(1)));
    return x;
  }

 private:
  X layer_normalize(X x) const {
    const DType in_dtype = x.dtype();
    if (fp32_) x = x.to_float();
    X x_centered = x.sub(x.mean(-1, true));
    X variance = aten("var", {Tensor(x), list_of(Dims{-1}), false, true});
    X y = x_centered.mul(std::move(variance).add(1e-6).rsqrt());
    return y.to(in_dtype);
  }
  bool fp32_;
};

/// config.weight_mode: a projection for each part, or one for all.
bool is_fused(const Config& f) {
  const std::string mode = f.text_or("weight_mode", "single");
  if (mode != "single" && mode != "fused") throw f.error("weight_mode", "expected 'single' or 'fused', found '" + mode.substr(0, 60) + "'");
  return mode == "fused";
}

class xLSTMFeedForward final : public Unary {
 public:
  explicit xLSTMFeedForward(const DecoderConfig& c) : Unary("xLSTMFeedForward"), fused_(is_fused(c.file)) {
    const bool bias = c.file.boolean_or("use_bias", false);
    up_ = rounded_up(scaled(c, "ffn_proj_factor", 2.667), c.file.size_or("ffn_round_up_to_multiple_of", 64));
    if (fused_) {
      proj_up_gate_z = &child<Linear>("proj_up_gate_z", c.hidden, checked_mul(up_, 2), bias);
    } else {
      proj_up_gate = &child<Linear>("proj_up_gate", c.hidden, up_, bias);
      proj_up = &child<Linear>("proj_up", c.hidden, up_, bias);
    }
    proj_down = &child<Linear>("proj_down", up_, c.hidden, bias);
    act_fn = &child<Activation>("act_fn", "silu");
  }

 protected:
  X forward(X x) override {
    X gate, z;
    if (fused_) {
      x = (*proj_up_gate_z)(x);
      std::vector<X> parts = x.split(Dims{up_, up_}, -1);
      gate = parts[0], z = parts[1];
      parts.clear();
      x = (*act_fn)(gate).mul(z);
    } else {
      x = (*act_fn)((*proj_up_gate)(x)).mul((*proj_up)(x));
    }
    X y = (*proj_down)(x);
    return y;
  }

 private:
  bool fused_;
  I up_;
  Linear *proj_up_gate_z = nullptr, *proj_up_gate = nullptr, *proj_up = nullptr, *proj_down;
  Activation* act_fn;
};

class xLSTMLayer final : public Base {
 public:
  explicit xLSTMLayer(const DecoderConfig& c)
      : Base("xLSTMLayer"),
        heads_(c.file.size("num_heads")),
        v_dim_(I(scaled(c, "v_dim_factor", 1.0))),
        qk_dim_(I(scaled(c, "qk_dim_factor", 0.5))),
        chunk_size_(c.file.size_or("chunk_size", 64)),
        fused_(is_fused(c.file)) {
    const bool bias = c.file.boolean_or("use_bias", false);
    if (qk_dim_ < 1 || v_dim_ < 1 || qk_dim_ % heads_ != 0 || v_dim_ % heads_ != 0)
      throw c.file.error("num_heads", std::to_string(heads_) + " heads do not divide the widths " + std::to_string(qk_dim_) +
                                          " of the keys and " + std::to_string(v_dim_) + " of the values");
    if (fused_) {
      qkv_opreact = &child<Linear>("qkv_opreact", c.hidden, checked_mul(checked_add(qk_dim_, v_dim_), 2), bias);
      ifgate_preact = &child<Linear>("ifgate_preact", c.hidden, checked_mul(heads_, 2), true);
    } else {
      q = &child<Linear>("q", c.hidden, qk_dim_, bias);
      k = &child<Linear>("k", c.hidden, qk_dim_, bias);
      v = &child<Linear>("v", c.hidden, v_dim_, bias);
      ogate_preact = &child<Linear>("ogate_preact", c.hidden, v_dim_, bias);
      igate_preact = &child<Linear>("igate_preact", c.hidden, heads_, true);
      fgate_preact = &child<Linear>("fgate_preact", c.hidden, heads_, true);
    }
    multihead_norm = register_module(
        "multihead_norm", std::make_shared<xLSTMMultiHeadLayerNorm>(v_dim_, bias, c.file.boolean_or("norm_reduction_force_float32", true)));
    out_proj = &child<Linear>("out_proj", v_dim_, c.hidden, bias);
  }
  std::pair<X, State> operator()(const X& x, const State& state) {
    Entered scope(*this);
    const I batch_size = x.size(0), sequence_length = x.size(1);
    X query, key, value, o_preact, i_preact, f_preact, joint, gates;
    if (fused_) {
      joint = (*qkv_opreact)(x);
      std::vector<X> parts = joint.split(Dims{qk_dim_, qk_dim_, v_dim_, v_dim_}, -1);
      query = parts[0], key = parts[1], value = parts[2], o_preact = parts[3];
      gates = soft_cap((*ifgate_preact)(x));
      parts = gates.split(Dims{heads_, heads_}, -1);
      i_preact = parts[0], f_preact = parts[1];
    } else {
      query = (*q)(x);
      key = (*k)(x);
      value = (*v)(x);
      o_preact = (*ogate_preact)(x);
      i_preact = soft_cap((*igate_preact)(x));
      f_preact = soft_cap((*fgate_preact)(x));
    }
    for (X* y : {&query, &key, &value}) *y = y->reshape({batch_size, sequence_length, heads_, -1}).transpose(1, 2);
    i_preact = i_preact.transpose(1, 2);
    f_preact = f_preact.transpose(1, 2);
    auto [h, last] = mlstm({query, key, value, i_preact, f_preact}, state, chunk_size_, DType::float32);
    h = h.transpose(1, 2);
    X h_norm = (*multihead_norm)(h);
    h_norm = h_norm.reshape({batch_size, sequence_length, -1});
    X h_out = o_preact.sigmoid().mul(h_norm);
    X y = (*out_proj)(h_out);
    return {y, last};
  }

 private:
  I heads_, v_dim_, qk_dim_, chunk_size_;
  bool fused_;
  Linear *qkv_opreact = nullptr, *ifgate_preact = nullptr;
  Linear *q = nullptr, *k = nullptr, *v = nullptr, *ogate_preact = nullptr, *igate_preact = nullptr, *fgate_preact = nullptr;
  UnaryPtr multihead_norm;
  Linear* out_proj;
};

class xLSTMBlock final : public Base {
 public:
  explicit xLSTMBlock(const DecoderConfig& c) : Base("xLSTMBlock"), checkpoint_(c.options.checkpoint), reentrant_(c.options.reentrant) {
    const bool bias = c.file.boolean_or("use_bias", false), fp32 = c.file.boolean_or("norm_reduction_force_float32", true);
    norm_mlstm = register_module("norm_mlstm", std::make_shared<xLSTMRMSNorm>(c.hidden, bias, fp32));
    mlstm_layer = register_module("mlstm_layer", std::make_shared<xLSTMLayer>(c));
    norm_ffn = register_module("norm_ffn", std::make_shared<xLSTMRMSNorm>(c.hidden, bias, fp32));
    ffn = register_module("ffn", std::make_shared<xLSTMFeedForward>(c));
  }
  std::pair<X, State> operator()(X x, const State& state) {
    Entered scope(*this);
    if (!checkpoint_ || !training || !runtime().grad_mode) return forward(x, state);
    Region region = [this, state](const Tensors& inputs) {
      auto [y, last] = forward(X(inputs[0]), state);
      return Tensors{y, last.c, last.n, last.m};
    };
    Tensors made = reentrant_ ? checkpoint_reentrant(std::move(region), {x}) : memest::checkpoint(std::move(region), {x});
    return {X(made[0]), {X(made[1]), X(made[2]), X(made[3])}};
  }

 private:
  using Base::forward;
  std::pair<X, State> forward(X x, const State& state) {
    X x_mlstm = (*norm_mlstm)(x);
    State last;
    std::tie(x_mlstm, last) = (*mlstm_layer)(x_mlstm, state);
    x = x.add(x_mlstm);
    X x_ffn = (*norm_ffn)(x);
    x_ffn = (*ffn)(x_ffn);
    x = x.add(x_ffn);
    return {x, last};
  }
  bool checkpoint_, reentrant_;
  UnaryPtr norm_mlstm, norm_ffn, ffn;
  std::shared_ptr<xLSTMLayer> mlstm_layer;
};

class xLSTMModel final : public DecoderBody {
 public:
  explicit xLSTMModel(std::shared_ptr<const DecoderConfig> config) : DecoderBody("xLSTMModel"), c_(std::move(config)) {
    embeddings = &child<Embedding>("embeddings", c_->vocab, c_->hidden);
    blocks_ = std::make_unique<Layers<xLSTMBlock>>(*this, "blocks", c_->layers, [&](I) { return std::make_shared<xLSTMBlock>(*c_); });
    out_norm = register_module("out_norm", std::make_shared<xLSTMRMSNorm>(c_->hidden));
  }

 protected:
  std::pair<X, CachePtr> forward(X input_ids) override {
    X inputs_embeds = (*embeddings)(input_ids);
    const I sequence_length = inputs_embeds.size(1);
    if (!training && c_->file.integer_or("max_inference_chunksize", 16384) < sequence_length)
      throw c_->file.error("max_inference_chunksize",
                           "memest runs xLSTM on sequences within this length, found " + std::to_string(sequence_length));
    const bool checkpointed = c_->options.checkpoint && training && runtime().grad_mode;  // utils/generic.py merge_with_config_defaults
    CachePtr cache = checkpointed ? nullptr : new_cache(*c_, training);
    if (cache && cache->layer(0).states.empty()) make_xlstm_cache(inputs_embeds, *cache);
    X hidden_states = inputs_embeds;
    State rnn_state;
    for (I layer_idx = 0; layer_idx < c_->layers; ++layer_idx) {
      State kept;
      if (cache) kept = state_of(cache->layer(layer_idx));
      std::tie(hidden_states, rnn_state) = (*blocks_)[layer_idx](hidden_states, kept);
      if (!cache) continue;
      ops::copy_(kept.c, rnn_state.c, false);
      ops::copy_(kept.n, rnn_state.n, false);
      ops::copy_(kept.m, rnn_state.m, false);
    }
    hidden_states = (*out_norm)(hidden_states);
    return {hidden_states, cache};
  }

 private:
  static State state_of(const CacheLayer& layer) { return {layer.states[0], layer.states[1], layer.states[2]}; }
  /// xLSTMCache: the states of all layers, and how far they went.
  void make_xlstm_cache(const X& inputs_embeds, Cache& cache) const {
    const I heads = c_->file.size("num_heads"), batch_size = inputs_embeds.size(0);
    const I qk_head_dim = rounded_up(scaled(*c_, "qk_dim_factor", 0.5), 64) / heads;
    const I v_head_dim = rounded_up(scaled(*c_, "v_dim_factor", 1.0), 64) / heads;
    const X seqlen_offset = zeros({1}, DType::int64);
    for (I i = 0; i < c_->layers; ++i) {
      auto& states = cache.layer(i).states;
      for (const Dims& sizes :
           {Dims{batch_size, heads, qk_head_dim, v_head_dim}, Dims{batch_size, heads, qk_head_dim}, Dims{batch_size, heads, 1}})
        states.push_back(zeros(sizes, inputs_embeds.dtype()));
      if (!runtime().grad_mode)
        for (auto& state : states) state->storage->categorize(Category::kv_cache);
    }
    cache.layer(0).states.push_back(seqlen_offset);
  }

  std::shared_ptr<const DecoderConfig> c_;
  Embedding* embeddings;
  std::unique_ptr<Layers<xLSTMBlock>> blocks_;
  UnaryPtr out_norm;
};

class xLSTMForCausalLM final : public Network, public WithoutMask {
 public:
  explicit xLSTMForCausalLM(std::shared_ptr<const DecoderConfig> c)
      : Network("xLSTMForCausalLM", c->options),
        c_(c),
        backbone(child<xLSTMModel>("backbone", c)),
        lm_head(child<Linear>("lm_head", c->hidden, c->vocab, false)) {
    if (c->tie) tie("lm_head.weight", "backbone.embeddings.weight");
  }
  bool generates() const override { return true; }
  /// The first call makes the states.
  CachePtr new_generation_cache() const override { return std::make_shared<Cache>(); }
  Step step(Batch batch) override {
    Entered scope(*this);
    auto [hidden_states, cache] = backbone(batch.input, {}, batch.cache);
    return {logits_of(hidden_states), cache};
  }
  nn::Outcome run(Batch batch) override {
    Entered scope(*this);
    auto [hidden_states, cache] = backbone(batch.input);
    X logits = logits_of(hidden_states);
    X loss;
    if (batch.labels) loss = causal_lm_loss(logits, batch.labels, c_->vocab);
    return {model_output({loss, logits}, cache.get()), loss};
  }

 private:
  X logits_of(const X& hidden_states) {
    X logits = lm_head(hidden_states.to(lm_head.weight().dtype())).to_float();
    logits = soft_cap(logits);
    return logits;
  }

  std::shared_ptr<const DecoderConfig> c_;
  xLSTMModel& backbone;
  Linear& lm_head;
};

NetworkPtr xlstm(const Config& given, const Options& o) {
  note_torch_recurrence("xlstm");
  Config config = given;
  config.set("num_attention_heads", ConfigValue{std::int64_t{1}});
  if (!config.has("hidden_size")) config.set("hidden_size", ConfigValue{given.size("embedding_dim")});
  if (!config.has("num_hidden_layers")) config.set("num_hidden_layers", ConfigValue{given.size("num_blocks")});
  if (config.text_or("mode", "inference") != "inference")
    throw config.error("mode", "memest builds xLSTM with the mode 'inference' only, found '" + config.text("mode").substr(0, 60) + "'");
  if (o.task != Task::base) return std::make_shared<xLSTMForCausalLM>(std::make_shared<const DecoderConfig>(config, o));
  DecoderForm f;
  f.prefix = "xLSTM";
  f.base_prefix = "backbone";
  f.body = [](std::shared_ptr<const DecoderConfig> c, std::shared_ptr<const DecoderForm>) {
    return std::make_shared<xLSTMModel>(std::move(c));
  };
  return make_decoder(config, o, std::move(f));
}
const Family xlstm_family{{"xlstm"}, {{Task::causal_lm, "xLSTMForCausalLM", xlstm}, {Task::base, "xLSTMModel", xlstm}}};

}  // namespace
}  // namespace memest::hf
