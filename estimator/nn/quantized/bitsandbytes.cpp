// bitsandbytes 0.50: nn/modules.py Linear4bit and Linear8bitLt, autograd/_functions.py, functional.py, backends/cuda/ops.py.
#include <array>

#include "fake/kernel.h"
#include "nn/quantization.h"
#include "ops/ops.h"

namespace memest::nn {
namespace {
using I = std::int64_t;

/// A Python function that is no aten op, in the trace.
struct Named {
  explicit Named(const char* name) : scope(runtime().op, name) {}
  Scoped<const char*> scope;
};

/// parameter.data = data: the same tensor with another storage.
void set_data(T parameter, T data) {
  data->storage->categorize(parameter->storage->category);
  parameter->storage = data->storage;
  parameter->dtype = data.dtype();
  parameter->sizes = data.sizes();
  parameter->strides = data.strides();
  parameter->numel = data.numel();
  parameter->offset = data->offset;
}
/// What the weight's loading made for good.
void set_weight(T weight, T data) {
  set_data(weight, data);
  data->storage->categorize(Category::parameter);
}
Tensor keep(Tensor state) {
  state->storage->categorize(Category::parameter);
  return state;
}
Bytes bytes_of(T x) { return x ? x->storage->bytes : 0; }
Dims with_last(const Dims& sizes, I last) { return sizes.slice(0, sizes.size() - 1) + Dims{last}; }

/// The host's weight on the device in its type, or another: such a conversion is done on the host (native/cuda/Copy.cu).
Tensor on_device(T weight, DType dtype) {
  Named scope("aten::_to_copy");
  return empty(weight.sizes(), dtype);
}

class BitsandbytesWeight : public QuantizedWeight {
 protected:
  /// `bias.data = bias.data.to(x.dtype)`. A rehearsal on a runtime of its own changes nothing for good.
  Tensor bias_as(T bias, DType dtype) const {
    if (!bias || bias.dtype() == dtype) return bias;
    Tensor cast = ops::to_dtype(detached(bias), dtype, false, false, std::nullopt);
    if (owner_ != &runtime()) return cast;
    set_data(bias, cast);
    return bias;
  }
  const Runtime* owner_ = nullptr;  ///< that the weight was loaded in
};

// ---- 4 bit ---------------------------------------------------------------------------------------------------------------

constexpr I kBlock = 64;         // Params4bit blocksize
constexpr I kNestedBlock = 256;  // quantize_4bit: of the scales

/// functional.QuantState.
struct QuantState {
  Dims shape;  ///< [out_features, in_features]
  DType dtype = DType::float32;
  Tensor absmax;  ///< float32 for each block, or uint8 where nested
  Tensor code;    ///< float32[16]
  // where nested
  Tensor offset, absmax2, code2;  ///< float32[], float32 for each 256 scales, float32[256]
  bool nested() const { return bool(absmax2); }
};

/// backends/cuda/ops.py _gemm_4bit_use_custom_cuda: whether one kernel multiplies packed weights of [n, k] by m rows, or the weight is
/// dequantised first. Limits that bitsandbytes measured, by card.
bool takes_fused_kernel(DType dtype, I m, I n, I k) {
  const Device& device = runtime().settings.device;
  if (m > 1536 || k % kBlock != 0) return false;
  if (m <= 4) return true;
  const I sms = device.multiprocessors, blocks = (n + 63) / 64;
  const int cc = device.capability();
  if (dtype == DType::float32 || device.major < 7) return m < 8;
  if (device.major == 7 && (device.minor < 5 || dtype != DType::float16)) return m < 8;
  if (cc == 87 || device.major == 11) return false;
  if (device.major == 10) {
    if (blocks >= sms * 3) return m <= 32;
    return blocks >= sms && k < n && m <= 8;
  }
  const bool sm75 = cc == 75, sm80 = cc == 80, sm90 = device.major == 9, hbm = sm80 || sm90;
  if (n * k < I{4} << 20) {
    if (k * 2 < n) {
      if (hbm) {
        const bool few = blocks * 3 < sms;
        return m <= (sm80 ? (few ? 1536 : 512) : (few ? 512 : 320));
      }
      if (sm75) {
        if (blocks >= sms * 3) return m <= 320;
        return m <= (k >= 1024 ? 64 : k >= 704 ? 96 : 320);
      }
      if (blocks >= sms) return m <= 320;
      return m <= (blocks * k > sms * 320 ? 192 : 320);
    }
    const bool quarter = blocks * 4 <= sms;
    if (sm80 && quarter) return m <= (k >= n ? (blocks * 8 <= sms ? 32 : 128) : 384);
    if (sm75 && blocks < sms && m > 8) return m <= 64;
    if (quarter) return m <= (k < n || hbm ? 32 : 23);
    return blocks * 2 <= sms && m <= 16;
  }
  if (m > 512) return false;
  if (m < 8) {
    if (hbm && m >= 6 && blocks >= (sm90 ? 36 : 48)) {
      const bool under_75 = blocks * 4 < sms * 3, under_60 = blocks * 5 < sms * 3;
      if (k > n && under_75) return false;
      if (k == n && ((sm80 && under_60) || (sm90 && under_75 && !under_60))) return false;
    }
    return true;
  }
  if (sm75) {
    if (blocks >= sms * 3) return m <= (k < n ? 128 : 64);
    return m <= (blocks >= sms / 2 ? 64 : 32);
  }
  if (sm80) {
    if (blocks >= sms * 3) return m <= 128;
    if (blocks >= sms) return m <= (k < n ? 64 : 32);
    if (k >= n * 3 && blocks * 4 > sms) return false;
    if (k == n && blocks >= 48 && blocks * 5 < sms * 3) return false;
    if (blocks * 2 < sms) {
      if (k <= n) return m <= 128;
      if (blocks * 3 >= sms) return false;
    }
    if (blocks >= sms / 2 && k < n) return m <= 128;
    return m <= 16;
  }
  if (cc == 86) return m <= (blocks >= sms ? 128 : blocks >= sms / 2 ? 64 : 16);
  if (sm90) {
    if (blocks >= sms * 3) return m <= 64;
    if (blocks >= sms * 2) return m <= 48;
    if (blocks >= sms) return m <= 32;
    if (blocks < sms / 2 || (k >= n && blocks * 4 < sms * 3)) return false;
    return m <= 16;
  }
  if (cc == 121 && blocks >= sms) return m <= 256;
  const bool tall = k > n * 2;
  if (cc == 120) {
    if (blocks >= sms * 3) return m <= 256;
    if (blocks >= sms * 2) return m <= 128;
    if (blocks * 5 >= sms * 4) return m <= (k >= n ? 96 : 64);
    if (blocks >= sms / 2) return m <= (k * 2 >= n && blocks >= 128 ? 64 : 8);
    return m <= (tall && blocks > 64 ? 16 : 8);
  }
  if (blocks >= sms * 3) return m <= 256;
  if (blocks >= sms * 2) return m <= 128;
  if (blocks * 5 >= sms * 4) {
    if (tall || blocks >= 200) return m <= 128;
    return m <= (k < n ? 64 : sms >= 60 ? 128 : 32);
  }
  if (blocks >= sms / 2) return m <= (tall ? 64 : blocks >= 64 ? 8 : 32);
  if (k > n && blocks <= 48) return m <= (k >= n * 3 ? 12 : 10);
  return m <= (tall || blocks < 48 ? 16 : 8);
}

class Weight4bit final : public BitsandbytesWeight, public std::enable_shared_from_this<Weight4bit> {
 public:
  Weight4bit(const Quantization& q, std::shared_ptr<QuantizationMaps> maps)
      : nested_(q.nested),
        stored_(q.stored),
        storage_(q.storage),
        compute_(q.compute),
        compute_is_set_(q.compute),
        maps_(std::move(maps)) {}

  void load(T weight, bool pretrained, bool transposed) override {
    owner_ = &runtime();
    CategoryScope category(Category::temporary);
    if (stored_) return deserialize(weight);
    const Tensor value = on_device(weight, weight.dtype());  // the loader holds it until the weight is made of it
    quantize(weight, transposed && pretrained ? ops::contiguous(ops::t(value), MemoryFormat::contiguous) : value);
  }
  Bytes state_bytes() const override {
    Bytes sum = 0;
    for (auto& x : {state_.absmax, state_.code, state_.offset, state_.absmax2, state_.code2}) sum += bytes_of(x);
    return sum;
  }
  std::int64_t half_bytes(T weight) const override { return weight.numel(); }
  Adapter adapter() const override { return Adapter::clones; }
  std::optional<DType> adapter_dtype() const override { return compute_; }

  /// Linear4bit.forward
  Tensor linear(T input, T weight, T bias) override {
    if (input.dim() == 0) throw Error("both arguments to linear need to be at least 1D, but the input is " + describe(input));
    const DType inp_dtype = input.dtype();
    std::optional<DType> compute = compute_;
    if (!compute_is_set_) {  // set_compute_type, at the first forward
      if (inp_dtype != DType::float16) compute = inp_dtype;
      if (owner_ == &runtime()) compute_ = compute, compute_is_set_ = true;
    }
    Tensor x = compute ? ops::to_dtype(input, *compute, false, false, std::nullopt) : input;
    const Tensor b = bias_as(bias, x.dtype());
    Tensor y = matmul_4bit(x, weight, b);
    y = ops::to_dtype(std::move(y), inp_dtype, false, false, std::nullopt);
    return y;
  }

 private:
  /// Bnb4bitDeserialize, QuantState.from_dict: what the checkpoint holds, one by one. Its description is text of about 150 bytes, on the
  /// device until it was read.
  void deserialize(T weight) {
    Named scope("aten::_to_copy");
    state_.shape = weight.sizes();
    state_.dtype = weight.dtype();
    const I n = weight.numel(), blocks = ceil_div(n, kBlock);
    const Tensor out = empty({(n + 1) / (2 * item_size(storage_)), 1}, storage_);
    state_.absmax = keep(empty({blocks}, nested_ ? DType::uint8 : DType::float32));
    if (nested_) {
      state_.absmax2 = keep(empty({ceil_div(blocks, kNestedBlock)}, DType::float32));
      state_.code2 = keep(empty({256}, DType::float32));
    }
    state_.code = keep(empty({16}, DType::float32));
    const Tensor description = empty({nested_ ? 154 : 82}, DType::uint8);
    if (nested_) state_.offset = keep(empty(Dims{}, DType::float32));
    set_weight(weight, out);
  }
  /// Params4bit._quantize, functional.quantize_4bit
  void quantize(T weight, Tensor w) {
    Named scope("bitsandbytes::quantize_4bit");
    state_.shape = w.sizes();
    state_.dtype = w.dtype();
    const I n = w.numel(), blocks = ceil_div(n, kBlock);
    Tensor absmax = empty({blocks}, DType::float32);
    Tensor out = empty({(n + 1) / (2 * item_size(storage_)), 1}, storage_);
    state_.code = keep(empty({16}, DType::float32));
    {  // get_4bit_type: data.div_(data.abs().max())
      Tensor magnitude = empty({16}, DType::float32);
      Tensor largest = empty(Dims{}, DType::float32);
      magnitude.reset();
    }
    if (nested_) {
      state_.offset = keep(ops::mean(absmax, std::nullopt));
      Tensor centred = ops::sub(absmax, state_.offset, 1);
      quantize_scales(centred);
      centred.reset();
      absmax.reset();
    } else {
      state_.absmax = keep(std::move(absmax));
    }
    set_weight(weight, out);
  }
  /// quantize_blockwise(absmax - offset, blocksize=256)
  void quantize_scales(T scales) {
    if (!maps_->dynamic) maps_->dynamic = keep(empty({256}, DType::float32));
    state_.absmax2 = keep(empty({ceil_div(scales.numel(), kNestedBlock)}, DType::float32));
    state_.absmax = keep(empty(scales.sizes(), DType::uint8));
    state_.code2 = keep(empty({256}, DType::float32));
  }

  /// bitsandbytes::gemm_4bit on CUDA.
  Tensor gemm_4bit(T a, T bias) const {
    const I k = a.sizes().back(), n = state_.shape[0], m = k == 0 ? 0 : a.numel() / k;
    if (k != state_.shape[1])
      throw Error("A inner dim (" + std::to_string(k) + ") does not match weight (" + std::to_string(state_.shape[1]) + ")");
    if (takes_fused_kernel(a.dtype(), m, n, k)) {
      Named scope("bitsandbytes::gemm_4bit");
      const Tensor dense = ops::contiguous(a, MemoryFormat::contiguous);
      runtime().count_flops(matmul_flops(1, m, k, n));
      return empty(with_last(a.sizes(), n), a.dtype());
    }
    // _dequant_linear_fallback
    Tensor absmax_dq, absmax, dequantized;
    {
      Named scope("bitsandbytes::dequantize_4bit");
      if (state_.nested()) {
        absmax_dq = empty(state_.absmax.sizes(), DType::float32);
        absmax = ops::add(absmax_dq, state_.offset, 1);
      }
      dequantized = empty(state_.shape, a.dtype());
    }
    Tensor y = ops::linear(a, dequantized, bias);
    absmax.reset();
    absmax_dq.reset();
    dequantized.reset();
    return y;
  }

  /// autograd._functions.matmul_4bit and MatMul4Bit
  Tensor matmul_4bit(T a, T weight, T bias) {
    if (a.numel() == 0) return empty(with_last(a.sizes(), state_.shape[0]), a.dtype());
    auto fn = node("MatMul4BitBackward", {a, bias ? bias : Tensor()}, {}, [self = shared_from_this()](Backward& w) {
      if (w.needs(1)) w.out[1] = ops::sum_dim(w.grad[0], Dims{0}, false, w.dtype(1));
      if (w.needs(0)) w.out[0] = self->gradient(w.grad[0]);
      w.grad[0].reset();  // a Python function takes its gradients over
    });
    (void)weight;
    Tensor y;
    {
      NoGrad guard;
      y = gemm_4bit(a, bias);
    }
    if (!fn) return y;
    y = detached(y);
    fn.outputs({y});
    return y;
  }
  /// grad_output @ dequantize_4bit(B).to(grad_output.dtype)
  Tensor gradient(T grad) const {
    Tensor w;
    {
      Named scope("bitsandbytes::dequantize_4bit");
      Tensor absmax;
      if (state_.nested()) absmax = empty(state_.absmax.sizes(), DType::float32);
      w = empty(state_.shape, state_.dtype);
    }
    w = ops::to_dtype(std::move(w), grad.dtype(), false, false, std::nullopt);
    return ops::matmul(grad, std::move(w));
  }

  const bool nested_, stored_;
  const DType storage_;
  std::optional<DType> compute_;
  bool compute_is_set_;
  std::shared_ptr<QuantizationMaps> maps_;
  QuantState state_;
};

// ---- 8 bit ---------------------------------------------------------------------------------------------------------------

class Weight8bit final : public BitsandbytesWeight, public std::enable_shared_from_this<Weight8bit> {
 public:
  explicit Weight8bit(const Quantization& q) : threshold_(q.threshold), stored_(q.stored) {}

  void load(T weight, bool pretrained, bool transposed) override {
    owner_ = &runtime();
    CategoryScope category(Category::temporary);
    if (stored_) {
      Named scope("aten::_to_copy");
      scb_ = keep(empty({weight.sizes()[0]}, DType::float32));
      cb_ = empty(weight.sizes(), DType::int8);
      const Tensor format = empty({1}, DType::uint8);  // weight_format
      return set_weight(weight, cb_);
    }
    Tensor value;  // Bnb8bitQuantize: loaded in its own type, quantised by way of the host
    if (pretrained) value = on_device(weight, weight.dtype());
    Dims sizes = weight.sizes();
    if (transposed) std::swap(sizes[0], sizes[1]);
    Tensor b;
    {
      Named scope("aten::_to_copy");
      b = empty(sizes, DType::float16);
    }
    Named scope("bitsandbytes::int8_vectorwise_quant");
    scb_ = keep(empty({sizes[0]}, DType::float32));
    cb_ = empty(sizes, DType::int8);
    b.reset();
    set_weight(weight, cb_);
  }
  Bytes state_bytes() const override { return bytes_of(scb_); }
  std::int64_t half_bytes(T weight) const override { return checked_mul(weight.numel(), 2); }
  Adapter adapter() const override { return Adapter::converts; }
  std::optional<DType> adapter_dtype() const override { return {}; }

  /// Linear8bitLt.forward
  Tensor linear(T input, T, T bias) override {
    if (input.dim() != 2 && input.dim() != 3)
      throw Error("bitsandbytes multiplies int8 matrices of two or three dimensions, found " + describe(input),
                  "use --quant nf4, or leave the layer as it is with --quant int8,skip=NAME");
    const Tensor b = bias_as(bias, input.dtype());
    return matmul_8bit(input, b);
  }

 private:
  /// What MatMul8bitLt keeps for backward stands in attributes of its context: it goes with the node, not with its saved tensors, and no
  /// hook of saved tensors sees it.
  class MatMul8bitLtBackward final : public Node {
   public:
    MatMul8bitLtBackward(std::shared_ptr<const Weight8bit> weight, T a, T bias)
        : Node("MatMul8bitLtBackward", next_sequence_nr()), weight_(std::move(weight)), shape_(a.sizes()) {
      next.push_back(gradient_edge(a));
      next.push_back(gradient_edge(bias));
    }
    void keep_input(Tensor a) {
      if (a->storage->category == Category::temporary) a->storage->categorize(Category::activation);
      a_ = std::move(a);
    }
    Tensors apply(Tensors& grads) override {
      Tensors out(2);
      Tensor grad = std::move(grads[0]);  // a Python function takes its gradients over
      if (next[1].node) out[1] = ops::sum_dim(grad, Dims{0}, false, next[1].node->inputs[std::size_t(next[1].nr)].dtype);
      if (grad.dim() == 3) grad = ops::contiguous(ops::reshape(grad, {-1, grad.sizes().back()}), MemoryFormat::contiguous);
      if (next[0].node) out[0] = weight_->gradient(grad, a_.dtype(), shape_);
      return out;
    }

   private:
    std::shared_ptr<const Weight8bit> weight_;
    Dims shape_;
    Tensor a_;
  };

  Tensor gradient(T grad, DType dtype_a, const Dims& shape) const {
    Tensor cb = ops::to_copy(cb_, dtype_a);
    {
      Tensor scale = ops::mul_scalar(ops::unsqueeze(scb_, 1), 1.0 / 127.0);
      cb = ops::mul_(cb, scale);
    }
    Tensor g = ops::to_dtype(grad, dtype_a, false, false, std::nullopt);
    return ops::view(ops::matmul(std::move(g), std::move(cb)), shape);
  }

  struct Quantized {
    Tensor ca, sca;
  };
  /// functional.int8_vectorwise_quant(A.to(float16), threshold), with no outliers found.
  Quantized vectorwise(T a) const {
    const Tensor a16 = ops::to_dtype(a, DType::float16, false, false, std::nullopt);
    Named scope("bitsandbytes::int8_vectorwise_quant");
    Quantized q;
    q.sca = empty({a16.numel() / a16.sizes().back()}, DType::float32);
    q.ca = empty(a16.sizes(), DType::int8);
    if (threshold_ > 0) {
      auto call = [](const char* op, Values arguments) { return Unbox<Tensor>::from(call_op(op, arguments, {})); };
      Tensor outliers = call("aten::abs", {a16});
      outliers = call("aten::ge", {std::move(outliers), threshold_});
      const Tensor any = call("aten::any", {outliers});
    }
    return q;
  }

  /// bitsandbytes::int8_scaled_mm: int8_linear_matmul, then int8_mm_dequant.
  Tensor scaled_mm(T ca, T bias, DType dtype) const {
    const I k = cb_.sizes()[1], n = cb_.sizes()[0], m = ca.numel() / k;
    Named scope("bitsandbytes::int8_scaled_mm");
    Tensor out_i32 = empty(with_last(ca.sizes(), n), DType::int32);
    if (k % 4 != 0) {  // cuBLASLt does not take it
      Tensor b = ops::to_float(ca);
      Tensor w = ops::to_float(cb_);
      Tensor result = ops::matmul(std::move(b), ops::t(std::move(w)));
      result = ops::to_copy(result, DType::int32);
    } else {
      runtime().count_flops(matmul_flops(1, m, k, n));
    }
    Tensor out = empty(out_i32.sizes(), DType::float16);
    if (bias && bias.dtype() != DType::float16) out = ops::add_(out, bias, 1);
    out = ops::to_dtype(std::move(out), dtype, false, false, std::nullopt);
    return out;
  }

  Tensor matmul_8bit(T input, T bias) {
    if (input.sizes().back() != cb_.sizes()[1])
      throw Error("int8_linear_matmul: inner dimensions do not match: " + describe(input) + " and " + describe(cb_));
    if (input.numel() == 0) return empty(with_last(input.sizes(), cb_.sizes()[0]), input.dtype());
    Ref<MatMul8bitLtBackward> fn;
    if (runtime().grad_mode && (input.requires_grad() || (bias && bias.requires_grad())))
      fn = Ref<MatMul8bitLtBackward>(new MatMul8bitLtBackward(shared_from_this(), input, bias));
    Tensor y;
    {
      NoGrad guard;
      Tensor a = input;
      if (a.dim() == 3) a = ops::reshape(a, {-1, a.sizes().back()});
      Quantized q = vectorwise(a);
      y = scaled_mm(q.ca, bias, a.dtype());
      if (fn && fn->next[0].node) fn->keep_input(detached(a));
      if (input.dim() == 3) y = ops::reshape(y, with_last(input.sizes(), cb_.sizes()[0]));
      a.reset();
      q.ca.reset();
      q.sca.reset();
    }
    y = detached(y);
    if (fn) set_history(Ref<Node>(fn.get()), std::array<Tensor, 1>{y});
    return y;
  }

  const double threshold_;
  const bool stored_;
  Tensor cb_, scb_;
};

}  // namespace

std::shared_ptr<QuantizedWeight> make_bitsandbytes(const Quantization& quantization, std::shared_ptr<QuantizationMaps> maps) {
  if (quantization.four_bit()) return std::make_shared<Weight4bit>(quantization, std::move(maps));
  return std::make_shared<Weight8bit>(quantization);
}

}  // namespace memest::nn
