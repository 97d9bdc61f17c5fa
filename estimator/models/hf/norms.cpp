#include "models/hf/norms.h"

namespace memest::hf {
namespace {

class PythonNorm final : public Unary {
 public:
  PythonNorm(Norm kind, I width, std::string type) : Unary(std::move(type)), kind_(kind), width_(width) {
    if (kind != Norm::weightless && kind != Norm::layer_norm_plain) new_parameter("weight", {width});
    if (kind == Norm::layer_norm || kind == Norm::layer_norm_1p) new_parameter("bias", {width});
  }

 protected:
  X forward(X hidden_states) override {
    switch (kind_) {
      case Norm::llama: {
        const DType input_dtype = hidden_states.dtype();
        X variance;
        hidden_states = normalized(hidden_states, variance);
        X result = weight().mul(hidden_states.to(input_dtype));
        return leave(std::move(result), hidden_states, variance);
      }
      case Norm::olmo2: {
        const DType input_dtype = hidden_states.dtype();
        X variance;
        hidden_states = normalized(hidden_states, variance);
        X result = weight().mul(hidden_states).to(input_dtype);
        return leave(std::move(result), hidden_states, variance);
      }
      case Norm::helium: {
        const DType input_dtype = hidden_states.dtype();
        X variance;
        hidden_states = normalized(hidden_states, variance);
        X result = weight().to(DType::float32).mul(hidden_states).to(input_dtype);
        return leave(std::move(result), hidden_states, variance);
      }
      case Norm::gemma: {
        X output = squashed(hidden_states.to_float());
        output = output.mul(weight().to_float().add(1.0));
        return output.to(hidden_states.dtype());
      }
      case Norm::gemma3n: {
        X output = powered(hidden_states.to_float());
        output = output.mul(weight().to_float());
        return output.to(hidden_states.dtype());
      }
      case Norm::weightless: {
        X output = squashed(hidden_states.to_float());
        return std::move(output).to(hidden_states.dtype());
      }
      case Norm::t5: {
        X variance = hidden_states.to(DType::float32).pow(2).mean(-1, true);
        hidden_states = hidden_states.mul(variance.add(1e-6).rsqrt());
        if (is_reduced_floating(weight().dtype())) hidden_states = hidden_states.to(weight().dtype());
        X result = weight().mul(hidden_states);
        return leave(std::move(result), hidden_states, variance);
      }
      case Norm::cohere: {
        const DType input_dtype = hidden_states.dtype();
        hidden_states = hidden_states.to(DType::float32);
        X mean = hidden_states.mean(-1, true);
        X variance = hidden_states.sub(mean).pow(2).mean(-1, true);
        hidden_states = hidden_states.sub(mean).mul(variance.add(1e-6).rsqrt());
        hidden_states = weight().to(DType::float32).mul(hidden_states);
        X result = hidden_states.to(input_dtype);
        return leave(std::move(result), hidden_states, mean, variance);
      }
      case Norm::layer_norm: return ops::layer_norm(hidden_states, Dims{width_}, parameter(0), parameter(1), 1e-5, true);
      case Norm::layer_norm_no_bias: return ops::layer_norm(hidden_states, Dims{width_}, parameter(0), Tensor(), 1e-5, true);
      case Norm::layer_norm_1p: {
        X input = hidden_states, scale = weight().add(1.0), shift = X(parameter(1));
        if (const AutocastState autocast = runtime().autocast; autocast.enabled) {  // _cast_if_autocast_enabled
          input = input.to(autocast.dtype);
          X cast_scale = scale.to(autocast.dtype);
          shift = shift.to(autocast.dtype);
          scale = std::move(cast_scale);
        }
        AutocastContext no_autocast(false, runtime().autocast.dtype);
        X result = ops::layer_norm(input, Dims{width_}, scale, shift, 1e-5, true);
        return leave(std::move(result), input, scale, shift);
      }
      case Norm::layer_norm_plain: {
        const DType orig_dtype = hidden_states.dtype();
        X normed = ops::layer_norm(hidden_states.to(DType::float32), Dims{width_}, Tensor(), Tensor(), 1e-5, true);
        return std::move(normed).to(orig_dtype);
      }
      case Norm::rms_norm: return aten("rms_norm", {Tensor(hidden_states), list_of(Dims{width_}), Tensor(weight())});
    }
    return {};
  }

 private:
  X weight() const { return X(parameter(0)); }
  /// LlamaRMSNorm's first three lines: the square, its mean and the product each bound to a name.
  static X normalized(X hidden_states, X& variance) {
    hidden_states = hidden_states.to(DType::float32);
    variance = hidden_states.pow(2).mean(-1, true);
    hidden_states = hidden_states.mul(variance.add(1e-6).rsqrt());
    return hidden_states;
  }
  /// GemmaRMSNorm._norm: x * rsqrt(mean(x^2) + eps)
  static X squashed(X x) { return x.mul(x.pow(2).mean(-1, true).add(1e-6).rsqrt()); }
  /// Gemma3nRMSNorm._norm: x * pow(mean(x^2) + eps, -0.5)
  static X powered(X x) {
    X mean_squared = x.pow(2).mean(-1, true).add(1e-6);
    X result = x.mul(mean_squared.pow(-0.5));
    return leave(std::move(result), x, mean_squared);
  }

  Norm kind_;
  I width_;
};

}  // namespace

UnaryPtr make_norm(Norm kind, I width, std::string type) { return std::make_shared<PythonNorm>(kind, width, std::move(type)); }

}  // namespace memest::hf
