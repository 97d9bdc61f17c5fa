// How the weights of linear layers are stored: --quant, or a configuration's own quantization_config.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/adapter.h"

namespace memest::nn {

struct Quantization {
  enum class Method { int8, nf4, fp4, fp8, gptq, awq };
  Method method = Method::nf4;
  bool nested = false;                           ///< double quantisation: the scales of 4-bit blocks are quantised too
  std::optional<DType> compute;                  ///< that 4-bit weights are multiplied in; none: the input's own
  std::optional<DType> dtype;                    ///< of the weights before, and of what is not quantised; none: as --precision says
  DType storage = DType::uint8;                  ///< that packed 4-bit weights are held in
  double threshold = 6;                          ///< llm_int8_threshold; 0: no search for outliers
  std::optional<std::vector<std::string>> skip;  ///< names of layers that stay as they are; none: transformers' default
  std::vector<std::string> also_skip;            ///< besides these
  bool stored = false;                           ///< the checkpoint holds the quantised weights already
  std::vector<std::int64_t> block;               ///< fp8: rows and columns of one scale; empty: one for the tensor
  bool static_scale = false;                     ///< fp8: a scale of the inputs is stored
  int bits = 4;                                  ///< gptq
  std::int64_t group_size = 128;                 ///< gptq, awq: inputs of one scale; -1: all
  bool bitsandbytes() const { return method == Method::int8 || four_bit(); }
  bool four_bit() const { return method == Method::nf4 || method == Method::fp4; }
  std::string text() const;
};
/// "nf4-dq,compute=bf16,dtype=bf16,skip=lm_head+score"; throws Error.
Quantization parse_quantization(const std::string& text);

/// What the quantised layers of one process share: bitsandbytes' name2qmap.
struct QuantizationMaps {
  Tensor dynamic;  ///< float32[256]
};
/// The weight of one layer.
std::shared_ptr<QuantizedWeight> make_quantized(const Quantization& quantization, std::shared_ptr<QuantizationMaps> maps);
/// nn/quantized/bitsandbytes.cpp (bitsandbytes 0.50: Linear4bit, Linear8bitLt), nn/quantized/formats.cpp (the others).
std::shared_ptr<QuantizedWeight> make_bitsandbytes(const Quantization& quantization, std::shared_ptr<QuantizationMaps> maps);
std::shared_ptr<QuantizedWeight> make_stored_format(const Quantization& quantization);

}  // namespace memest::nn
