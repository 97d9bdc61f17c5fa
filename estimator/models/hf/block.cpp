#include "models/hf/block.h"

#include "fake/checkpoint.h"

namespace memest::hf {

Pair DecoderBlock::operator()(X hidden_states, BlockCall call) {
  Entered scope(*this);
  if (checkpoint_ && training && runtime().grad_mode) {
    call.cache = nullptr;
    Region region = [this, call](const Tensors& inputs) {
      Pair result = forward(X(inputs[0]), call);
      return Tensors{result.first, result.second};
    };
    Tensors results =
        reentrant_ ? checkpoint_reentrant(std::move(region), {hidden_states}) : memest::checkpoint(std::move(region), {hidden_states});
    return {X(results[0]), X(results[1])};
  }
  Pair result = forward(hidden_states, call);
  hidden_states.reset();
  return result;
}

void BlockModel::add_blocks(const std::string& name, const std::function<DecoderBlockPtr(I)>& make) {
  auto list = register_module(name, std::make_shared<nn::ModuleList>(std::vector<nn::ModulePtr>{}));
  for (I i = 0; i < c_->layers; ++i) {
    blocks_.push_back(make(i));
    list->append(blocks_.back());
  }
}
X BlockModel::run_blocks(X hidden_states, const BlockCall& call, Pair& outputs) {
  for (auto& block : blocks_) {
    outputs = (*block)(hidden_states, call);
    hidden_states = outputs.first;
  }
  return hidden_states;
}

X alibi_slopes(I num_heads, std::vector<X>& names) {
  I closest_power_of_2 = 1;
  while (closest_power_of_2 * 2 <= num_heads) closest_power_of_2 *= 2;
  X base = full({}, 0.5, DType::float32);
  X powers = arange(closest_power_of_2, DType::int32);
  X slopes = aten("pow", {Tensor(base), Tensor(powers)});
  names = {base, powers};
  if (closest_power_of_2 == num_heads) return slopes;
  X extra_base = full({}, 0.5, DType::float32);
  X extra_powers = arange(std::min(closest_power_of_2, num_heads - closest_power_of_2), DType::int32);
  X extra = aten("pow", {Tensor(extra_base), Tensor(extra_powers)});
  slopes = cat({slopes, std::move(extra)}, 0);
  names.push_back(extra_base);
  names.push_back(extra_powers);
  return slopes;
}

X dropout_add(X x, X residual, double prob, bool training) {
  X out = ops::dropout(x, prob, training);
  X sum = residual.add(out);
  return leave(std::move(sum), x, residual, out);
}

void check_heads(const DecoderConfig& c) {
  if (c.hidden % c.heads != 0)
    throw c.file.error("num_attention_heads", "the hidden size " + std::to_string(c.hidden) + " is not a multiple of " +
                                                  std::to_string(c.heads) + " attention heads");
}

}  // namespace memest::hf
