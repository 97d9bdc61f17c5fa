#include "spec/file_kind.h"

#include <algorithm>
#include <string_view>

#include "spec/zip_file.h"

namespace memest::spec {
namespace {

constexpr const char* kExport =
    "a .pt2 file of torch.export.save is one (scripts/export_pt2.py writes it), as is a config.json of transformers";

bool has(const ZipFile& zip, std::string_view name) {
  return std::any_of(zip.members().begin(), zip.members().end(), [&](auto& m) {
    const auto slash = m.name.find('/');
    return m.name == name || (slash != std::string::npos && std::string_view(m.name).substr(slash + 1) == name);
  });
}

Error of_zip(const std::string& path) {
  const ZipFile zip(path);  // says itself where it is cut off
  if (zip.members().empty()) return Error("the zip holds nothing");
  if (has(zip, "data.pkl") && has(zip, "constants.pkl"))
    return Error("this is a TorchScript archive, which memest does not read without its LibTorch plugin", kExport);
  if (has(zip, "data.pkl"))
    return Error("this is a checkpoint of torch.save: it holds weights and no model",
                 std::string("--mode infer tells what loading them takes; for more give memest the model: ") + kExport);
  if (has(zip, "model.json")) return Error("this is a TorchScript archive of a release before 1.3, which memest does not read", kExport);
  return Error("this zip holds no model that memest knows", kExport);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : char(c); });
  return text;
}

}  // namespace

Error not_a_model(const std::string& path, const std::string& head) {
  const std::string_view h(head);
  const auto first = head.find_first_not_of(" \t\r\n");
  if (h.starts_with("PK\3\4") || h.starts_with("PK\5\6")) {
    try {
      return of_zip(path);
    } catch (const Error& e) {
      return e;
    }
  }
  if (h.starts_with("version https://git-lfs.github.com/spec/"))
    return Error("this is a pointer of Git LFS, not the file itself", "fetch it with git lfs pull");
  if (first != std::string::npos) {
    const std::string start = lower(head.substr(first, 200));
    if (start.starts_with("<!doctype html") || start.starts_with("<html"))
      return Error("this is an HTML page, not a model: the download gave a page instead of the file");
    if (start.starts_with("<?xml") || start.starts_with("<")) return Error("this is XML or HTML, not a model");
  }
  if (h.starts_with("GGUF"))
    return Error("this is a GGUF file: it holds weights and no model",
                 std::string("--mode infer tells what loading it takes; for more give memest the model: ") + kExport);
  if (h.size() > 9 && h[8] == '{' && h.substr(4, 4) == std::string_view("\0\0\0\0", 4))
    return Error("this is a safetensors file: it holds weights and no model",
                 std::string("--mode infer tells what loading it takes; for more give memest the config.json beside it; ") + kExport);
  if (h.starts_with("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46"))
    return Error("this is a checkpoint of torch.save before 1.6: it holds weights and no model",
                 std::string("--mode infer tells what loading them takes; for more give memest the model: ") + kExport);
  if (h.starts_with("\x80") && h.size() > 1 && h[1] >= 2 && h[1] <= 5) return Error("this is a Python pickle, not a model", kExport);
  if (h.starts_with("\x1f\x8b")) return Error("this is a gzip file, not a model", "unpack it first");
  if (h.starts_with("PYTORCH1")) return Error("this is an archive of PyTorch 1.0, which memest does not read", kExport);
  if (h.size() > 2 && h[0] == 8 && h[1] > 0 && h[1] < 32 && (h[2] == 18 || h[2] == 'B' || h[2] == ':'))
    return Error("this is an ONNX model, which memest does not read", kExport);
  if (h.starts_with("\x89HDF\r\n")) return Error("this is an HDF5 file, not a PyTorch model", kExport);
  return Error("memest does not know this kind of file",
               "it reads memest JSON specs, config.json files of Hugging Face transformers, .pt2 files of torch.export and TorchScript");
}

}  // namespace memest::spec
