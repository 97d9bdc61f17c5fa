// The norms that families write in Python themselves, by the form of their forward.
#pragma once
#include "models/hf/module.h"

namespace memest::hf {

enum class Norm {
  llama,       ///< weight * x_hat.to(input_dtype)
  olmo2,       ///< (weight * x_hat).to(input_dtype)
  helium,      ///< (weight.float() * x_hat).to(input_dtype)
  gemma,       ///< x_hat * (1.0 + weight.float()), x_hat from x.float(); type_as
  gemma3n,     ///< x_hat * weight.float(); type_as
  weightless,  ///< x_hat; type_as
  t5,          ///< x * rsqrt(mean(x.float()^2)), cast only where the weight is of half precision
  cohere,      ///< LayerNorm without bias, in fp32
  layer_norm,  ///< nn.LayerNorm
  layer_norm_no_bias,
  layer_norm_1p,     ///< nn.LayerNorm with weight + 1, in the autocast type (nemotron)
  layer_norm_plain,  ///< nn.LayerNorm without parameters, of olmo: in fp32, cast back
  rms_norm,          ///< nn.RMSNorm
};
UnaryPtr make_norm(Norm kind, I width, std::string type);

}  // namespace memest::hf
