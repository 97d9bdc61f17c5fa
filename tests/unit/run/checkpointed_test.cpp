// Checkpointed modules and saved-tensor hooks against PyTorch 2.15's CUDA build: three steps of torchvision's resnet18, batch 8, AdamW,
// cross_entropy; each block's forward replaced by torch.utils.checkpoint.checkpoint of it, or the model's forward and loss under
// save_on_cpu(pin_memory=True) or under hooks that keep int8 or fp8 with one scale for each tensor. Bytes as recorded there.
#include <catch2/catch.hpp>

#include "estimate.h"

using namespace memest;
using run::SavedTensors;

namespace {
struct Recorded {
  const char* checkpoint;
  SavedTensors saved;
  Bytes allocated, reserved, forward_end;  ///< max_memory_allocated, max_memory_reserved, memory_allocated after the last forward
};
constexpr Recorded kRecorded[] = {
    {"none", SavedTensors::kept, 354732032, 452984832, 321369600},
    {"modules=layer*.*", SavedTensors::kept, 311672832, 406847488, 242653696},
    {"modules=layer*.*,reentrant", SavedTensors::kept, 316243968, 408944640, 242588160},
    {"modules=layer*.*,keep=convolution", SavedTensors::kept, 335473664, 432013312, 297966080},
    {"none", SavedTensors::cpu, 271487488, 341835776, 146494976},
    {"none", SavedTensors::int8, 289790976, 373293056, 228783616},
    {"none", SavedTensors::fp8, 289790976, 373293056, 228783616},
    {"modules=layer*.*", SavedTensors::cpu, 271503872, 314572800, 146576896},
};
}  // namespace

TEST_CASE("checkpointed modules and saved-tensor hooks take what PyTorch takes") {
  for (auto& recorded : kRecorded) {
    INFO(recorded.checkpoint << " " << name_of(recorded.saved));
    EstimateRequest request;
    request.spec = std::string(MEMEST_SOURCE_DIR) + "/model_specs/resnet18.json";
    request.run.batches = {8};
    request.run.loss = "cross_entropy";
    request.run.checkpointing = run::parse_checkpointing(recorded.checkpoint);
    request.run.saved_tensors = recorded.saved;
    request.read.sizes = {{"batch", 8}};
    const Estimate e = estimate(request);
    CHECK(e.replay.allocated_peak == recorded.allocated);
    CHECK(e.replay.reserved_peak == recorded.reserved);
    Bytes forward_end = 0;
    for (std::size_t i = 0; i < e.trace().phases.size(); ++i)
      if (e.trace().phases[i].phase == Phase::forward) forward_end = e.replay.phases[i].end;
    CHECK(forward_end == recorded.forward_end);
  }
}

TEST_CASE("parts that --checkpoint cannot mean are refused") {
  for (const char* text : {"some", "full,reentrant,keep=matmul", "full,keep=softmax", "every=0", "segments=x", "none,reentrant"})
    CHECK_THROWS_AS(run::parse_checkpointing(text), Error);
  CHECK(run::parse_checkpointing("every=2,keep=matmul,keep=attention").text() == "every=2,keep=matmul,keep=attention");
}
