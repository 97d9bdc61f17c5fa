// models/mamba2.
#include "models/hf/mamba2_mixer.h"
#include "models/hf/mamba_model.h"

namespace memest::hf {
namespace {

NetworkPtr mamba2(const Config& config, const Options& o) {
  return make_mamba_model(config, o, "Mamba2", [](const DecoderConfig& c, I i) {
    const Config& f = c.file;
    Mamba2Form form;
    form.type = "Mamba2Mixer";
    form.heads = f.size("num_heads");
    form.head_dim = f.size("head_dim");
    form.state = f.size("state_size");
    form.groups = f.size_or("n_groups", 1);
    form.kernel = f.size("conv_kernel");
    form.chunk_size = f.size("chunk_size");
    form.intermediate = checked_mul(f.size_or("expand", 2), c.hidden);
    form.bias = f.boolean_or("use_bias", false);
    form.conv_bias = f.boolean_or("use_conv_bias", true);
    form.act = c.act;
    return make_mamba2_mixer(c, i, form);
  });
}
const Family mamba2_family{{"mamba2"}, {{Task::causal_lm, "Mamba2ForCausalLM", mamba2}, {Task::base, "Mamba2Model", mamba2}}};

}  // namespace
}  // namespace memest::hf
