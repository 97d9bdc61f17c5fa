// Reading exported programs: the JSON stream, zip archives, size expressions, pickles. Whole files are read by tests/pt2/run.py.
#include <catch2/catch.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "spec/json_stream.h"
#include "spec/pickle.h"
#include "spec/pt2_schema.h"
#include "spec/reader.h"
#include "spec/zip_file.h"
#include "unit/fake/fixture.h"

using namespace memest;
using namespace memest::spec;
namespace fs = std::filesystem;

namespace {

/// Gives the text in pieces of one byte, so that every value crosses an edge.
JsonStream stream(const std::string& text) {
  auto at = std::make_shared<std::size_t>(0);
  return JsonStream(
      [text, at](char* into, std::size_t most) {
        const std::size_t count = std::min(most, text.size() - *at);
        std::memcpy(into, text.data() + *at, count);
        *at += count;
        return count;
      },
      "text");
}
std::string skipped(const std::string& text) {
  try {
    JsonStream json = stream(text);
    json.skip();
    json.finish();
    return "";
  } catch (const Error& e) {
    return e.where() + ": " + e.message();
  }
}

void little(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i, value >>= 8) out.push_back(char(value & 255));
}
/// A zip of one stored member.
std::string zip_of(const std::string& name, const std::string& text, std::uint32_t crc) {
  std::string local = "PK\3\4", central = "PK\1\2", out;
  little(local, 20, 2), little(local, 0, 8), little(local, crc, 4), little(local, text.size(), 4), little(local, text.size(), 4);
  little(local, name.size(), 2), little(local, 0, 2);
  out = local + name + text;
  little(central, 20, 2), little(central, 20, 2), little(central, 0, 8), little(central, crc, 4), little(central, text.size(), 4);
  little(central, text.size(), 4), little(central, name.size(), 2), little(central, 0, 12), little(central, 0, 4);
  const std::size_t start = out.size();
  out += central + name;
  const std::size_t size = out.size() - start;
  out += "PK\5\6";
  little(out, 0, 4), little(out, 1, 2), little(out, 1, 2), little(out, size, 4), little(out, start, 4), little(out, 0, 2);
  return out;
}
class File {
 public:
  explicit File(const std::string& bytes)
      : path_(fs::temp_directory_path() / ("memest_pt2_test_" + std::to_string(std::hash<std::string>{}(bytes)))) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~File() { fs::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::string text_item(const std::string& text) {
  std::string out = "X";
  little(out, text.size(), 4);
  return out + text;
}
/// A dictionary of one tensor, as torch.save pickles it.
std::string pickled(const std::string& name, std::int64_t rows, std::int64_t numel) {
  auto number = [](std::int64_t v) {
    std::string out = "J";
    little(out, std::uint64_t(v), 4);
    return out;
  };
  const std::string id = "(" + text_item("storage") + "ctorch\nHalfStorage\n" + text_item("0") + text_item("cpu") + number(numel) + "tQ";
  return std::string("\x80\x02}q") + std::string(1, '\0') + text_item(name) + "ctorch._utils\n_rebuild_tensor_v2\n(" + id + "K" +
         std::string(1, '\0') + "(" + number(rows) + number(4) + "t(" + number(4) + number(1) + "t\x89" +
         "ccollections\nOrderedDict\n)RtRs.";
}

}  // namespace

TEST_CASE("a JSON stream reads values and skips the rest") {
  JsonStream json = stream(
      R"( {"a": [1, -2, 9223372036854775807], "s": "x\n\u00e9\ud83d\ude00", "f": 1.5e3, "t": true, "n": null, "skip": {"x": [{}]}} )");
  std::vector<std::int64_t> numbers;
  std::string text;
  double real = 0;
  bool flag = false;
  json.object([&](std::string_view key) {
    if (key == "a")
      json.array([&] { numbers.push_back(json.integer()); });
    else if (key == "s")
      text = json.string();
    else if (key == "f")
      real = json.number();
    else if (key == "t")
      flag = json.boolean();
    else
      json.skip();
  });
  json.finish();
  CHECK(numbers == std::vector<std::int64_t>{1, -2, 9223372036854775807});
  CHECK(text == "x\n\xc3\xa9\xf0\x9f\x98\x80");
  CHECK(real == 1500);
  CHECK(flag);
}

TEST_CASE("a JSON stream says where its text is wrong") {
  CHECK(skipped("{\"a\": [1, {\"b\": nul}]}") == "text: /a/1/b: this is no JSON: 'null' is spelt wrongly at byte 19");
  CHECK(skipped("[1 2]").find("',' or ']'") != std::string::npos);
  CHECK(skipped("{\"a\" 1}").find("':'") != std::string::npos);
  CHECK(skipped("[NaN]").find("begins no value") != std::string::npos);
  CHECK(skipped("[01]").find("no number") != std::string::npos);
  CHECK(skipped("\"\xff\"").find("UTF-8") != std::string::npos);
  CHECK(skipped("\"\xed\xa0\x80\"").find("UTF-8") != std::string::npos);
  CHECK(skipped("\"\\ud800\"").find("surrogate") != std::string::npos);
  CHECK(skipped("\"a\nb\"").find("control character") != std::string::npos);
  CHECK(skipped("[1,").find("ends early") != std::string::npos);
  CHECK(skipped("\"abc").find("not closed") != std::string::npos);
  CHECK(skipped("1 1").find("follows") != std::string::npos);
  CHECK(skipped(std::string(100'000, '[')).find("nests deeper") != std::string::npos);
  CHECK(skipped("[1, \"x\", {\"y\": [true, null]}]").empty());
}

TEST_CASE("size expressions of sympy") {
  using pt2::size_expression;
  CHECK(size_expression("Symbol('s77', positive=True, integer=True)") == "s77");
  CHECK(size_expression("Mul(Integer(2), Symbol('s0', integer=True))") == "(2 * s0)");
  CHECK(size_expression("Add(Symbol('s0'), Integer(-1))") == "(s0 + -1)");
  CHECK(size_expression("FloorDiv(Add(Symbol('s0'), Integer(1)), Integer(2))") == "((s0 + 1) // 2)");
  CHECK(size_expression("Mod(Symbol('s0'), Integer(2))") == "(s0 % 2)");
  CHECK(size_expression("Pow(Symbol('s0'), Integer(2))") == "(1 * s0 * s0)");
  CHECK(size_expression("Max(Integer(1), Symbol('u0'))") == "max(1, u0)");
  CHECK(size_expression("Mul(Rational(1, 2), Symbol('s0'))") == "((1 * s0) // 2)");
  CHECK(size_expression("2*s0") == "2*s0");
  CHECK(size_expression("16") == "16");
  for (const char* wrong : {"Sin(Symbol('s0'))", "Mul(Integer(2)", "Symbol('a b')", "Mul()", "Pow(Symbol('s0'), Integer(-1))"})
    CHECK_THROWS_AS(size_expression(wrong), Error);
  CHECK_THROWS_AS(size_expression("Add(" + std::string(1000, '(')), Error);
}

TEST_CASE("zip archives") {
  const std::uint32_t crc = 0x352441c2;  // of "abc"
  const std::string good = zip_of("m/a.txt", "abc", crc);
  {
    File file(good);
    ZipFile zip(file.path());
    REQUIRE(zip.members().size() == 1);
    CHECK(zip.read(*zip.find("m/a.txt"), 10) == "abc");
    CHECK(zip.find("b") == nullptr);
    CHECK_THROWS_AS(zip.read(zip.members()[0], 2), Error);
  }
  auto refused = [](const std::string& bytes, const char* why) {
    File file(bytes);
    try {
      ZipFile zip(file.path());
      for (auto& m : zip.members()) zip.read(m, 1000);
      return std::string("accepted");
    } catch (const Error& e) {
      return e.message().find(why) == std::string::npos ? e.message() : std::string();
    }
  };
  CHECK(refused(zip_of("a", "abc", 1), "checksum").empty());
  CHECK(refused(good.substr(0, good.size() - 5), "cut off").empty());
  CHECK(refused("PK", "cut off").empty());
  std::string more = good;
  more[more.size() - 12] = 2;
  CHECK(refused(more, "counts 2 members").empty());
  std::string beyond = good;
  beyond[30 + 7 + 3 + 24] = beyond[30 + 7 + 3 + 20] = 100;
  CHECK(refused(beyond, "outside the file").empty());
}

TEST_CASE("tensors of a checkpoint") {
  const auto tensors = saved_tensors(pickled("w", 2, 8));
  REQUIRE(tensors.size() == 1);
  CHECK(tensors[0].name == "w");
  CHECK(tensors[0].dtype == DType::float16);
  CHECK(tensors[0].sizes == Dims{2, 4});
  CHECK(tensors[0].storage == "0");
  CHECK_THROWS_AS(saved_tensors(pickled("w", 2, 7)), Error);   // reaches beyond its storage
  CHECK_THROWS_AS(saved_tensors(pickled("w", -1, 8)), Error);  // a negative size
  CHECK_THROWS_AS(saved_tensors("\x80\x02"
                                "cos\nsystem\nX\x02\x00\x00\x00ls\x85R."),
                  Error);
  CHECK_THROWS_AS(saved_tensors("\x80\x02]q\x00h\x00"
                                "a."),
                  Error);
  CHECK_THROWS_AS(saved_tensors(std::string("\x80\x02") + std::string(100'000, ']') + std::string(99'999, 'a') + "."), Error);
  CHECK_THROWS_AS(saved_tensors("\x80\x02X\xff\xff\xff\x7f"
                                "abc."),
                  Error);
}

TEST_CASE("weights without a model") {
  TestRun run;
  spec::ReadOptions options;
  auto safetensors = [](const std::string& header, std::size_t data) {
    std::string out;
    little(out, header.size(), 8);
    return out + header + std::string(data, 'x');
  };
  const std::string header =
      R"({"a.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"n":{"dtype":"I64","shape":[],"data_offsets":[12,20]}})";
  File good(safetensors(header, 20)), cut(safetensors(header, 19));
  CHECK_THROWS_AS(read_model(good.path(), options), Error);  // it cannot be trained
  options.training = false;
  auto model = read_model(good.path(), options);
  REQUIRE(model->root->named_parameters().size() == 1);
  CHECK(model->root->named_parameters()[0].first == "a.weight");
  CHECK(model->root->named_parameters()[0].second.dtype() == DType::bfloat16);
  CHECK(model->root->named_buffers().size() == 1);
  CHECK_THROWS_AS(read_model(cut.path(), options), Error);

  std::string gguf = "GGUF";
  little(gguf, 3, 4), little(gguf, 1, 8), little(gguf, 1, 8);
  little(gguf, 3, 8), gguf += "key", little(gguf, 9, 4), little(gguf, 4, 4), little(gguf, 2, 8), little(gguf, 7, 8);  // two uint32
  little(gguf, 1, 8), gguf += "w", little(gguf, 2, 4), little(gguf, 64, 8), little(gguf, 2, 8), little(gguf, 2, 4), little(gguf, 0, 8);
  File packed(gguf + std::string(200, 'x'));
  model = read_model(packed.path(), options);
  REQUIRE(model->root->parameters().size() == 1);
  CHECK(model->root->parameters()[0].numel() == 4 * 18);  // Q4_0: 18 bytes for 32 weights
  CHECK_THROWS_AS(read_model(File(gguf.substr(0, 30)).path(), options), Error);
}
