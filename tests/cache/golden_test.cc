// Caches and packs that other builds have left: golden/FORMAT.tgz and golden/packVERSION.kpack, made by a build of an earlier
// format or of this one, and a cache that a build of a later format has written to. Each format has had one version so far.
// `--gtest_also_run_disabled_tests --gtest_filter='*DISABLED_write*'` adds those of this build, under new names where
// KILN_INDEX_VERSION, KILN_ARTIFACT_VERSION, k_sidecar_version or k_pack_version has changed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cache/format/artifact_bytes.h"
#include "cache/format/checksum.h"
#include "cache/format/index.h"
#include "cache/format/sidecar.h"
#include "cache/pack/pack_writer.h"
#include "cache/store/rocks.h"
#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t k_plans = 3;
constexpr uint32_t k_answer = 42;
constexpr size_t k_code_size = 64;
size_t size_of(uint64_t seed) { return 100 * seed; }

const fs::path& folder() {
  static const fs::path path = KILN_GOLDEN_CACHES;
  return path;
}

void run(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

/// In a golden cache: k_plans plans, and code that returns k_answer.
void fill(CacheStore& store) {
  for (uint64_t seed = 1; seed <= k_plans; ++seed) ASSERT_TRUE(store.publish(plan_batch(seed, size_of(seed))).ok());
  ASSERT_TRUE(store.publish(code_batch(k_answer, k_code_size)).ok());
}

int hits(const std::string& directory) {
  const Reader reader = open_reader(directory);
  int found = 0;
  for (uint64_t seed = 1; seed <= k_plans; ++seed) {
    found += find_plan(reader.get(), seed, size_of(seed)) == KILN_HIT ? 1 : 0;
  }
  return found;
}

void expect_all_in(const CacheStore& store) {
  const auto expect = [&](const PublishBatch& batch) {
    const auto artifact = store.find(batch.heads[0].artifact);
    ASSERT_TRUE(artifact.ok() && artifact->has_value());
    EXPECT_EQ((*artifact)->payload, batch.artifacts[0].payload);
    EXPECT_EQ((*artifact)->launch.tasks, batch.artifacts[0].launch.tasks);
    const auto head = store.head(batch.heads[0].key);
    ASSERT_TRUE(head.ok() && head->has_value());
    EXPECT_EQ((*head)->provenance, batch.heads[0].provenance);
  };
  for (uint64_t seed = 1; seed <= k_plans; ++seed) expect(plan_batch(seed, size_of(seed)));
  expect(code_batch(k_answer, k_code_size));
}

/// Changes the file's first bytes, a `Header`, in place.
template <typename Header, typename Change>
void change_header(const fs::path& path, const Change& change) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  Header header;
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  change(header);
  file.seekp(0);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  ASSERT_TRUE(file.good()) << path;
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    run("tar xzpf '" + (folder() / (GetParam() + ".tgz")).string() + "' -C '" + m_directory.path("") + "'");
  }
  std::string cache() const { return m_directory.path(); }

  TemporaryDirectory m_directory;
};

/// A client has only what is published. One that reads no such index misses, until a daemon has made it anew.
TEST_P(Golden, is_mapped_or_missed) {
  const int found = hits(cache());
  EXPECT_TRUE(found == static_cast<int>(k_plans) || found == 0) << found;
}

TEST_P(Golden, is_opened_whole_and_added_to) {
  const auto store = open_store(cache());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->report(), "");
  expect_all_in(*store);
  EXPECT_EQ(hits(cache()), static_cast<int>(k_plans));
  ASSERT_TRUE(store->publish(plan_batch(9, 900)).ok());
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(find_plan(open_reader(cache()).get(), 9, 900), KILN_HIT);
}

std::vector<std::string> golden_caches() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (entry.path().extension() == ".tgz") names.push_back(entry.path().stem());
  }
  std::ranges::sort(names);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Caches, Golden, ::testing::ValuesIn(golden_caches()),
                         [](const auto& info) { return info.param; });

TEST(golden, there_is_one) { EXPECT_FALSE(golden_caches().empty()); }

TEST(golden, what_a_later_format_has_published_is_missed_then_made_anew) {
  TemporaryDirectory directory;
  fill(*open_store(directory.path()));
  ASSERT_EQ(hits(directory.path()), static_cast<int>(k_plans));
  for (const auto& entry : fs::directory_iterator(directory.path() + "/" KILN_PUBLISHED_FOLDER)) {
    if (entry.path().filename().string().starts_with("index.")) {
      change_header<kiln_index_header>(entry.path(), [](kiln_index_header& header) {
        ++header.version;
        header.check = kiln_index_header_check(&header);
      });
    } else if (entry.path().extension() == ".kidx") {
      struct Start {
        uint64_t magic;
        uint32_t version;
      };
      change_header<Start>(entry.path(), [](Start& start) { ++start.version; });
    }
  }
  EXPECT_EQ(hits(directory.path()), 0);
  const auto store = open_store(directory.path());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->report(), "");
  expect_all_in(*store);
  EXPECT_EQ(hits(directory.path()), static_cast<int>(k_plans));
}

TEST(golden, an_artifact_of_a_later_format_is_forgotten_and_built_again) {
  TemporaryDirectory directory;
  const PublishBatch batch = plan_batch(1, size_of(1));
  ASSERT_TRUE(open_store(directory.path())->publish(batch).ok());
  {
    const auto rocks = Rocks::open({.directory = directory.path()}, directory.path() + "/db", [] {});
    ASSERT_TRUE(rocks.ok());
    const auto name = slice_of(batch.heads[0].artifact);
    auto bytes = (*rocks)->get((*rocks)->artifacts(), name);
    ASSERT_TRUE(bytes.ok() && bytes->has_value());
    kiln_artifact_header header;
    std::memcpy(&header, (*bytes)->data(), sizeof header);
    ++header.version;
    std::memcpy((*bytes)->data(), &header, sizeof header);
    ASSERT_TRUE((*rocks)->recreate_artifacts().ok());
    rocksdb::WriteBatch later;
    ASSERT_TRUE(later.Put((*rocks)->artifacts(), name, **bytes).ok());
    ASSERT_TRUE((*rocks)->write(later).ok());
    ASSERT_TRUE((*rocks)->flush_artifacts().ok());
  }
  const auto store = open_store(directory.path());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(hits(directory.path()), 0);
  const auto found = store->find(batch.heads[0].artifact);
  EXPECT_TRUE(!found.ok() || !found->has_value());
  ASSERT_TRUE(store->publish(batch).ok());
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(hits(directory.path()), 1);
}

std::string name_of_pack() { return fmt::format("pack{}.kpack", k_pack_version); }

/// What a golden cache has, unsigned.
void write_pack(const std::string& path) {
  std::vector<PublishBatch> batches{code_batch(k_answer, k_code_size)};
  for (uint64_t seed = 1; seed <= k_plans; ++seed) batches.push_back(plan_batch(seed, size_of(seed)));
  auto writer = PackWriter::create(path, batches.size(), batches.size());
  ASSERT_TRUE(writer.ok());
  std::ranges::sort(batches, {}, [](const PublishBatch& batch) { return batch.heads[0].artifact; });
  for (const PublishBatch& batch : batches) ASSERT_TRUE(writer->add(batch.artifacts[0]).ok());
  std::ranges::sort(batches, {}, [](const PublishBatch& batch) { return batch.heads[0].key; });
  for (const PublishBatch& batch : batches) {
    const Head& head = batch.heads[0];
    const KeyDescription description{
        {head.canonical_key.begin(), head.canonical_key.end()}, head.provenance, {1, 2, 3}};
    ASSERT_TRUE(writer->add(head.key, head.artifact, 0, description).ok());
  }
  ASSERT_TRUE(writer->finish(nullptr).ok());
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(golden, a_pack_of_this_format_is_the_same_bytes_as_when_the_format_was_new) {
  TemporaryDirectory directory;
  write_pack(directory.path("pack"));
  EXPECT_TRUE(bytes_of(directory.path("pack")) == bytes_of(folder() / name_of_pack()));
}

TEST(golden, packs_are_read_whole_or_refused_for_their_version) {
  size_t packs = 0;
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (entry.path().extension() != ".kpack") continue;
    ++packs;
    const auto pack = Pack::open(entry.path());
    if (entry.path().filename() == name_of_pack()) {
      ASSERT_TRUE(pack.ok()) << pack.status().to_string();
      EXPECT_TRUE(pack->check_all().ok());
      EXPECT_EQ(pack->heads().size(), k_plans + 1);
    } else {
      EXPECT_EQ(pack.status().code(), StatusCode::data_loss) << entry.path();
    }
  }
  EXPECT_GE(packs, k_pack_version);
}

TEST(golden, DISABLED_write) {
  write_pack(folder() / name_of_pack());
  TemporaryDirectory directory;
  fill(*open_store(directory.path()));
  const std::string name =
      fmt::format("index{}_artifact{}_sidecar{}", KILN_INDEX_VERSION, KILN_ARTIFACT_VERSION, k_sidecar_version);
  run("tar czf '" + (folder() / name).string() + ".tgz' -C '" + directory.path("") +
      "' --exclude=LOG --exclude=LOG.old.* --exclude='OPTIONS-*' --exclude=LOCK --exclude=touch cache");
}

}  // namespace
}  // namespace kiln::testing
