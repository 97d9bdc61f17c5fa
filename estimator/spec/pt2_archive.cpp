#include "spec/pt2_archive.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "spec/json_stream.h"
#include "spec/pickle.h"

namespace memest::spec::pt2 {
namespace {

constexpr std::string_view kLegacy = "serialized_exported_program.json";

/// The folder that every member lies in, with its slash; "" where there is none.
std::string root_of(const ZipFile& zip, std::string_view member) {
  for (auto& m : zip.members()) {
    if (m.name == member) return "";
    const auto slash = m.name.find('/');
    if (slash != std::string::npos && m.name.substr(slash + 1) == member) return m.name.substr(0, slash + 1);
  }
  return "/";
}

std::string_view trimmed(std::string_view t) {
  const auto first = t.find_first_not_of(" \t\r\n"), last = t.find_last_not_of(" \t\r\n");
  return first == t.npos ? std::string_view() : t.substr(first, last - first + 1);
}

}  // namespace

bool Archive::recognises(const ZipFile& zip) { return root_of(zip, "archive_format") != "/" || root_of(zip, kLegacy) != "/"; }

Archive::Archive(const std::string& path) : zip_(path) {
  root_ = root_of(zip_, "archive_format");
  if (root_ == "/") {
    root_ = root_of(zip_, kLegacy);
    if (root_ == "/") throw Error("the archive holds no exported program");
    program_ = zip_.find(root_ + std::string(kLegacy));
    return;
  }
  const std::string format(trimmed(zip_.read(*zip_.find(root_ + "archive_format"), 1024)));
  if (format != "pt2") throw Error(fmt::format("the archive's format is '{}', not pt2", format.substr(0, 40)));
  if (const ZipMember* member = zip_.find(root_ + "archive_version")) {
    const std::string version(trimmed(zip_.read(*member, 1024)));
    if (version != "0")
      throw Error(fmt::format("the archive has version {}; memest reads version 0 (torch 2.8 to 2.15)", version.substr(0, 40)));
  }
  const std::string folder = root_ + "models/";
  std::vector<std::string> names;
  bool compiled = false;
  for (auto& m : zip_.members()) {
    if (m.name.starts_with(root_ + "data/aotinductor/")) compiled = true;
    if (!m.name.starts_with(folder) || !m.name.ends_with(".json") || m.name.find('/', folder.size()) != std::string::npos) continue;
    names.push_back(m.name.substr(folder.size(), m.name.size() - folder.size() - 5));
  }
  if (names.empty())
    throw Error(
        compiled ? "the archive holds a compiled package (AOTInductor) and no program" : "the archive holds no program (models/*.json)",
        "save what torch.export.export returns with torch.export.save");
  const bool usual = std::find(names.begin(), names.end(), "model") != names.end();
  if (!usual && names.size() > 1)
    throw Error("the archive holds several programs, and none is named 'model': " + join(names, ", ").substr(0, 200),
                "save one of them alone");
  name_ = usual ? "model" : names[0];
  program_ = zip_.find(folder + name_ + ".json");
}

std::map<std::string, std::string> Archive::payloads() const {
  std::map<std::string, std::string> payloads;
  if (name_.empty()) {
    if (auto* weights = zip_.find(root_ + "serialized_state_dict.pt")) pickled(*weights, payloads);
    return payloads;
  }
  const std::string folder = root_ + "data/weights/" + name_;
  for (const char* suffix : {"_weights_config.json", "_model_param_config.json"})
    if (auto* config = zip_.find(folder + suffix)) configured(*config, payloads);
  if (payloads.empty())
    if (auto* weights = zip_.find(folder + ".pt")) pickled(*weights, payloads);
  return payloads;
}

/// 2.9 to 2.15: a JSON file says which payload holds which weight.
void Archive::configured(const ZipMember& config, std::map<std::string, std::string>& payloads) const {
  auto stream = zip_.open(config);
  JsonStream json([&](char* into, std::size_t most) { return stream.read(into, most); }, config.name);
  json.object([&](std::string_view key) {
    if (key != "config") return json.skip();
    json.object([&](std::string_view fqn) {
      std::string& payload = payloads[std::string(fqn)];
      json.object([&](std::string_view field) {
        if (field == "path_name")
          payload = json.string();
        else
          json.skip();
      });
    });
  });
  json.finish();
}

/// 2.1 to 2.8: torch.save wrote the weights; its pickle says which storage each tensor shows.
void Archive::pickled(const ZipMember& weights, std::map<std::string, std::string>& payloads) const {
  constexpr std::uint64_t kMostPickle = 256 << 20;
  if (weights.method != 0) return;  // somebody packed the file again: the tied ones count twice
  const ZipFile inner(zip_, weights);
  const std::string root = root_of(inner, "data.pkl");
  if (root == "/") return;
  for (auto& t : saved_tensors(inner.read(*inner.find(root + "data.pkl"), kMostPickle))) payloads[t.name] = t.storage;
}

}  // namespace memest::spec::pt2
