// Mixtures of experts: the routers and the blocks of modeling_*.py (transformers 5.24) by the form of their forward.
#pragma once
#include <memory>
#include <string>

#include "models/hf/decoder.h"
#include "models/hf/experts.h"

namespace memest::hf {

/// What a router returns, [tokens, experts], [tokens, k] twice.
struct Routing {
  X logits, weights, indices;
};

class Router : public Base {
 public:
  Router(std::string type, const DecoderConfig& c) : Base(std::move(type)), record_(c.router_logits) {}
  Routing operator()(X hidden_states) {
    Entered scope(*this);
    Routing result = forward(hidden_states);
    if (record_ && !runtime().recomputing) record_->push_back(result.logits);
    hidden_states.reset();
    return result;
  }

 protected:
  virtual Routing forward(X hidden_states) = 0;
  using Base::forward;

 private:
  std::shared_ptr<std::vector<X>> record_;
};
using RouterPtr = std::shared_ptr<Router>;

/// torch.topk(x, k, dim=-1): values and indices.
Pair topk(X x, I k, bool sorted = true);

/// The fields by which families name the same things.
struct MoeFields {
  const char* experts = "num_experts";
  const char* top_k = "num_experts_per_tok";
  const char* intermediate = "moe_intermediate_size";
};
struct MoeSizes {
  MoeSizes(const DecoderConfig& c, const MoeFields& fields);
  I experts, top_k, hidden, intermediate;
};

/// softmax, topk, and a division by the sum.
struct SoftmaxRouter {
  bool float_first = false;                 ///< softmax(logits.float()), as mixtral; else softmax(logits, dtype=float)
  bool normalize = true, cast_back = true;  ///< .to(router_logits.dtype)
};
RouterPtr make_softmax_router(const DecoderConfig& c, std::string type, const MoeSizes& sizes, SoftmaxRouter form);

/// Scores in fp32, the best groups, the experts of these (deepseek_v3).
struct GroupRouter {
  enum class Scores { sigmoid, softmax } scores = Scores::sigmoid;
  bool fp32_weight = true;  ///< the weight is of fp32 whatever the model is
  bool cast_to_fp32 = true;
  bool correction_bias = true;   ///< e_score_correction_bias
  bool optional_groups = false;  ///< only where n_group > 1
};
RouterPtr make_group_router(const DecoderConfig& c, std::string type, const MoeSizes& sizes, GroupRouter form);

std::shared_ptr<Experts> make_experts(const DecoderConfig& c, std::string type, const MoeSizes& sizes);

/// The order in which a block registers its parts and joins them.
struct MoeBlockForm {
  enum class Kind {
    mixtral,   ///< gate, experts; `hidden_states` is rebound
    olmoe,     ///< gate, experts; a name for the result
    qwen3,     ///< experts, gate; a name for the tokens
    deepseek,  ///< experts, gate, shared_experts; the shared expert after the others
    qwen2,     ///< gate, experts, shared_expert, shared_expert_gate
    ernie,     ///< gate, experts, shared_experts; the shared expert first
  } kind = Kind::mixtral;
  std::string type;
  const char* gate = "gate";
  double jitter = 0;  ///< of the tokens in training
};
UnaryPtr make_moe_block(const DecoderConfig& c, const MoeBlockForm& form, RouterPtr gate, std::shared_ptr<Experts> experts,
                        UnaryPtr shared = {});

/// Whether config.mlp_layer_types says "sparse" of a layer; `otherwise(layer)` where the file has no such list.
bool sparse_by_type(const DecoderConfig& c, I layer, bool (*otherwise)(I));
/// Frequencies for each layer type in use, in sorted order, over the part of a head that its rope_parameters name.
std::shared_ptr<RotaryEmbedding> rotary_of_types(const DecoderConfig& c, std::string type, double default_factor = 1.0);

/// load_balancing_loss_func without a mask.
X load_balancing_loss(const std::vector<X>& gate_logits, I num_experts, I top_k);
/// The same as a DecoderForm wants it.
std::function<X(const std::vector<X>&, const DecoderConfig&)> load_balancing(MoeFields fields = {});

}  // namespace memest::hf
