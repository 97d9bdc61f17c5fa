#include "models/hf/mamba2_mixer.h"

#include "models/hf/linear_attention.h"

namespace memest::hf {
namespace {

X einsum(const char* equation, const X& a, const X& b) {
  return aten("einsum", {std::string(equation), make_list({Tensor(a), Tensor(b)})});
}
X masked_fill(const X& x, X mask) {
  X inverse = aten("bitwise_not", {Tensor(mask)});
  return aten("masked_fill", {Tensor(x), Tensor(std::move(inverse)), 0.0});
}

X pad_tensor_by_size(const X& input_tensor, I pad_size) {
  const Dims sides = input_tensor.dim() == 4 ? Dims{0, 0, 0, 0, 0, pad_size, 0, 0} : Dims{0, 0, 0, pad_size, 0, 0};
  return aten("constant_pad_nd", {Tensor(input_tensor), list_of(sides), I{0}});
}
X reshape_into_chunks(const X& input, I pad_size, I chunk_size) {
  X input_tensor = pad_tensor_by_size(input, pad_size);
  Dims sizes = input_tensor.sizes();
  sizes[1] = chunk_size;
  sizes.insert(1, -1);
  return input_tensor.reshape(sizes);
}
X lower_triangle(I size, I diagonal) {
  X square = ones({size, size}, DType::boolean);
  return aten("tril", {Tensor(square), diagonal});
}
X segment_sum(X input_tensor) {
  const I chunk_size = input_tensor.size(-1);
  input_tensor = input_tensor.unsqueeze(-1).expand(input_tensor.sizes() + Dims{chunk_size});
  X mask = lower_triangle(chunk_size, -1);
  input_tensor = masked_fill(input_tensor, mask);
  X tensor_segsum = aten("cumsum", {Tensor(input_tensor), I{-2}});
  mask = lower_triangle(chunk_size, 0);
  tensor_segsum = masked_fill(tensor_segsum, mask);
  return leave(std::move(tensor_segsum), input_tensor, mask);
}
X repeat_groups(const X& x, I times) { return aten("repeat_interleave", {Tensor(x.to_float()), times, I{2}}); }

class MambaRMSNormGated final : public Module<MambaRMSNormGated> {
 public:
  MambaRMSNormGated(I width, I group_size) : Module("MambaRMSNormGated"), group_size_(group_size) { new_parameter("weight", {width}); }
  X forward(X hidden_states, X gate) {
    const DType input_dtype = hidden_states.dtype();
    hidden_states = hidden_states.to_float();
    hidden_states = hidden_states.mul(X(ops::silu(gate.to_float())));
    const Dims sizes = hidden_states.sizes();
    X hidden_states_group = hidden_states.view(sizes.slice(0, sizes.size() - 1) + Dims{sizes[-1] / group_size_, group_size_});
    X variance = hidden_states_group.pow(2).mean(-1, true);
    hidden_states_group = hidden_states_group.mul(variance.add(1e-6).rsqrt());
    hidden_states = hidden_states_group.view(sizes);
    X result = X(parameter(0)).mul(hidden_states.to(input_dtype));
    return leave(std::move(result), hidden_states, gate, hidden_states_group, variance);
  }

 private:
  I group_size_;
};

/// FalconH1RMSNormGated.
class FalconRMSNormGated final : public Module<FalconRMSNormGated> {
 public:
  FalconRMSNormGated(I width, I groups, bool norm_before_gate)
      : Module("FalconH1RMSNormGated"), groups_(groups), norm_before_gate_(norm_before_gate) {
    new_parameter("weight", {width});
  }
  X forward(X hidden_states, X gate) {
    const DType input_dtype = hidden_states.dtype();
    const Dims sizes = hidden_states.sizes();
    const I dim = sizes[-1];
    if (!norm_before_gate_) hidden_states = gated(hidden_states, gate);
    hidden_states = hidden_states.to_float();
    hidden_states = hidden_states.view({sizes[0], sizes[1], groups_, dim / groups_});
    X variance = hidden_states.pow(2).mean(-1, true);
    hidden_states = hidden_states.mul(variance.add(1e-6).rsqrt());
    hidden_states = X(parameter(0)).view({groups_, dim / groups_}).mul(hidden_states);
    hidden_states = hidden_states.view(sizes);
    if (norm_before_gate_) hidden_states = gated(hidden_states, gate);
    X result = hidden_states.to(input_dtype);
    return leave(std::move(result), hidden_states, gate, variance);
  }

 private:
  static X gated(const X& hidden_states, const X& gate) {
    X wide = gate.to_float();
    X opened = X(ops::silu(std::move(wide)));
    return hidden_states.mul(std::move(opened));
  }
  I groups_;
  bool norm_before_gate_;
};

class Mamba2Mixer final : public Mixer {
 public:
  Mamba2Mixer(const DecoderConfig& c, I layer, const Mamba2Form& form)
      : Mixer(form.type),
        form_(form),
        layer_(layer),
        groups_width_(checked_mul(form.groups, form.state)),
        conv_dim_(form.intermediate + 2 * groups_width_) {
    if (form.intermediate != checked_mul(form.heads, form.head_dim))
      throw c.file.error("head_dim", std::to_string(form.heads) + " heads of " + std::to_string(form.head_dim) +
                                         " do not make the mixer's width of " + std::to_string(form.intermediate));
    if (form.heads % form.groups != 0)
      throw c.file.error("n_groups", std::to_string(form.heads) + " heads do not make " + std::to_string(form.groups) + " equal groups");
    act = &child<Activation>("act", form.act);
    conv1d = &child<Conv1d>("conv1d", conv_dim_, conv_dim_, form.kernel, 1, form.kernel - 1, form.conv_bias, conv_dim_);
    in_proj = &child<Linear>("in_proj", c.hidden, form.intermediate + conv_dim_ + form.heads, form.bias);
    new_parameter("dt_bias", {form.heads});
    new_parameter("A_log", {form.heads});
    if (form.gate == Mamba2Form::Gate::in_norm)
      norm = &child<MambaRMSNormGated>("norm", form.intermediate, form.intermediate / form.groups);
    else if (form.gate != Mamba2Form::Gate::alone)
      falcon_norm = &child<FalconRMSNormGated>("norm", form.intermediate, form.groups, form.gate == Mamba2Form::Gate::after_norm);
    new_parameter("D", {form.heads});
    out_proj = &child<Linear>("out_proj", form.intermediate, c.hidden, form.out_bias.value_or(form.bias));
    if (form.scaled) new_buffer("mup_vector", {1, 1, form.intermediate + conv_dim_ + form.heads}, runtime().default_dtype);
  }

 protected:
  Pair forward(X hidden_states, const LayerCall& call) override {
    const I batch_size = hidden_states.size(0), seq_len = hidden_states.size(1);
    const DType dtype = hidden_states.dtype();
    const X conv_state = cached_state(call.cache, layer_, kConvState);
    const X recurrent_state = cached_state(call.cache, layer_, kRecurrentState);
    // 1. Gated MLP's linear projection
    if (form_.scaled) hidden_states = hidden_states.mul(1.0);
    X projected_states = (*in_proj)(hidden_states);
    if (form_.scaled) projected_states = projected_states.mul(X(buffer(0)));
    X A = X(parameter(kALog)).to_float().exp().neg();
    std::vector<X> parts = projected_states.split(Dims{form_.intermediate, conv_dim_, form_.heads}, -1);
    X gate = parts[0], hidden_states_B_C = parts[1], dt = parts[2];
    parts.clear();
    // 2. Convolution sequence transformation
    hidden_states_B_C = hidden_states_B_C.transpose(1, 2);
    if (conv_state && seq_len == 1) {
      hidden_states_B_C = causal_conv1d_update(hidden_states_B_C, conv_state, conv1d->weight(), conv1d->bias(), act);
    } else {
      if (call.cache) hidden_states_B_C = update_conv_state(*call.cache, layer_, hidden_states_B_C, form_.kernel);
      hidden_states_B_C = causal_conv1d_fn(hidden_states_B_C, conv1d->weight(), conv1d->bias(), act);
      if (call.cache) hidden_states_B_C = hidden_states_B_C.slice(2, -seq_len, std::nullopt);
    }
    // 3. SSM transformation
    hidden_states_B_C = hidden_states_B_C.transpose(1, 2);
    parts = hidden_states_B_C.split(Dims{form_.intermediate, groups_width_, groups_width_}, -1);
    hidden_states = parts[0];
    X B = parts[1], C = parts[2];
    parts.clear();
    const bool alone = form_.gate == Mamba2Form::Gate::alone;
    X scan_output, final_state, scan_result;
    if (recurrent_state && seq_len == 1) {
      hidden_states = hidden_states.view({batch_size, form_.heads, form_.head_dim});
      dt = dt.transpose(1, 2).expand({-1, -1, form_.head_dim});
      A = A.unsqueeze(-1).unsqueeze(-1).expand({-1, form_.head_dim, form_.state});
      B = B.view({batch_size, form_.groups, form_.state});
      C = C.view({batch_size, form_.groups, form_.state});
      X D = X(parameter(kD)).unsqueeze(-1).expand({-1, form_.head_dim});
      X dt_bias = X(parameter(kDtBias)).unsqueeze(-1).expand({-1, form_.head_dim});
      X z;
      if (alone) z = gate.view({batch_size, form_.heads, form_.head_dim});
      scan_output = mamba2_selective_state_update(recurrent_state, {hidden_states, dt, A, B, C, D, dt_bias, form_.chunk_size, {}, z});
      scan_output = scan_output.view({batch_size, 1, -1});
    } else {
      std::tie(scan_output, final_state) = mamba2_chunk_scan({hidden_states.view({batch_size, seq_len, form_.heads, form_.head_dim}),
                                                              dt,
                                                              A,
                                                              B.view({batch_size, seq_len, form_.groups, form_.state}),
                                                              C.view({batch_size, seq_len, form_.groups, form_.state}),
                                                              X(parameter(kD)),
                                                              X(parameter(kDtBias)),
                                                              form_.chunk_size,
                                                              recurrent_state,
                                                              {}});
      if (call.cache)
        update_recurrent_state(*call.cache, layer_, final_state);
      else
        final_state.reset();
      scan_result = scan_output;  // a name until the forward returns
      scan_output = scan_output.reshape({batch_size, seq_len, -1});
      if (alone) scan_output = scan_output.mul(X(ops::silu(gate)));
    }
    if (norm) scan_output = (*norm)(scan_output, gate);
    if (falcon_norm) scan_output = (*falcon_norm)(scan_output, gate);
    // 4. Final linear projection
    return {(*out_proj)(scan_output.to(dtype)), {}};
  }

 private:
  enum Parameter : std::size_t { kDtBias, kALog, kD };
  const Mamba2Form form_;
  I layer_, groups_width_, conv_dim_;
  Activation* act;
  Conv1d* conv1d;
  MambaRMSNormGated* norm = nullptr;
  FalconRMSNormGated* falcon_norm = nullptr;
  Linear *in_proj, *out_proj;
};

}  // namespace

Pair mamba2_chunk_scan(const ChunkScan& call) {
  const I sequence_length = call.hidden_states.size(1), num_heads = call.hidden_states.size(2), batch_size = call.hidden_states.size(0);
  const I head_dim = call.hidden_states.size(3), repeats = num_heads / call.B.size(2), chunk_size = call.chunk_size;
  X dt = call.dt.add(call.dt_bias.to(call.dt.dtype()));
  dt = aten("softplus", {Tensor(dt)});
  dt = aten("clamp", {Tensor(dt), 0.0, 1e30});
  X hidden_states = call.hidden_states.to_float();
  X B = repeat_groups(call.B, repeats);
  X C = repeat_groups(call.C, repeats);
  const I pad_size = (chunk_size - sequence_length % chunk_size) % chunk_size;
  X D_residual = call.D.unsqueeze(-1).mul(pad_tensor_by_size(hidden_states, pad_size));
  // Discretize x and A
  hidden_states = hidden_states.mul(dt.unsqueeze(-1).to_float());
  X A = call.A.to(hidden_states.dtype());
  A = std::move(A).mul(dt.to_float());
  {
    std::vector<X> chunks;
    for (X* x : {&hidden_states, &A, &B, &C}) chunks.push_back(reshape_into_chunks(*x, pad_size, chunk_size));
    hidden_states = chunks[0], A = chunks[1], B = chunks[2], C = chunks[3];
  }
  A = A.permute({0, 3, 1, 2});
  X A_cumsum = aten("cumsum", {Tensor(A), I{-1}});
  // 1. Compute the output for each intra-chunk (diagonal blocks)
  X L = segment_sum(A).exp();
  X G = einsum("bclhn,bcshn->bclsh", C, B);
  X M = G.mul(L.permute({0, 2, 3, 4, 1}));
  X Y_diag = einsum("bclsh,bcshp->bclhp", M, hidden_states);
  // 2. Compute the state for each intra-chunk
  X decay_states = A_cumsum.whole_slices(3).slice(3, -1, std::nullopt).sub(A_cumsum).exp();
  X B_decay = B.mul(decay_states.permute({0, -2, -1, 1}).unsqueeze(-1));
  X states = einsum("bclhn,bclhp->bchpn", B_decay, hidden_states);
  // 3. Compute the inter-chunk SSM recurrence
  X previous_states = call.initial_states ? call.initial_states.whole_slices(1).unsqueeze(1).to(states.dtype())
                                          : aten("zeros_like", {Tensor(states.whole_slices(1).slice(1, std::nullopt, 1))});
  states = cat({previous_states, states}, 1);
  X ends = aten("constant_pad_nd", {Tensor(A_cumsum.whole_slices(3).select(3, -1)), list_of(Dims{1, 0}), I{0}});
  X decay_chunk = segment_sum(std::move(ends)).exp();
  decay_chunk = decay_chunk.transpose(1, 3);
  X new_states = einsum("bzch,bzhpn->bchpn", decay_chunk, states);
  states = new_states.whole_slices(1).slice(1, std::nullopt, -1);
  X final_state = new_states.whole_slices(1).select(1, -1);
  // 4. Compute state -> output conversion per chunk
  X state_decay_out = A_cumsum.exp();
  X C_times_states = einsum("bclhn,bchpn->bclhp", C, states);
  X Y_off = C_times_states.mul(state_decay_out.permute({0, 2, 3, 1}).unsqueeze(-1));
  X output = Y_diag.add(Y_off).contiguous();
  output = output.reshape({batch_size, -1, num_heads, head_dim});
  output = output.add(D_residual);
  if (pad_size > 0) output = output.whole_slices(1).slice(1, std::nullopt, sequence_length);
  return {output, final_state};
}

X mamba2_selective_state_update(const X& state, const ChunkScan& call) {
  const I batch_size = call.hidden_states.size(0), num_heads = call.hidden_states.size(1), head_dim = call.hidden_states.size(2);
  const I num_groups = call.B.size(1), state_size = call.B.size(-1);
  auto grouped = [&](const X& given) {
    X x = given.reshape({batch_size, num_groups, 1, state_size});
    return x.expand({batch_size, num_groups, num_heads / num_groups, state_size}).contiguous();
  };
  X dt = call.dt.add(call.dt_bias.to(call.dt.dtype()));
  dt = aten("softplus", {Tensor(dt)});
  dt = dt.unsqueeze(-1);
  X dA = dt.to_float().mul(call.A.to_float()).exp();
  X B = grouped(call.B);
  B = B.reshape({batch_size, num_heads, 1, state_size});
  X dB = dt.mul(B);
  X dBx = dB.mul(call.hidden_states.unsqueeze(-1));
  X ssm_states = state.mul(dA).add(dBx);
  ops::copy_(state, ssm_states.to(state.dtype()), false);
  X C = grouped(call.C);
  C = C.reshape({batch_size, num_heads, state_size});
  ssm_states = ssm_states.to(C.dtype());
  X ssm_states_reshaped = ssm_states.view({batch_size * num_heads, head_dim, state_size});
  X C_reshaped = C.view({batch_size * num_heads, state_size, 1});
  X out = ssm_states_reshaped.bmm(C_reshaped);
  out = out.view({batch_size, num_heads, head_dim});
  out = out.add(call.hidden_states.mul(call.D)).to(out.dtype());
  if (call.z) out = out.mul(X(ops::silu(call.z)));
  return out.to(call.hidden_states.dtype());
}

MixerPtr make_mamba2_mixer(const DecoderConfig& c, I layer, const Mamba2Form& form) {
  return std::make_shared<Mamba2Mixer>(c, layer, form);
}

MixerPtr make_hybrid_mamba2_mixer(const DecoderConfig& c, I layer, std::string type) {
  const Config& f = c.file;
  Mamba2Form form;
  form.type = std::move(type);
  form.heads = f.size("mamba_n_heads");
  form.intermediate = checked_mul(f.size("mamba_expand"), c.hidden);
  const ConfigValue* d_head = f.find("mamba_d_head");
  const bool automatic = d_head && std::get_if<std::string>(&d_head->value);
  form.head_dim = automatic ? form.intermediate / form.heads : f.size("mamba_d_head");
  form.state = f.size("mamba_d_state");
  form.groups = f.size("mamba_n_groups");
  form.kernel = f.size("mamba_d_conv");
  form.chunk_size = f.size("mamba_chunk_size");
  form.bias = f.boolean_or("mamba_proj_bias", false);
  form.conv_bias = f.boolean_or("mamba_conv_bias", true);
  form.act = c.act;
  return make_mamba2_mixer(c, layer, form);
}

Config with_mamba2_layers(Config config, const std::function<bool(I)>& attends) {
  std::vector<std::string> given;
  if (config.has("layer_types")) given = config.texts("layer_types");
  ConfigValue::List types;
  for (I i = 0; i < layer_count(config); ++i) {
    bool attention = attends(i);
    if (i < I(given.size())) {
      const std::string& type = given[std::size_t(i)];
      attention = type == "attention" || type == "full_attention";
      if (!attention && type != "mamba" && type != "linear_attention")
        throw config.error("layer_types", "the types are full_attention and linear_attention, found '" + type.substr(0, 60) + "'");
    }
    types.push_back(ConfigValue{std::string(attention ? "full_attention" : "linear_attention")});
  }
  config.set("layer_types", ConfigValue{std::move(types)});
  return config;
}

}  // namespace memest::hf
