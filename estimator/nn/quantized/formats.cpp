// Formats that a checkpoint of transformers 5.24 holds: fp8 (integrations/finegrained_fp8.py), GPTQ and AWQ (gptqmodel's QuantLinear and
// AwqGEMM layers). What is stored is exact; one fused kernel is assumed to multiply it, whose only allocation is the result.
#include "fake/kernel.h"
#include "nn/quantization.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

Tensor stored(const Dims& sizes, DType dtype) {
  CategoryScope category(Category::parameter);
  Scoped<const char*> op(runtime().op, "aten::_to_copy");
  return empty(sizes, dtype);
}
void become(T weight, T data) {
  weight->storage = data->storage;
  weight->dtype = data.dtype();
  weight->sizes = data.sizes();
  weight->strides = data.strides();
  weight->numel = data.numel();
  weight->offset = 0;
}

/// The forward with a fused kernel, and a backward that dequantises the whole weight.
class FusedWeight : public QuantizedWeight, public std::enable_shared_from_this<FusedWeight> {
 public:
  Tensor linear(T input, T, T bias) override {
    if (input.dim() == 0 || input.sizes().back() != in_)
      throw Error("the input " + describe(input) + " does not fit a layer of " + std::to_string(in_) + " inputs");
    auto fn = node(name_, {input}, {}, [self = shared_from_this()](Backward& w) {
      w.out[0] = self->gradient(w.grad[0]);
      w.grad[0].reset();
    });
    Tensor y;
    {
      NoGrad guard;
      Scoped<const char*> op(runtime().op, op_);
      runtime().count_flops(matmul_flops(1, in_ == 0 ? 0 : input.numel() / in_, in_, out_));
      y = empty(input.sizes().slice(0, input.dim() - 1) + Dims{out_}, input.dtype());
      if (bias) y = ops::add_(y, bias, 1);
    }
    fn.outputs({y});
    return y;
  }
  std::optional<DType> adapter_dtype() const override { return {}; }
  Bytes state_bytes() const override {
    Bytes sum = 0;
    for (auto& x : states_) sum += x->storage->bytes;
    return sum;
  }

 protected:
  FusedWeight(const char* node_name, const char* op) : name_(node_name), op_(op) {}
  virtual Tensor gradient(T grad) const = 0;
  I in_ = 0, out_ = 0;
  Tensors states_;  ///< beside the weight

 private:
  const char *name_, *op_;
};

class Fp8 final : public FusedWeight {
 public:
  explicit Fp8(const Quantization& q) : FusedWeight("FP8LinearFunctionBackward", "finegrained_fp8::matmul"), q_(q) {}
  void load(T weight, bool, bool) override {
    out_ = weight.sizes()[0], in_ = weight.sizes()[1];
    if (q_.static_scale) states_.push_back(stored(Dims{}, DType::float32));
    weight_ = stored({out_, in_}, DType::float8_e4m3fn);
    states_.push_back(stored(scales(), DType::float32));
    become(weight, weight_);
  }
  I half_bytes(T weight) const override { return checked_mul(weight.numel(), 2); }
  Adapter adapter() const override { return Adapter::plain; }

 private:
  Dims scales() const { return q_.block.empty() ? Dims{} : Dims{ceil_div(out_, q_.block[0]), ceil_div(in_, q_.block[1])}; }
  /// grad_output @ _dequantize_fp8_weight(...)
  Tensor gradient(T grad) const override {
    Tensor scale = ops::to_dtype(states_.back(), grad.dtype(), false, false, std::nullopt);
    Tensor w = ops::to_dtype(weight_, grad.dtype(), false, false, std::nullopt);
    if (!q_.block.empty()) {
      Scoped<const char*> op(runtime().op, "aten::repeat_interleave");
      scale = empty({checked_mul(scales()[0], q_.block[0]), scales()[1]}, grad.dtype());
    }
    scale.reset();
    return ops::matmul(grad, std::move(w));
  }
  const Quantization q_;
  Tensor weight_;
};

/// int32 words of packed weights and zero points, float16 scales for each group of inputs.
class Packed final : public FusedWeight {
 public:
  explicit Packed(const Quantization& q)
      : FusedWeight("QuantLinearBackward", q.method == Quantization::Method::awq ? "gptqmodel::awq_gemm" : "gptqmodel::gptq_gemm"), q_(q) {}
  void load(T weight, bool, bool transposed) override {
    out_ = weight.sizes()[transposed ? 1 : 0], in_ = weight.sizes()[transposed ? 0 : 1];
    const bool awq = q_.method == Quantization::Method::awq;
    const I groups = ceil_div(in_, q_.group_size > 0 ? q_.group_size : in_), zeros = checked_mul(out_, q_.bits) / 32;
    if (!awq) states_.push_back(stored({in_}, DType::int32));  // g_idx
    const Tensor words =
        stored(awq ? Dims{in_, checked_mul(out_, q_.bits) / 32} : Dims{checked_mul(in_, q_.bits) / 32, out_}, DType::int32);
    states_.push_back(stored({groups, zeros}, DType::int32));
    states_.push_back(stored({groups, out_}, DType::float16));
    become(weight, words);
  }
  I half_bytes(T weight) const override { return checked_mul(weight.numel(), q_.bits) / 4; }
  Adapter adapter() const override { return Adapter::converts; }

 private:
  Tensor gradient(T grad) const override {
    Tensor w;
    {
      Scoped<const char*> op(runtime().op, "gptqmodel::dequantize");
      w = empty({in_, out_}, grad.dtype());
    }
    return ops::matmul(grad, ops::t(w));
  }
  const Quantization q_;
};

}  // namespace

std::shared_ptr<QuantizedWeight> make_stored_format(const Quantization& q) {
  if (q.method == Quantization::Method::fp8) return std::make_shared<Fp8>(q);
  return std::make_shared<Packed>(q);
}

}  // namespace memest::nn
