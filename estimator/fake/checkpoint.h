// torch.utils.checkpoint of 2.15: a region is a closure that is run again in backward.
#pragma once
#include <functional>

#include "fake/autograd.h"
#include "fake/kernel.h"

namespace memest {

/// What runs in the region; gets the tensors that the caller gave, returns the region's output.
using Region = std::function<Tensors(const Tensors&)>;

/// use_reentrant=False: tensors that the region saves are replaced by holders; the first unpack runs the region again and stops as soon
/// as the last saved tensor is there. The inputs live as long as a saved tensor of the region does. Results of the kernels in `keep` are
/// kept and not computed again (context_fn=create_selective_checkpoint_contexts with a list of operators).
Tensors checkpoint(Region region, const Tensors& inputs, const std::vector<KernelKind>& keep = {});
/// use_reentrant=True (CheckpointFunction): forward without grad, a node that saves the inputs, a nested backward inside it.
Tensors checkpoint_reentrant(Region region, const Tensors& inputs);

}  // namespace memest
