// Decoder layers that return their attention's weights beside the hidden states (falcon, bloom, mpt, gpt_neo, gpt_neox_japanese): what a
// layer returned lives until the next one has returned, since the model's frame holds the tuple.
#pragma once
#include "models/hf/decoder.h"

namespace memest::hf {

/// What such a layer's forward gets beside the hidden states.
struct BlockCall {
  X mask;
  X alibi;
  Pair position_embeddings;
  X position_ids;
  Cache* cache = nullptr;
};

/// GradientCheckpointingLayer whose forward returns (hidden_states, weights).
class DecoderBlock : public Base {
 public:
  DecoderBlock(std::string type, const Options& options)
      : Base(std::move(type)), checkpoint_(options.checkpoint), reentrant_(options.reentrant) {}
  Pair operator()(X hidden_states, BlockCall call);

 protected:
  virtual Pair forward(X hidden_states, const BlockCall& call) = 0;
  using Base::forward;

 private:
  bool checkpoint_, reentrant_;
};
using DecoderBlockPtr = std::shared_ptr<DecoderBlock>;

class BlockModel : public DecoderBody {
 public:
  BlockModel(std::string type, std::shared_ptr<const DecoderConfig> c) : DecoderBody(std::move(type)), c_(std::move(c)) {}

 protected:
  void add_blocks(const std::string& name, const std::function<DecoderBlockPtr(I)>& make);
  /// `for block in self.h: outputs = block(...); hidden_states = outputs[0]`; what the last one returned stays in `outputs`.
  X run_blocks(X hidden_states, const BlockCall& call, Pair& outputs);

  std::shared_ptr<const DecoderConfig> c_;

 private:
  std::vector<DecoderBlockPtr> blocks_;
};

/// The options of a class without sdpa: from_config takes eager attention.
inline Options eager_only(Options o) {
  o.attention = Attention::eager;
  return o;
}
/// The slopes of ALiBi for so many heads, as bloom and falcon make them: [heads], in fp32. Other names of the function go to `names`.
X alibi_slopes(I num_heads, std::vector<X>& names);
/// F.dropout, then residual + out.
X dropout_add(X x, X residual, double prob, bool training);
void check_heads(const DecoderConfig& c);

}  // namespace memest::hf
