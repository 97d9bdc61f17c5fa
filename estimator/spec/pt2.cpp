// The reader of .pt2 files: what torch.export.save wrote.
#include "spec/json_stream.h"
#include "spec/pt2_archive.h"
#include "spec/pt2_program.h"
#include "spec/reader.h"

namespace memest::spec {
namespace {

class Pt2 final : public Reader {
 public:
  Pt2() : Reader("pt2") {}
  bool recognises(const std::string& path, const std::string& head) const override {
    if (!head.starts_with("PK")) return false;
    try {
      return pt2::Archive::recognises(ZipFile(path));
    } catch (const Error&) {
      return false;  // read_model says what is wrong with it
    }
  }
  std::unique_ptr<nn::Model> read(const std::string& path, const ReadOptions& options) const override {
    const pt2::Archive archive(path);
    auto stream = archive.zip().open(archive.program());
    JsonStream json([&](char* into, std::size_t most) { return stream.read(into, most); }, archive.program().name);
    const auto program = pt2::read_program(json, [](const std::string& target) { return !pt2::knows_target(target); });
    auto model = pt2::build(*program, archive.payloads(), options);
    model->kind = name;
    return model;
  }
};
const Pt2 reader;

}  // namespace
}  // namespace memest::spec
