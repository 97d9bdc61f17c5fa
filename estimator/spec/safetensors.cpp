#include "spec/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/error.h"
#include "spec/json_stream.h"

namespace memest::spec {
namespace {

struct StoredType {
  DType dtype;
  int bits;
};
/// safetensors/src/tensor.rs Dtype. Types that PyTorch packs or has no name for are uint8.
const std::map<std::string_view, StoredType> kTypes{{"BOOL", {DType::boolean, 8}},
                                                    {"F4", {DType::uint8, 4}},
                                                    {"F6_E2M3", {DType::uint8, 6}},
                                                    {"F6_E3M2", {DType::uint8, 6}},
                                                    {"U8", {DType::uint8, 8}},
                                                    {"I8", {DType::int8, 8}},
                                                    {"F8_E5M2", {DType::float8_e5m2, 8}},
                                                    {"F8_E4M3", {DType::float8_e4m3fn, 8}},
                                                    {"F8_E8M0", {DType::uint8, 8}},
                                                    {"I16", {DType::int16, 16}},
                                                    {"U16", {DType::uint16, 16}},
                                                    {"F16", {DType::float16, 16}},
                                                    {"BF16", {DType::bfloat16, 16}},
                                                    {"I32", {DType::int32, 32}},
                                                    {"U32", {DType::uint32, 32}},
                                                    {"F32", {DType::float32, 32}},
                                                    {"C64", {DType::complex64, 64}},
                                                    {"F64", {DType::float64, 64}},
                                                    {"I64", {DType::int64, 64}},
                                                    {"U64", {DType::uint64, 64}}};

/// The tensors' bytes follow one another from 0 to the end of the data (safetensors/src/tensor.rs, Metadata::validate).
void check_ranges(std::vector<std::pair<std::int64_t, std::int64_t>> ranges, std::uint64_t data) {
  std::sort(ranges.begin(), ranges.end());
  std::int64_t end = 0;
  for (auto& [from, to] : ranges) {
    if (from != end) throw Error(fmt::format("the tensors {} at byte {} of the data", from < end ? "overlap" : "leave a hole", from));
    end = to;
  }
  if (std::uint64_t(end) != data) throw Error(fmt::format("the tensors end at byte {} of {} of data", end, data));
}

}  // namespace

std::vector<SafeTensor> read_safetensors_header(const std::string& path) {
  std::vector<SafeTensor> tensors;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  constexpr std::uint64_t kMostHeader = 100'000'000;  // the library's own limit
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto size = std::uint64_t(file.tellg());
  file.seekg(0);
  unsigned char raw[8];
  if (!file || size < 8 || !file.read(reinterpret_cast<char*>(raw), 8))
    throw Error("a safetensors file has a header; this one is too short");
  std::uint64_t left = 0;
  for (int i = 8; i-- > 0;) left = left << 8 | raw[i];
  if (left > kMostHeader || left > size - 8) throw Error(fmt::format("the header would have {} bytes: the file is cut off", left));
  const std::uint64_t data = size - 8 - left;
  JsonStream json(
      [&](char* into, std::size_t most) {
        const auto count = std::size_t(std::min<std::uint64_t>(most, left));
        file.read(into, std::streamsize(count));
        left -= count;
        return std::size_t(file.gcount());
      },
      "header");
  json.object([&](std::string_view key) {
    if (key == "__metadata__") return json.skip();
    const std::string name(key);
    std::optional<StoredType> type;
    std::string stored_type;
    Dims sizes;
    std::vector<std::int64_t> offsets;
    json.object([&](std::string_view field) {
      if (field == "dtype") {
        stored_type = std::string(json.string());
        auto it = kTypes.find(stored_type);
        if (it == kTypes.end()) throw json.error(fmt::format("unknown dtype '{}'", stored_type.substr(0, 40)));
        type = it->second;
      } else if (field == "shape") {
        json.array([&] {
          sizes.push_back(json.integer());
          if (sizes.back() < 0) throw json.error("a size is negative");
        });
      } else if (field == "data_offsets") {
        json.array([&] { offsets.push_back(json.integer()); });
      } else {
        json.skip();
      }
    });
    if (!type || offsets.size() != 2) throw json.error("a tensor has \"dtype\", \"shape\" and \"data_offsets\"");
    const Bytes bytes = ceil_div(checked_mul(sizes.numel(), std::int64_t{type->bits}), 8);
    if (type->bits < 8) sizes = Dims{bytes};
    if (offsets[0] < 0 || offsets[1] < offsets[0] || std::uint64_t(offsets[1]) > data || offsets[1] - offsets[0] != bytes)
      throw json.error(
          fmt::format("its {} bytes do not lie at {} to {} of {}: the file is damaged or cut off", bytes, offsets[0], offsets[1], data));
    tensors.push_back({name, stored_type, type->dtype, sizes, bytes});
    ranges.emplace_back(offsets[0], offsets[1]);
  });
  json.finish();
  check_ranges(std::move(ranges), data);
  return tensors;
}

}  // namespace memest::spec
