#include "models/hf/mamba_mixer.h"

#include "models/hf/linear_attention.h"

namespace memest::hf {
namespace {

/// FalconMambaWeightlessRMSNorm: its weight is a buffer that only the kernels take.
class WeightlessNorm final : public Unary {
 public:
  WeightlessNorm(std::string type, I width) : Unary(std::move(type)) {
    register_buffer("weight", host_tensor({width}, runtime().default_dtype));
  }

 protected:
  X forward(X x) override { return norm(x.to_float()).to(x.dtype()); }

 private:
  static X norm(X x) { return x.mul(x.pow(2).mean(-1, true).add(1e-6).rsqrt()); }
};

struct SelectiveScan {
  X hidden_states, dt, A, B, C, D, z, delta_bias;
};
/// mamba_selective_scan: scan_output, ssm_state.
Pair mamba_selective_scan(const SelectiveScan& call) {
  const X &hidden_states = call.hidden_states, &A = call.A;
  const I batch_size = hidden_states.size(0), intermediate_size = hidden_states.size(1), seq_len = hidden_states.size(2);
  const DType input_dtype = hidden_states.dtype();
  X dt = call.dt.add(call.delta_bias.to(call.dt.dtype()).unsqueeze(-1));
  dt = aten("softplus", {Tensor(dt)});
  X B = call.B.transpose(1, 2), C = call.C.transpose(1, 2);
  X discrete_A = A.unsqueeze(0).whole_slices(2).unsqueeze(2).mul(dt.whole_slices(3).unsqueeze(3)).exp();
  X discrete_B = dt.whole_slices(3).unsqueeze(3).mul(B.whole_slices(1).unsqueeze(1).to_float());
  X deltaB_u = discrete_B.mul(hidden_states.whole_slices(3).unsqueeze(3).to_float());
  X ssm_state = zeros({batch_size, intermediate_size, A.size(-1)}, input_dtype);
  std::vector<X> scan_outputs;
  X scan_output;
  for (I index = 0; index < seq_len; ++index) {
    X decayed = discrete_A.whole_slices(2).select(2, index).mul(ssm_state);
    ssm_state = std::move(decayed).add(deltaB_u.whole_slices(2).select(2, index));
    scan_output = ssm_state.to(input_dtype).matmul(C.whole_slices(1).select(1, index).unsqueeze(-1));
    scan_outputs.push_back(scan_output.whole_slices(2).select(2, 0));
  }
  scan_output = stack(scan_outputs, -1);
  scan_output = scan_output.add(hidden_states.mul(call.D.unsqueeze(0).whole_slices(2).unsqueeze(2)));
  scan_output = scan_output.mul(X(ops::silu(call.z)));
  return {scan_output, ssm_state};
}

/// mamba_selective_state_update of one token; `state` is written.
X mamba_selective_state_update(const X& state, const SelectiveScan& call) {
  const X& hidden_states = call.hidden_states;
  X dt = call.dt.add(call.delta_bias.to(call.dt.dtype()));
  dt = aten("softplus", {Tensor(dt)});
  X dA = dt.to_float().unsqueeze(-1).mul(call.A.to_float()).exp();
  X dB = dt.to_float().unsqueeze(-1).mul(call.B.to_float().whole_slices(1).unsqueeze(1));
  X dBx = dB.mul(hidden_states.to_float().unsqueeze(-1));
  X ssm_state = state.to_float().mul(dA).add(dBx);
  ops::copy_(state, ssm_state.to(state.dtype()), false);
  X out = ssm_state.to(call.C.dtype()).matmul(call.C.unsqueeze(-1)).squeeze(-1);
  out = out.add(hidden_states.mul(call.D));
  out = out.mul(X(ops::silu(call.z)));
  return out.to(hidden_states.dtype());
}

class MambaMixer final : public Mixer {
 public:
  MambaMixer(const DecoderConfig& c, I layer, const MambaMixerForm& form) : Mixer(form.prefix + "Mixer"), form_(form), layer_(layer) {
    const I width = form.intermediate;
    conv1d = &child<Conv1d>("conv1d", width, width, form.kernel, 1, form.kernel - 1, form.conv_bias, width);
    act = &child<Activation>("act", form.act);
    in_proj = &child<Linear>("in_proj", c.hidden, checked_mul(width, 2), form.bias);
    x_proj = &child<Linear>("x_proj", width, checked_add(form.rank, checked_mul(form.state, 2)), false);
    dt_proj = &child<Linear>("dt_proj", form.rank, width, true);
    new_parameter("A_log", {width, form.state});
    new_parameter("D", {width});
    out_proj = &child<Linear>("out_proj", width, c.hidden, form.bias);
    // FalconMambaMixer gives the norm of dt the width of the whole mixer
    dt_layernorm_ = add_norm("dt_layernorm", form.norms == MambaMixerForm::Norms::weightless ? width : form.rank);
    b_layernorm_ = add_norm("b_layernorm", form.state);
    c_layernorm_ = add_norm("c_layernorm", form.state);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I seq_len = hidden_states.size(1);
    const DType dtype = hidden_states.dtype();
    const X conv_state = cached_state(call.cache, layer_, kConvState);
    const X recurrent_state = cached_state(call.cache, layer_, kRecurrentState);
    // 1. Gated MLP's linear projection
    X projected_states = (*in_proj)(hidden_states).transpose(1, 2);
    X A = X(parameter(kALog)).to_float().exp().neg();
    if (form_.asks_for_fused && training && !call.cache) prepare_fused_call();
    std::vector<X> halves = projected_states.chunk(2, 1);
    X hidden_states_B_C = halves[0], gate = halves[1];
    halves.clear();
    // 2. Convolution sequence transformation
    if (conv_state && seq_len == 1) {
      hidden_states_B_C = causal_conv1d_update(hidden_states_B_C, conv_state, conv1d->weight(), conv1d->bias(), act);
    } else {
      if (call.cache) hidden_states_B_C = update_conv_state(*call.cache, layer_, hidden_states_B_C, form_.kernel);
      hidden_states_B_C = causal_conv1d_fn(hidden_states_B_C, conv1d->weight(), conv1d->bias(), act);
      if (call.cache) hidden_states_B_C = hidden_states_B_C.slice(2, -seq_len, std::nullopt);
    }
    // 3. SSM transformation
    hidden_states_B_C = hidden_states_B_C.transpose(1, 2);
    std::vector<X> parts = (*x_proj)(hidden_states_B_C).split(Dims{form_.rank, form_.state, form_.state}, -1);
    X time_step = parts[0], B = parts[1], C = parts[2];
    parts.clear();
    if (dt_layernorm_) {
      time_step = (*dt_layernorm_)(time_step);
      B = (*b_layernorm_)(B);
      C = (*c_layernorm_)(C);
    }
    time_step = X(dt_proj->weight()).matmul(time_step.transpose(1, 2));
    X time_proj_bias = X(dt_proj->bias()).to_float();
    X scan_output, final_state;
    if (recurrent_state && seq_len == 1) {
      scan_output = mamba_selective_state_update(
          recurrent_state, {hidden_states_B_C.transpose(1, 2).select(-1, 0), time_step.select(-1, 0), A, B.whole_slices(1).select(1, 0),
                            C.whole_slices(1).select(1, 0), X(parameter(kD)), gate.select(-1, 0), time_proj_bias});
      scan_output = scan_output.unsqueeze(-1);
    } else {
      std::tie(scan_output, final_state) = mamba_selective_scan({hidden_states_B_C.transpose(1, 2), time_step, A, B.transpose(1, 2),
                                                                 C.transpose(1, 2), X(parameter(kD)).to_float(), gate, time_proj_bias});
      if (call.cache)
        update_recurrent_state(*call.cache, layer_, final_state);
      else
        final_state.reset();
    }
    // 4. Final linear projection
    return {(*out_proj)(scan_output.transpose(1, 2).to(dtype)), {}};
  }

 private:
  enum Parameter : std::size_t { kALog, kD };
  UnaryPtr add_norm(const char* name, I width) {
    using Norms = MambaMixerForm::Norms;
    if (form_.norms == Norms::none) return {};
    if (form_.norms == Norms::rms) return register_module(name, make_norm(Norm::llama, width, "RMSNorm"));
    return register_module(name, std::make_shared<WeightlessNorm>("WeightlessRMSNorm", width));
  }
  /// The arguments of mamba_inner_fn, which has no form in PyTorch's ops and returns None.
  void prepare_fused_call() const {
    X out_proj_bias;
    if (form_.bias) out_proj_bias = X(out_proj->bias()).to_float();
    X D = X(parameter(kD)).to_float();
    X delta_bias = X(dt_proj->bias()).to_float();
  }

  const MambaMixerForm form_;
  I layer_;
  Conv1d* conv1d;
  Activation* act;
  Linear *in_proj, *x_proj, *dt_proj, *out_proj;
  UnaryPtr dt_layernorm_, b_layernorm_, c_layernorm_;
};

}  // namespace

MixerPtr make_mamba_mixer(const DecoderConfig& c, I layer, const MambaMixerForm& form) {
  return std::make_shared<MambaMixer>(c, layer, form);
}

I time_step_rank(const Config& config, const char* key, I hidden) {
  const ConfigValue* value = config.find(key);
  const auto* text = value ? std::get_if<std::string>(&value->value) : nullptr;
  return text && *text == "auto" ? ceil_div(hidden, 16) : config.size(key);
}

}  // namespace memest::hf
