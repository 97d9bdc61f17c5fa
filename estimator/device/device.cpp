#include "device/device.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace memest {
namespace {

/// Resident threads of one SM (CUDA C++ Programming Guide, technical specifications per compute capability).
constexpr int threads_of(int major, int minor) {
  if (major == 7 && minor == 5) return 1024;
  if (major == 12 || (major == 8 && minor != 0)) return 1536;
  return 2048;
}

constexpr Bytes mib(Bytes count) { return count * kMiB; }
/// From PyTorch's out-of-memory text, which has two decimals of GiB: within 5 MiB.
constexpr Bytes oom_gib(double gib) { return Bytes(gib * 1024 + 0.5) * kMiB; }

struct Row {
  const char* name;
  const char* product;
  int major, minor;
  int multiprocessors;
  Bytes total_memory;
  Bytes context;
  std::string_view source;
};

// Total memory is what the driver leaves of the card: it differs by driver (an RTX 3090 had 24268 MiB in 2022, 24126 MiB in 2025) and with
// ECC; under Windows it is the full size. The newest Linux figure found is taken.
//
// The context grows with the number of SMs (it holds, among others, local memory for all resident threads) and by tens of MiB as kernels
// are loaded. Measured (CUDA 11.7 and later, lazy loading): V100 308, RTX 3090 256, RTX 6000 Ada 426 MiB. "table" is the virtual card's in
// the recorded truths, within what people report for that card. "by SMs" is interpolated: in MiB per SM 3.94 for cards with 2048 threads an
// SM (A100, H100, V100), 2.55 for Turing (T4), 230 + 0.48 per SM above 28 for sm_86 (RTX 3060, RTX 3090), 142 + 2.0 per SM for sm_89 (RTX
// 4060, RTX 6000 Ada), 3.0 for sm_120 (as RTX 6000 Ada; none measured).
constexpr Row kRows[] = {
    {"v100-16gb", "Tesla V100-SXM2-16GB", 7, 0, 80, mib(16160), mib(308), "device properties printed by torch; context as V100 32 GB"},
    {"v100-32gb", "Tesla V100-SXM2-32GB", 7, 0, 80, oom_gib(31.73), mib(308), "out-of-memory text, torch 2.x; context measured 2026"},
    {"t4", "Tesla T4", 7, 5, 40, mib(14910), mib(102), "mem_get_info; context: table"},
    {"rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", 7, 5, 68, mib(11012), mib(173), "printed by torch 2.1 (Ultralytics); context by SMs"},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", 8, 0, 108, mib(40447), mib(425), "mem_get_info; context: table"},
    {"a100-80gb", "NVIDIA A100-SXM4-80GB", 8, 0, 108, mib(81154), mib(425), "printed by torch 2.6 (Ultralytics); context: table"},
    {"a10", "NVIDIA A10", 8, 6, 72, oom_gib(22.06), mib(251), "out-of-memory text, torch 2.14; context by SMs"},
    {"a10g", "NVIDIA A10G", 8, 6, 80, mib(22587), mib(255), "device properties, torch 2.15; context by SMs"},
    {"a40", "NVIDIA A40", 8, 6, 84, mib(45416), mib(257), "device properties, torch 2.x; context by SMs"},
    {"a5000", "NVIDIA RTX A5000", 8, 6, 64, mib(24138), mib(247), "device properties, torch 2.x; context by SMs"},
    {"a6000", "NVIDIA RTX A6000", 8, 6, 84, mib(48676), mib(257), "device properties, torch 2.x; context by SMs"},
    {"rtx3060-12gb", "NVIDIA GeForce RTX 3060", 8, 6, 28, 12622168064, mib(230), "mem_get_info; context: table"},
    {"rtx3070", "NVIDIA GeForce RTX 3070", 8, 6, 46, oom_gib(7.79), mib(239),
     "out-of-memory text of 2023, newer drivers leave less; context by SMs"},
    {"rtx3080-10gb", "NVIDIA GeForce RTX 3080", 8, 6, 68, oom_gib(9.65), mib(249), "out-of-memory text, torch 2.x; context by SMs"},
    {"rtx3080-12gb", "NVIDIA GeForce RTX 3080", 8, 6, 70, 12489195520, mib(250), "as RTX 3080 Ti; context by SMs"},
    {"rtx3080ti", "NVIDIA GeForce RTX 3080 Ti", 8, 6, 80, 12489195520, mib(255),
     "printed by torch (YOLOv5): 11910.625 MiB; context by SMs"},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 8, 6, 82, mib(24126), mib(260),
     "mem_get_info; context: table (measured 256: InvokeAI issue #9413)"},
    {"l4", "NVIDIA L4", 8, 9, 58, oom_gib(22.03), mib(258), "out-of-memory text, torch 2.x; context by SMs"},
    {"l40", "NVIDIA L40", 8, 9, 142, oom_gib(44.40), mib(426), "out-of-memory text (QwenLM/Qwen3-VL issue #2097); context as RTX 6000 Ada"},
    {"l40s", "NVIDIA L40S", 8, 9, 142, oom_gib(44.39), mib(426), "out-of-memory text, torch 2.x; context as RTX 6000 Ada"},
    {"rtx6000-ada", "NVIDIA RTX 6000 Ada Generation", 8, 9, 142, 50865307648, mib(426),
     "mem_get_info and context, torch 2.10 (unsloth-zoo PR #1053)"},
    {"rtx4060-8gb", "NVIDIA GeForce RTX 4060", 8, 9, 24, 8318222336, mib(190), "mem_get_info; context: table"},
    {"rtx4060ti-8gb", "NVIDIA GeForce RTX 4060 Ti", 8, 9, 34, mib(7806), mib(210), "printed by torch 2.12 (Ultralytics); context by SMs"},
    {"rtx4060ti-16gb", "NVIDIA GeForce RTX 4060 Ti", 8, 9, 34, oom_gib(15.57), mib(210),
     "out-of-memory texts of 16 GB Ada cards; context by SMs"},
    {"rtx4070", "NVIDIA GeForce RTX 4070", 8, 9, 46, oom_gib(11.56), mib(234), "out-of-memory text, torch 2.x; context by SMs"},
    {"rtx4070ti-super", "NVIDIA GeForce RTX 4070 Ti SUPER", 8, 9, 66, mib(15934), mib(274), "device properties, torch 2.x; context by SMs"},
    {"rtx4080", "NVIDIA GeForce RTX 4080", 8, 9, 76, mib(16049), mib(294),
     "device properties, torch 2.0, newer drivers leave less; context by SMs"},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, mib(24202), mib(260), "mem_get_info; context: table"},
    {"h100-80gb", "NVIDIA H100 80GB HBM3", 9, 0, 132, mib(81090), mib(520), "device properties, torch 2.x; context: table"},
    {"h100-pcie", "NVIDIA H100 PCIe", 9, 0, 114, mib(81008), mib(449), "device properties, torch 2.x; context by SMs"},
    {"h200", "NVIDIA H200", 9, 0, 132, mib(143156), mib(520), "device properties, torch 2.x; context as H100"},
    {"h20", "NVIDIA H20", 9, 0, 78, mib(97285), mib(307), "device properties, torch 2.x; context by SMs"},
    {"b200", "NVIDIA B200", 10, 0, 148, mib(182631), mib(583), "device properties, torch 2.x; context by SMs"},
    {"rtx5060ti-16gb", "NVIDIA GeForce RTX 5060 Ti", 12, 0, 36, mib(15848), mib(108),
     "printed by torch 2.12 (Ultralytics); context by SMs"},
    {"rtx5080", "NVIDIA GeForce RTX 5080", 12, 0, 84, oom_gib(15.47), mib(252),
     "out-of-memory texts of 16 GB Blackwell cards; context by SMs"},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 12, 0, 170, oom_gib(31.36), mib(510),
     "out-of-memory text (TrajectoryCrafter issue #20); context by SMs"},
    {"rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, 188, mib(97250), mib(564),
     "device properties, torch 2.x; context by SMs"},
};

/// Small letters and digits only, without the maker's words.
std::string key_of(std::string_view name) {
  std::string key;
  for (char c : name)
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
      key += c;
    else if (c >= 'A' && c <= 'Z')
      key += char(c - 'A' + 'a');
  for (std::string_view word : {"nvidia", "geforce", "tesla"})
    if (const auto at = key.find(word); at != key.npos) key.erase(at, word.size());
  return key;
}

}  // namespace

Bytes Device::cublas_workspace(TorchVersion torch) const {
  constexpr Bytes kDefault = 2 * 4096 * kKiB + 8 * 16 * kKiB, kLarge = 32 * kMiB;
  if (capability() == 90) return kLarge;
  return (major == 10 || major == 12) && torch.large_workspace_on_blackwell() ? kLarge : kDefault;
}

const std::vector<Device>& device_catalogue() {
  static const std::vector<Device> devices = [] {
    std::vector<Device> all;
    for (const Row& row : kRows)
      all.push_back({row.name, row.product, row.total_memory, row.major, row.minor, row.multiprocessors, threads_of(row.major, row.minor),
                     row.context, row.source});
    return all;
  }();
  return devices;
}

const Device& find_device(std::string_view name) {
  const auto& devices = device_catalogue();
  const std::string key = key_of(name);
  auto matches = [&](std::string_view other) { return !key.empty() && key_of(other) == key; };
  for (const Device& device : devices)
    if (matches(device.name)) return device;
  for (const Device& device : devices)
    if (matches(device.product)) return device;
  std::vector<std::string> names;
  for (const Device& device : devices) names.push_back(device.name);
  // "h100" is the start of names; what only looks alike comes second.
  std::vector<std::string> starts;
  std::copy_if(names.begin(), names.end(), std::back_inserter(starts),
               [&](const std::string& n) { return !key.empty() && key_of(n).starts_with(key); });
  throw Error("unknown GPU '" + std::string(name) + "'", starts.empty() ? did_you_mean(name, names) : did_you_mean(name, starts));
}

const Device& default_device() {
  static const Device& device = find_device("a100-80gb");
  return device;
}

}  // namespace memest
