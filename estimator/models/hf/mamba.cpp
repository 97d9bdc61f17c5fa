// models/mamba, models/falcon_mamba.
#include "models/hf/mamba_mixer.h"
#include "models/hf/mamba_model.h"

namespace memest::hf {
namespace {

MambaMixerForm mamba_form(const DecoderConfig& c, const std::string& prefix) {
  const Config& f = c.file;
  MambaMixerForm form;
  form.prefix = prefix;
  form.intermediate = checked_mul(f.size_or("expand", 2), c.hidden);
  form.state = f.size("state_size");
  form.kernel = f.size("conv_kernel");
  form.rank = time_step_rank(f, "time_step_rank", c.hidden);
  form.bias = f.boolean_or("use_bias", false);
  form.conv_bias = f.boolean_or("use_conv_bias", true);
  form.act = c.act;
  return form;
}

NetworkPtr mamba(const Config& config, const Options& o) {
  return make_mamba_model(config, o, "Mamba", [](const DecoderConfig& c, I i) { return make_mamba_mixer(c, i, mamba_form(c, "Mamba")); });
}
const Family mamba_family{{"mamba"}, {{Task::causal_lm, "MambaForCausalLM", mamba}, {Task::base, "MambaModel", mamba}}};

NetworkPtr falcon_mamba(const Config& config, const Options& o) {
  return make_mamba_model(config, o, "FalconMamba", [](const DecoderConfig& c, I i) {
    MambaMixerForm form = mamba_form(c, "FalconMamba");
    form.norms = MambaMixerForm::Norms::weightless;
    return make_mamba_mixer(c, i, form);
  });
}
const Family falcon_mamba_family{
    {"falcon_mamba"}, {{Task::causal_lm, "FalconMambaForCausalLM", falcon_mamba}, {Task::base, "FalconMambaModel", falcon_mamba}}};

}  // namespace
}  // namespace memest::hf
