#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/limits.h"
#include "cache/format/checksum.h"
#include "cache/format/sidecar.h"
#include "cache/store/index_writer.h"
#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

Artifact some_code() { return code_batch(9, 5000).artifacts[0]; }

TEST(format, an_artifact_comes_back_from_its_bytes) {
  const Artifact artifact = some_code();
  const Digest digest = artifact_digest(artifact);
  for (uint32_t payload_offset : {128u, 4052u}) {
    const auto bytes = encode_artifact(artifact, digest, payload_offset);
    ASSERT_TRUE(bytes.ok());
    const auto back = decode_artifact(*bytes, digest);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ(*back, artifact);
    EXPECT_FALSE(decode_artifact(*bytes, key_of(1)).ok());
  }
}

TEST(format, kind_launch_data_and_payload_are_part_of_the_digest) {
  const Artifact artifact = some_code();
  const std::vector<std::function<void(Artifact&)>> changes = {
      [](Artifact& a) { a.kind = ArtifactKind::plan; }, [](Artifact& a) { a.launch.entry = 1; },
      [](Artifact& a) { a.launch.tasks = 1; },          [](Artifact& a) { a.launch.workspace_bytes = 1; },
      [](Artifact& a) { a.launch.features = 1; },       [](Artifact& a) { a.launch.backend = "cuda"; },
      [](Artifact& a) { a.payload.back() ^= 1; },       [](Artifact& a) { a.payload.push_back(0); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Artifact changed = artifact;
    changes[i](changed);
    EXPECT_NE(artifact_digest(changed), artifact_digest(artifact)) << "change " << i;
  }
}

TEST(format, every_flipped_byte_of_an_artifact_is_noticed) {
  const Artifact artifact{ArtifactKind::plan, {}, pattern(1, 200)};
  const Digest digest = artifact_digest(artifact);
  std::vector<uint8_t> bytes = *encode_artifact(artifact, digest, 160);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= 0x10;
    const auto decoded = decode_artifact(bytes, digest);
    const bool unread = (i >= 12 && i < 16) || (i >= 32 && i < 64) || (i >= 128 && i < 160);
    EXPECT_TRUE(!decoded.ok() || (unread && *decoded == artifact)) << "byte " << i;
    bytes[i] ^= 0x10;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_artifact(std::span(bytes).first(size), digest).ok()) << "cut to " << size;
  }
}

TEST(format, artifacts_beyond_their_limits_are_refused) {
  Artifact artifact = some_code();
  artifact.launch.backend = "sixteen-letters!";
  EXPECT_EQ(encode_artifact(artifact, key_of(1), 128).status().code(), StatusCode::invalid_argument);
  artifact = some_code();
  artifact.kind = static_cast<ArtifactKind>(99);
  EXPECT_EQ(encode_artifact(artifact, key_of(1), 128).status().code(), StatusCode::invalid_argument);
  artifact = some_code();
  artifact.payload.resize(limits::k_artifact_bytes + 1);
  EXPECT_EQ(encode_artifact(artifact, key_of(1), 128).status().code(), StatusCode::resource_exhausted);
}

TEST(format, every_flipped_or_missing_byte_of_a_sidecar_is_noticed) {
  std::vector<SidecarEntry> entries(3);
  for (size_t i = 0; i < entries.size(); ++i) entries[i] = {.offset = i * 100, .length = 100, .checksum = i};
  std::vector<uint8_t> bytes = encode_sidecar(entries, 300);
  const auto back = decode_sidecar(bytes, 300);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::memcmp(back->entries.data(), entries.data(), entries.size() * sizeof entries[0]), 0);
  EXPECT_FALSE(decode_sidecar(bytes, 301).ok()) << "of another file";
  EXPECT_FALSE(decode_sidecar(encode_sidecar(entries, 299), 299).ok()) << "beyond its file";
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= 1;
    EXPECT_FALSE(decode_sidecar(bytes, 300).ok()) << "byte " << i;
    bytes[i] ^= 1;
    EXPECT_FALSE(decode_sidecar(std::span(bytes).first(i), 300).ok()) << "cut to " << i;
  }
}

TEST(format, the_index_refuses_slots_beyond_its_load_and_files_beyond_its_table) {
  TemporaryDirectory directory;
  const std::string path = directory.path("index.1");
  const auto index = IndexWriter::create(path, 1, 64, 2);
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  EXPECT_EQ((*index)->add_file("a", 1, 1), 0u);
  EXPECT_EQ((*index)->add_file("b", 1, 1), 1u);
  EXPECT_EQ((*index)->add_file("c", 1, 1), std::nullopt);
  size_t put = 0;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    kiln_index_slot slot{.slot_kind = KILN_SLOT_HEAD};
    std::memcpy(slot.key, key_of(seed).bytes.data(), sizeof slot.key);
    put += (*index)->put(slot);
  }
  EXPECT_EQ(put, 44u) << "0.7 of 64";
  EXPECT_FALSE(IndexWriter::create(path, 1, 64, 2).ok()) << "never over an index that exists";
  EXPECT_EQ(IndexWriter::create(directory.path("big"), 1, KILN_INDEX_CAPACITY_MAX * 2, 2).status().code(),
            StatusCode::resource_exhausted);
}

TEST(format, a_reader_survives_an_index_and_files_of_random_bytes) {
  TemporaryDirectory directory;
  {
    const auto store = open_store(directory.path());
    for (uint64_t seed = 1; seed <= 20; ++seed) ASSERT_TRUE(store->publish(plan_batch(seed, plan_size(seed))).ok());
  }
  std::mt19937 random(3);
  for (const std::string& path : files_below(directory.path("cache/pub"))) {
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> original(std::istreambuf_iterator<char>(in), {});
    for (int round = 0; round < 60; ++round) {
      std::vector<char> bytes = original;
      // Mostly where the structure is: the front, and the slots of the plans.
      for (int flip = 0; flip < 200; ++flip) {
        const size_t range = flip % 2 == 0 ? std::min<size_t>(bytes.size(), 6000) : bytes.size();
        bytes[random() % range] = static_cast<char>(random());
      }
      std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      const Reader reader = open_reader(directory.path());
      for (uint64_t seed = 1; seed <= 20; ++seed) find_plan(reader.get(), seed, plan_size(seed));
    }
    std::ofstream(path, std::ios::binary).write(original.data(), static_cast<std::streamsize>(original.size()));
  }
  const Reader reader = open_reader(directory.path());
  EXPECT_EQ(find_plan(reader.get(), 7, plan_size(7)), KILN_HIT) << "restored";
}

}  // namespace
}  // namespace kiln::testing
