#include "models/diffusers/parts.h"

#include "base/text.h"

namespace memest::diffusers {
namespace {

struct Named {
  const char *name, *type;
  X (*f)(X);
};
constexpr Named kActivations[] = {{"swish", "SiLU", [](X x) { return X(ops::silu(std::move(x))); }},
                                  {"silu", "SiLU", [](X x) { return X(ops::silu(std::move(x))); }},
                                  {"mish", "Mish", [](X x) { return aten("mish", {Tensor(std::move(x))}); }},
                                  {"gelu", "GELU", [](X x) { return X(ops::gelu(std::move(x), "none")); }},
                                  {"relu", "ReLU", [](X x) { return X(ops::relu(std::move(x))); }},
                                  {"gelu_tanh", "GELU", [](X x) { return X(ops::gelu(std::move(x), "tanh")); }}};
const Named& named(const std::string& name) {
  std::vector<std::string> names;
  for (auto& a : kActivations) {
    if (name == a.name) return a;
    names.emplace_back(a.name);
  }
  throw Error("unknown activation '" + name.substr(0, 60) + "'", did_you_mean(name, names));
}

}  // namespace

Activation::Activation(const std::string& act_fn) : Module(named(act_fn).type), f_(named(act_fn).f) {}

X PythonRmsNorm::forward(X hidden_states) {
  X variance = hidden_states.to(DType::float32).pow(2).mean(-1, true);
  hidden_states = hidden_states.mul(variance.add(1e-6).rsqrt());
  if (is_reduced_floating(parameter(0).dtype())) hidden_states = hidden_states.to(parameter(0).dtype());
  hidden_states = hidden_states.mul(X(parameter(0)));
  return leave(hidden_states, variance);
}

// ---- embeddings ------------------------------------------------------------------------------------------------------------

X timestep_embedding(X timesteps, I embedding_dim, bool flip_sin_to_cos) {
  const I half_dim = embedding_dim / 2;
  X exponent = hf::arange(half_dim, DType::float32).mul(-9.2);
  exponent = exponent.div(double(half_dim));
  X emb = exponent.exp();
  emb = timesteps.whole_slices(1).unsqueeze(1).to_float().mul(emb.unsqueeze(0));
  emb = emb.mul(1);
  X sin = aten("sin", {Tensor(emb)});
  emb = cat({std::move(sin), aten("cos", {Tensor(emb)})}, -1);
  if (flip_sin_to_cos) {
    X second = emb.whole_slices(1).slice(1, half_dim, std::nullopt);
    emb = cat({std::move(second), emb.whole_slices(1).slice(1, std::nullopt, half_dim)}, -1);
  }
  if (embedding_dim % 2 == 1) emb = aten("constant_pad_nd", {Tensor(emb), list_of(Dims{0, 1, 0, 0}), 0.0});
  return leave(emb, exponent);
}

TimestepEmbedding::TimestepEmbedding(I in_channels, I time_embed_dim, const TimestepEmbeddingForm& form) : Module("TimestepEmbedding") {
  linear_1 = &child<Linear>("linear_1", in_channels, time_embed_dim);
  if (form.cond_proj_dim) cond_proj = &child<Linear>("cond_proj", *form.cond_proj_dim, in_channels, false);
  act = &child<Activation>("act", form.act_fn);
  linear_2 = &child<Linear>("linear_2", time_embed_dim, time_embed_dim);
  if (!form.post_act_fn.empty()) post_act = &child<Activation>("post_act", form.post_act_fn);
}
X TimestepEmbedding::forward(X sample, const X& condition) {
  if (condition) sample = sample.add((*cond_proj)(condition));
  sample = (*linear_1)(sample);
  sample = (*act)(sample);
  sample = (*linear_2)(sample);
  if (post_act) sample = (*post_act)(sample);
  return sample;
}

TextProjection::TextProjection(I in_features, I hidden_size, const std::string& act_fn)
    : Module("PixArtAlphaTextProjection"),
      linear_1(child<Linear>("linear_1", in_features, hidden_size)),
      act_1(child<Activation>("act_1", act_fn)),
      linear_2(child<Linear>("linear_2", hidden_size, hidden_size)) {}
X TextProjection::forward(const X& caption) {
  X hidden_states = linear_1(caption);
  hidden_states = act_1(hidden_states);
  hidden_states = linear_2(hidden_states);
  return hidden_states;
}

TimeTextEmbeddings::TimeTextEmbeddings(I embedding_dim, I pooled_projection_dim, bool guides)
    : Module(guides ? "CombinedTimestepGuidanceTextProjEmbeddings" : "CombinedTimestepTextProjEmbeddings") {
  time_proj = &child<Timesteps>("time_proj", 256, true);
  timestep_embedder = &child<TimestepEmbedding>("timestep_embedder", 256, embedding_dim);
  if (guides) guidance_embedder = &child<TimestepEmbedding>("guidance_embedder", 256, embedding_dim);
  text_embedder = &child<TextProjection>("text_embedder", pooled_projection_dim, embedding_dim, "silu");
}
X TimeTextEmbeddings::forward(const X& timestep, const X& guidance, const X& pooled_projection) {
  const DType dtype = pooled_projection.dtype();
  X timesteps_proj = (*time_proj)(timestep);
  X timesteps_emb = (*timestep_embedder)(timesteps_proj.to(dtype));
  X guidance_proj, guidance_emb, time_guidance_emb;
  if (guidance_embedder) {
    guidance_proj = (*time_proj)(guidance);
    guidance_emb = (*guidance_embedder)(guidance_proj.to(dtype));
    time_guidance_emb = timesteps_emb.add(guidance_emb);
  }
  X pooled_projections = (*text_embedder)(pooled_projection);
  X conditioning = (guidance_embedder ? time_guidance_emb : timesteps_emb).add(pooled_projections);
  return leave(conditioning, timesteps_proj, timesteps_emb, guidance_proj, guidance_emb, time_guidance_emb, pooled_projections);
}

// ---- norms -----------------------------------------------------------------------------------------------------------------

X modulated(X x, const X& scale, const X& shift) {
  return std::move(x).mul(scale.whole_slices(1).unsqueeze(1).add(1)).add(shift.whole_slices(1).unsqueeze(1));
}

AdaLayerNorm::AdaLayerNorm(I embedding_dim, I parts)
    : Base(parts == 3   ? "AdaLayerNormZeroSingle"
           : parts == 6 ? "AdaLayerNormZero"
                        : "SD35AdaLayerNormZeroX"),
      parts_(parts) {
  silu = &child<Activation>("silu", "silu");
  linear = &child<Linear>("linear", embedding_dim, checked_mul(parts, embedding_dim));
  norm = &child<LayerNorm>("norm", embedding_dim, 1e-6, false);
}
AdaLayerNorm::Result AdaLayerNorm::operator()(X hidden_states, X emb) {
  Entered scope(*this);
  emb = (*linear)((*silu)(emb));
  // shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp, shift_msa2, scale_msa2, gate_msa2
  std::vector<X> chunks = emb.chunk(parts_, 1);
  Result result;
  result.gate_msa = chunks[2];
  if (parts_ >= 6) {
    result.shift_mlp = chunks[3];
    result.scale_mlp = chunks[4];
    result.gate_mlp = chunks[5];
  }
  if (parts_ == 9) {
    X norm_hidden_states = (*norm)(hidden_states);
    result.hidden_states = modulated(norm_hidden_states, chunks[1], chunks[0]);
    result.hidden_states2 = modulated(norm_hidden_states, chunks[7], chunks[6]);
    result.gate_msa2 = chunks[8];
  } else {
    result.hidden_states = modulated((*norm)(hidden_states), chunks[1], chunks[0]);
  }
  return result;
}

AdaLayerNormContinuous::AdaLayerNormContinuous(I dim) : Module("AdaLayerNormContinuous") {
  silu = &child<Activation>("silu", "silu");
  linear = &child<Linear>("linear", dim, checked_mul(2, dim));
  norm = &child<LayerNorm>("norm", dim, 1e-6, false);
}
X AdaLayerNormContinuous::forward(X x, const X& conditioning_embedding) {
  X emb = (*linear)((*silu)(conditioning_embedding).to(x.dtype()));
  std::vector<X> chunks = emb.chunk(2, 1);
  x = (*norm)(x);
  X scale = chunks[0].add(1);
  scale = scale.whole_slices(1).unsqueeze(1);
  return std::move(x).mul(std::move(scale)).add(chunks[1].whole_slices(1).unsqueeze(1));
}

// ---- attention and feed-forward --------------------------------------------------------------------------------------------

namespace {

class Gelu final : public hf::Unary {
 public:
  Gelu(I dim_in, I dim_out, std::string approximate)
      : Unary("GELU"), approximate_(std::move(approximate)), proj(child<Linear>("proj", dim_in, dim_out)) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = proj(hidden_states);
    hidden_states = X(ops::gelu(hidden_states, approximate_));
    return hidden_states;
  }

 private:
  std::string approximate_;
  Linear& proj;
};

class Geglu final : public hf::Unary {
 public:
  Geglu(I dim_in, I dim_out) : Unary("GEGLU"), proj(child<Linear>("proj", dim_in, checked_mul(2, dim_out))) {}

 protected:
  X forward(X hidden_states) override {
    hidden_states = proj(hidden_states);
    std::vector<X> chunks = hidden_states.chunk(2, -1);
    hidden_states = chunks[0];
    const X gate = chunks[1];
    return hidden_states.mul(X(ops::gelu(gate, "none")));
  }

 private:
  Linear& proj;
};

std::shared_ptr<nn::ModuleList> empty_list() { return std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}); }

}  // namespace

FeedForward::FeedForward(I dim, const std::string& activation_fn, double dropout_p) : Module("FeedForward") {
  const I inner_dim = checked_mul(dim, 4);
  if (activation_fn == "geglu")
    act_fn = std::make_shared<Geglu>(dim, inner_dim);
  else
    act_fn = std::make_shared<Gelu>(dim, inner_dim, activation_fn == "gelu-approximate" ? "tanh" : "none");
  dropout = std::make_shared<hf::Dropout>(dropout_p);
  project_out = std::make_shared<Linear>(inner_dim, dim);
  auto net = register_module("net", empty_list());
  net->append(act_fn);
  net->append(dropout);
  net->append(project_out);
}
X FeedForward::forward(X hidden_states) {
  hidden_states = (*act_fn)(hidden_states);
  hidden_states = (*dropout)(hidden_states);
  hidden_states = (*project_out)(hidden_states);
  return hidden_states;
}

ToOut::ToOut(nn::Module& owner, I in, I out, double dropout)
    : linear_(std::make_shared<Linear>(in, out)), dropout_(std::make_shared<hf::Dropout>(dropout)) {
  auto list = owner.register_module("to_out", empty_list());
  list->append(linear_);
  list->append(dropout_);
}

X attend(X query, X key, X value) {
  return ops::scaled_dot_product_attention(std::move(query), std::move(key), std::move(value), Tensor(), 0.0, false, std::nullopt, false);
}

Attention::Attention(const AttentionForm& form) : Module("Attention"), form_(form) {
  const I inner_dim = checked_mul(form.heads, form.dim_head), cross = form.cross_attention_dim.value_or(form.query_dim);
  if (form.norm_num_groups) group_norm = &child<GroupNorm>("group_norm", *form.norm_num_groups, form.query_dim, form.eps);
  to_q = &child<Linear>("to_q", form.query_dim, inner_dim, form.bias);
  to_k = &child<Linear>("to_k", cross, inner_dim, form.bias);
  to_v = &child<Linear>("to_v", cross, inner_dim, form.bias);
  to_out = ToOut(*this, inner_dim, form.query_dim, form.dropout);
}
X Attention::forward(X hidden_states, X encoder_hidden_states) {
  X residual = hidden_states;
  const int input_ndim = hidden_states.dim();
  const I batch_size = hidden_states.size(0);
  I channel = 0, height = 0, width = 0;
  if (input_ndim == 4) {
    channel = hidden_states.size(1), height = hidden_states.size(2), width = hidden_states.size(3);
    hidden_states = hidden_states.view({batch_size, channel, checked_mul(height, width)}).transpose(1, 2);
  }
  if (group_norm) hidden_states = (*group_norm)(hidden_states.transpose(1, 2)).transpose(1, 2);
  X query = (*to_q)(hidden_states);
  if (!encoder_hidden_states) encoder_hidden_states = hidden_states;
  X key = (*to_k)(encoder_hidden_states);
  X value = (*to_v)(encoder_hidden_states);
  const Dims heads{batch_size, -1, form_.heads, form_.dim_head};
  query = query.view(heads).transpose(1, 2);
  key = key.view(heads).transpose(1, 2);
  value = value.view(heads).transpose(1, 2);
  hidden_states = attend(query, key, value);
  hidden_states = hidden_states.transpose(1, 2).reshape({batch_size, -1, form_.heads * form_.dim_head});
  hidden_states = hidden_states.to(query.dtype());
  hidden_states = to_out(hidden_states);
  if (input_ndim == 4) hidden_states = hidden_states.transpose(-1, -2).reshape({batch_size, channel, height, width});
  if (form_.residual_connection) hidden_states = hidden_states.add(residual);
  hidden_states = hidden_states.div(1.0);  // rescale_output_factor
  return leave(hidden_states, encoder_hidden_states, residual, query, key, value);
}

}  // namespace memest::diffusers
