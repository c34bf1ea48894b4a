// Exports: what a client wrote, a process without one loads and runs with equal bits; what is not as it was written, or leads
// elsewhere, is an error, and nothing is loaded.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "cache/pack/pack_writer.h"
#include "client/include/kiln.hpp"
#include "jit/exported/export_writer.h"
#include "jit/exported/exported.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Bytes = std::vector<char>;

constexpr int64_t k_rows = 5, k_in = 48, k_out = 96;
constexpr uint64_t k_page = 4096;
constexpr uint64_t k_bias_at = (k_in * k_out * sizeof(float) + k_page - 1) / k_page * k_page;

std::string graph_text(int64_t rows) {
  return fmt::format(
      "graph(%table: f32[{1}, {1}], %x: i64[{0}], %w: f32[{1}, {2}], %b: f32[{2}]) {{\n"
      "  %e = embedding(%table, %x)\n  %h = addmm(%b, %e, %w)\n  %y = relu(%h)\n  return %y, %e\n}}\n",
      rows, k_in, k_out);
}

Json tensor(const char* name, const char* dtype, std::vector<int64_t> shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return {{"name", name}, {"dtype", dtype}, {"shape", shape}, {"strides", strides}};
}

/// The model for so many rows: the second output is a view of the program's, the third is weights, the fourth is an input.
Json form(int64_t rows) {
  const uint64_t table_at = k_bias_at + k_page;
  return {{"graph", graph_text(rows)},
          {"symbol_values", Json::array()},
          {"inputs", Json::array({tensor("x", "i64", {rows})})},
          {"outputs",
           {tensor("y", "f32", {rows, k_out}), tensor("last", "f32", {1, k_in}), tensor("bias", "f32", {k_out}),
            tensor("x", "i64", {rows})}},
          {"arguments", {{"weights", 0, table_at}, {"input", 0, 0}, {"weights", 0, 0}, {"weights", 0, k_bias_at}}},
          {"results",
           {{"output", 0, 0, {k_out, 1}},
            {"output", 1, (rows - 1) * k_in * sizeof(float), {k_in, 1}},
            {"weights", 0, k_bias_at, Json::array({1})},
            {"input", 0, 0, Json::array({1})}}}};
}

Bytes read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const Bytes& bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
}

struct Results {
  std::vector<float> y, last, bias;
  std::vector<int64_t> x;
  bool operator==(const Results&) const = default;
};

Results run(const api::Exported& exported, const std::vector<int64_t>& x, uint32_t threads = 1) {
  const auto rows = static_cast<int64_t>(x.size());
  Results results{std::vector<float>(rows * k_out), std::vector<float>(k_in), std::vector<float>(k_out),
                  std::vector<int64_t>(rows)};
  const size_t form = exported.choose({{"", "i64", {rows}, {}}});
  exported.run(form, {x.data()}, {results.y.data(), results.last.data(), results.bias.data(), results.x.data()},
               threads);
  return results;
}

/// The code that loading ends with; 0 where it loads.
int code_of(const fs::path& path) {
  try {
    const api::Exported exported(path.string());
    return KILN_OK;
  } catch (const api::Error& error) {
    return error.code();
  }
}

class ExportTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string pattern = fs::temp_directory_path() / "kiln-export-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    s_folder = pattern;
    setenv("KILN_CACHE_DIR", (s_folder / "cache").c_str(), 1);
    setenv("XDG_STATE_HOME", (s_folder / "state").c_str(), 1);
    setenv("KILN_DAEMON_PATH", KILND, 1);
    setenv("KILN_DAEMON_IDLE_EXIT_MS", "20000", 1);
    fs::create_directory(s_folder / "made");
    Bytes weights(k_bias_at + k_page + k_in * k_in * sizeof(float));
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (size_t at = 0; at < weights.size(); at += sizeof(float)) {
      const float value = normal(random);
      std::memcpy(weights.data() + at, &value, sizeof value);
    }
    write_file(s_folder / "made/model.weights", weights);
    const api::Client client;
    const Json request{{"version", 1},
                       {"weights", "model.weights"},
                       {"targets", Json::array()},
                       {"deadline_ms", 0},
                       {"forms", {form(k_rows), form(k_rows + 2)}}};
    const std::string text = request.dump();
    api::detail::check(kiln_export(client.get(), (s_folder / "made/model.kiln").c_str(), text.data(), text.size()));
    s_expected = run_in_process(weights);
  }
  static void TearDownTestSuite() {
    [[maybe_unused]] const int ignored = std::system(KILN_CLI " -q daemon stop");
    fs::remove_all(s_folder);
  }

  /// By the program of the same graph, which a client has of the cache.
  static Results run_in_process(const Bytes& weights) {
    api::Client client;
    const api::Program program = client.compile(api::Graph(graph_text(k_rows)));
    Results results{std::vector<float>(k_rows * k_out), {}, std::vector<float>(k_out), s_x};
    std::vector<float> rows(k_rows * k_in);
    program.run({weights.data() + k_bias_at + k_page, s_x.data(), weights.data(), weights.data() + k_bias_at},
                {results.y.data(), rows.data()}, 1);
    results.last.assign(rows.end() - k_in, rows.end());
    std::memcpy(results.bias.data(), weights.data() + k_bias_at, k_out * sizeof(float));
    return results;
  }

  void SetUp() override {
    m_folder = s_folder / "used";
    fs::copy(s_folder / "made", m_folder);
  }
  void TearDown() override { fs::remove_all(m_folder); }

  fs::path file() const { return m_folder / "model.kiln"; }
  fs::path weights() const { return m_folder / "model.weights"; }

  /// Writes the export again, with `change` made to what it says of itself.
  void rewrite(const std::function<void(ExportManifest&)>& change) const {
    const auto pack = Pack::open((s_folder / "made/model.kiln").string());
    ASSERT_TRUE(pack.ok());
    std::vector<Artifact> artifacts;
    ExportManifest manifest;
    for (const PackedArtifact& each : pack->artifacts()) {
      auto artifact = decode_artifact(*pack->read(each), digest_in(each.digest));
      ASSERT_TRUE(artifact.ok());
      if (artifact->kind != ArtifactKind::exported) {
        artifacts.push_back(std::move(*artifact));
        continue;
      }
      const auto& json = artifact->payload;
      manifest = *manifest_from_json({reinterpret_cast<const char*>(json.data()), json.size()});
    }
    change(manifest);
    ASSERT_TRUE(write_export(file().string(), manifest, std::move(artifacts)).ok());
  }
  int code_after(const std::function<void(ExportManifest&)>& change) const {
    rewrite(change);
    return code_of(file());
  }

  static inline fs::path s_folder;
  static inline Results s_expected;
  static inline const std::vector<int64_t> s_x = {3, 0, 47, 3, 21};
  fs::path m_folder;
};

TEST_F(ExportTest, ItHasTheBitsOfTheProgramOfAClient) {
  const api::Exported exported(file().string());
  EXPECT_EQ(run(exported, s_x), s_expected);
  EXPECT_EQ(run(exported, s_x, 2), s_expected);
  EXPECT_EQ(exported.form_count(), 2U);
  EXPECT_EQ(exported.inputs().front().name, "x");
  EXPECT_EQ(exported.outputs(1).front().shape, (std::vector<int64_t>{k_rows + 2, k_out}));
}

TEST_F(ExportTest, ItNeedsNeitherCacheNorDaemonNorTheFolderItWasMadeIn) {
  setenv("KILN_CACHE_DIR", "/nonexistent", 1);
  setenv("KILN_NO_DAEMON", "1", 1);
  EXPECT_EQ(run(api::Exported(file().string()), s_x), s_expected);
  setenv("KILN_CACHE_DIR", (s_folder / "cache").c_str(), 1);
  unsetenv("KILN_NO_DAEMON");
}

TEST_F(ExportTest, AChildOfAProcessThatHadThreadsLoadsItToo) {
  EXPECT_EQ(run(api::Exported(file().string()), s_x, 2), s_expected);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // ends a child that waits for threads that it does not have
    _exit(run(api::Exported(file().string()), s_x, 2) == s_expected ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(ExportTest, FormsShareWeights) {
  const api::Exported exported(file().string());
  std::vector<int64_t> more = s_x;
  more.insert(more.end(), {1, 2});
  const Results results = run(exported, more);
  EXPECT_TRUE(std::equal(s_expected.y.begin(), s_expected.y.end(), results.y.begin()));
  EXPECT_EQ(results.bias, s_expected.bias);
}

TEST_F(ExportTest, InputsOfAnotherTypeAreRefused) {
  const api::Exported exported(file().string());
  for (const std::vector<api::Exported::Tensor>& given :
       std::vector<std::vector<api::Exported::Tensor>>{{},
                                                       {{"", "i64", {k_rows + 1}, {}}},
                                                       {{"", "i64", {k_rows, 1}, {}}},
                                                       {{"", "i32", {k_rows}, {}}},
                                                       {{"", "float", {k_rows}, {}}},
                                                       {{"", "i64", {k_rows}, {}}, {"", "i64", {k_rows}, {}}}}) {
    try {
      exported.choose(given);
      FAIL() << given.size();
    } catch (const api::Error& error) {
      EXPECT_EQ(error.code(), KILN_INVALID_ARGUMENT);
    }
  }
  EXPECT_THROW(exported.run(2, {s_x.data()}, {nullptr, nullptr, nullptr, nullptr}), api::Error);
  EXPECT_THROW(exported.run(0, {}, {}), api::Error);
}

TEST_F(ExportTest, AnIndexOutOfRangeIsAnError) {
  const api::Exported exported(file().string());
  try {
    run(exported, {3, 0, k_in, 3, 21});
    FAIL();
  } catch (const api::Error& error) {
    EXPECT_EQ(error.code(), KILN_OUT_OF_RANGE);
  }
}

TEST_F(ExportTest, WhereverAFileIsCutNothingIsLoaded) {
  for (const fs::path& path : {file(), weights()}) {
    const Bytes whole = read_file(path);
    std::vector<size_t> sizes = {0, 1, 127, 128, 129, k_page - 1, k_page, k_page + 1, whole.size() - 1};
    for (size_t size = 0; size < whole.size(); size += whole.size() / 53) sizes.push_back(size);
    for (const size_t size : sizes) {
      write_file(path, {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
      EXPECT_EQ(code_of(file()), KILN_DATA_LOSS) << path << " cut to " << size;
    }
    Bytes longer = whole;
    longer.push_back(0);
    write_file(path, longer);
    EXPECT_EQ(code_of(file()), KILN_DATA_LOSS) << path << " longer";
    write_file(path, whole);
    EXPECT_EQ(code_of(file()), KILN_OK);
  }
}

TEST_F(ExportTest, AFlippedByteOfWeightsIsFound) {
  const Bytes whole = read_file(weights());
  for (size_t at = 0; at < whole.size(); at += whole.size() / 31) {
    Bytes flipped = whole;
    flipped[at] ^= 0x10;
    write_file(weights(), flipped);
    EXPECT_EQ(code_of(file()), KILN_DATA_LOSS) << at;
  }
}

TEST_F(ExportTest, AFlippedByteOfTheFileIsFoundOrBelongsToNothing) {
  const Bytes whole = read_file(file());
  size_t found = 0, tried = 0;
  for (size_t at = 0; at < whole.size(); at += at < 8192 ? 13 : 97, ++tried) {
    Bytes flipped = whole;
    flipped[at] ^= 0x04;
    write_file(file(), flipped);
    if (code_of(file()) == KILN_OK) {
      EXPECT_EQ(run(api::Exported(file().string()), s_x), s_expected) << at;
    } else {
      ++found;
    }
  }
  EXPECT_GT(found, tried / 4);
}

TEST_F(ExportTest, OfAnotherTargetOrBuildItIsRefused) {
  EXPECT_EQ(code_after([](ExportManifest&) {}), KILN_OK);
  EXPECT_EQ(code_after([](ExportManifest& manifest) {
              for (ExportForm& form : manifest.forms) form.programs[0].target = "another";
            }),
            KILN_FAILED_PRECONDITION);
  EXPECT_EQ(code_after([](ExportManifest& manifest) { manifest.forms[1].programs[0].target = "another"; }),
            KILN_FAILED_PRECONDITION);
  EXPECT_EQ(code_after([](ExportManifest& manifest) { manifest.generator = "another"; }), KILN_FAILED_PRECONDITION);
  EXPECT_EQ(code_after([](ExportManifest& manifest) { ++manifest.program_version; }), KILN_FAILED_PRECONDITION);
}

TEST_F(ExportTest, OfAnotherVersionItIsRefusedAndSaysSo) {
  std::string text;
  rewrite([&](ExportManifest& manifest) { text = to_json(manifest); });
  for (const int version : {0, 2}) {
    Json json = Json::parse(text);
    ASSERT_EQ(json["version"], k_export_version);
    json["version"] = version;
    const Status status = manifest_from_json(json.dump()).status();
    EXPECT_EQ(status.code(), StatusCode::failed_precondition);
    EXPECT_EQ(status.message(),
              fmt::format("an export of version {}, expected {}; export the model anew", version, k_export_version));
  }
}

TEST_F(ExportTest, ATargetThatNobodyHereCanCheckIsNotExported) {
  const api::Client client;
  for (const auto& [target, code] :
       {std::pair("nobody", KILN_INVALID_ARGUMENT), {"sm_90a", KILN_FAILED_PRECONDITION}}) {
    const std::string text = Json{{"version", 1},
                                  {"weights", "model.weights"},
                                  {"targets", Json::array({target})},
                                  {"deadline_ms", 0},
                                  {"forms", Json::array({form(k_rows)})}}
                                 .dump();
    kiln_error* error = kiln_export(client.get(), file().c_str(), text.data(), text.size());
    EXPECT_EQ(kiln_error_code(error), code) << kiln_error_message(error);
    kiln_error_destroy(error);
  }
}

TEST_F(ExportTest, ItLeadsNowhereButToItsOwnFolder) {
  fs::copy_file(weights(), s_folder / "elsewhere", fs::copy_options::overwrite_existing);
  for (const std::string& name :
       {std::string("../elsewhere"), (s_folder / "elsewhere").string(), std::string(""), std::string("."),
        std::string(".."), std::string("./model.weights"), std::string("model.weights\0.txt", 18)}) {
    EXPECT_EQ(code_after([&](ExportManifest& manifest) { manifest.weights.file = name; }), KILN_INVALID_ARGUMENT)
        << name;
  }
  EXPECT_EQ(code_after([](ExportManifest& manifest) { manifest.weights.file = "absent"; }), KILN_NOT_FOUND);
  EXPECT_EQ(code_after([](ExportManifest&) {}), KILN_OK);
  fs::remove(weights());
  fs::create_symlink(s_folder / "elsewhere", weights());
  EXPECT_EQ(code_of(file()), KILN_PERMISSION_DENIED);
  fs::remove(weights());
  fs::create_directory(weights());
  EXPECT_EQ(code_of(file()), KILN_PERMISSION_DENIED);
}

TEST_F(ExportTest, WhatOthersMayWriteIsNotRun) {
  for (const fs::path& path : {file(), weights()}) {
    fs::permissions(path, fs::perms::group_write, fs::perm_options::add);
    EXPECT_EQ(code_of(file()), KILN_PERMISSION_DENIED);
    fs::permissions(path, fs::perms::group_write, fs::perm_options::remove);
    EXPECT_EQ(code_of(file()), KILN_OK);
  }
}

TEST_F(ExportTest, WhatContradictsItselfIsRefused) {
  using Change = std::function<void(ExportForm&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"an argument beyond weights", [](ExportForm& form) { form.arguments[0].offset += k_page; }},
      {"an argument that wraps around", [](ExportForm& form) { form.arguments[0].offset = UINT64_MAX - 3; }},
      {"an argument between elements", [](ExportForm& form) { form.arguments[2].offset = 1; }},
      {"an argument of no input", [](ExportForm& form) { form.arguments[1].index = 1; }},
      {"an argument that is an output",
       [](ExportForm& form) { form.arguments[1].origin = ExportPlace::Origin::output; }},
      {"an argument beyond an input", [](ExportForm& form) { form.arguments[1].offset = sizeof(int64_t); }},
      {"too few arguments", [](ExportForm& form) { form.arguments.pop_back(); }},
      {"too many arguments", [](ExportForm& form) { form.arguments.push_back(form.arguments[0]); }},
      {"a result of no output", [](ExportForm& form) { form.results[0].place.index = 2; }},
      {"a result beyond an output", [](ExportForm& form) { form.results[1].place.offset += sizeof(float); }},
      {"a result that is larger", [](ExportForm& form) { form.outputs[0].layout.dims[0] += 1; }},
      {"a result that lies elsewhere", [](ExportForm& form) { form.results[0].strides[0] += 1; }},
      {"a result of fewer strides", [](ExportForm& form) { form.results[0].strides.pop_back(); }},
      {"a result of absurd strides", [](ExportForm& form) { form.outputs[0].layout.strides[0] = INT64_MAX; }},
      {"a result of negative strides", [](ExportForm& form) { form.outputs[0].layout.strides[1] = -1; }},
      {"a smaller input", [](ExportForm& form) { form.inputs[0].layout.dims[0] -= 1; }},
      {"another program", [](ExportForm& form) { form.programs[0].program = digest_of("another"); }},
  };
  for (const auto& [what, change] : changes) {
    EXPECT_EQ(code_after([&change = change](ExportManifest& manifest) { change(manifest.forms[1]); }), KILN_DATA_LOSS)
        << what;
  }
  EXPECT_EQ(code_after([](ExportManifest& manifest) { manifest.forms.clear(); }), KILN_RESOURCE_EXHAUSTED);
  EXPECT_EQ(code_after([](ExportManifest& manifest) { manifest.forms.resize(65, manifest.forms[0]); }),
            KILN_RESOURCE_EXHAUSTED);
}

TEST_F(ExportTest, AnythingElseInPlaceOfTheManifestIsAnError) {
  std::string json;
  rewrite([&](ExportManifest& manifest) { json = to_json(manifest); });
  ASSERT_TRUE(manifest_from_json(json).ok());
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    std::string changed = json;
    for (int flips = 0; flips < 3; ++flips) changed[random() % changed.size()] = "{}[],:\"-09ae"[random() % 12];
    const auto manifest = manifest_from_json(changed);
    if (!manifest.ok()) {
      EXPECT_NE(manifest.status().message(), "");
    }
  }
  for (const char* text : {"", "{}", "[]", "null", "{\"version\": 1}", "{\"version\": -1}", "{\"version\": 2}"}) {
    EXPECT_FALSE(manifest_from_json(text).ok()) << text;
  }
}

TEST_F(ExportTest, WhatIsNoExportIsAnError) {
  EXPECT_EQ(code_of(m_folder / "absent.kiln"), KILN_NOT_FOUND);
  EXPECT_EQ(code_of(m_folder), KILN_DATA_LOSS);
  EXPECT_EQ(code_of(weights()), KILN_DATA_LOSS);
  auto writer = PackWriter::create(file().string(), 0, 0);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->finish(nullptr).ok());
  EXPECT_EQ(code_of(file()), KILN_DATA_LOSS);
}

}  // namespace
}  // namespace kiln
