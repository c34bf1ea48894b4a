// Packs: what one machine wrote another one uses in place, and nothing else than what a trusted signer put there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/limits.h"
#include "cache/pack/pack_writer.h"
#include "cache/sources/sources.h"
#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t k_plans = 20;
constexpr uint64_t k_capture = 1000;

using Bytes = std::vector<char>;

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class PackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"", "packs", "trust", "trust_captures", "stranger"}) {
      fs::create_directories(m_directory.path(folder));
      fs::permissions(m_directory.path(folder), fs::perms::owner_all);
    }
    ASSERT_TRUE(m_key->write(m_directory.path("kiln.key"), m_directory.path("trust/kiln.pub")).ok());
    ASSERT_TRUE(m_other->write(m_directory.path("stranger/kiln.key"), m_directory.path("stranger/kiln.pub")).ok());
  }

  std::string pack_path() const { return m_directory.path("packs/a.kpack"); }
  PackFolders folders() const {
    return {m_directory.path("packs"), m_directory.path("trust"), m_directory.path("trust_captures")};
  }

  /// Plans of seeds 0 to k_plans, code that returns 77, and a capture.
  void write_pack(const std::string& path, const SigningKey* key) {
    std::vector<PublishBatch> batches;
    for (uint64_t seed = 0; seed < k_plans; ++seed) batches.push_back(plan_batch(seed, plan_size(seed)));
    batches.push_back(code_batch(77, 300));
    batches.push_back(plan_batch(k_capture, 100));
    batches.back().artifacts[0].kind = ArtifactKind::capture;
    batches.back().heads[0].artifact = artifact_digest(batches.back().artifacts[0]);
    std::vector<Artifact> artifacts;
    std::vector<Head> heads;
    for (const PublishBatch& batch : batches) {
      artifacts.push_back(batch.artifacts[0]);
      heads.push_back(batch.heads[0]);
    }
    std::ranges::sort(artifacts, {}, artifact_digest);
    std::ranges::sort(heads, {}, &Head::key);
    auto writer = PackWriter::create(path, artifacts.size(), heads.size());
    ASSERT_TRUE(writer.ok());
    for (const Artifact& artifact : artifacts) ASSERT_TRUE(writer->add(artifact).ok());
    for (const Head& head : heads) ASSERT_TRUE(writer->add(head.key, head.artifact, 3, describe(head)).ok());
    ASSERT_TRUE(writer->finish(key).ok());
  }

  static KeyDescription describe(const Head& head) {
    return {{head.canonical_key.begin(), head.canonical_key.end()}, head.provenance, {1, 2, 3}};
  }

  /// How many of the plans a process with a cache of its own finds; those that it finds have the right bytes.
  size_t plans_found() {
    Sources sources(m_directory.path("no cache"), folders());
    size_t found = 0;
    for (uint64_t seed = 0; seed < k_plans; ++seed) {
      kiln_view view;
      if (sources.find_key(key_of(seed), KILN_ARTIFACT_PLAN, view) != KILN_HIT) continue;
      const auto expected = pattern(seed, plan_size(seed));
      EXPECT_TRUE(std::ranges::equal(expected, std::span(view.payload, view.header.payload_size)));
      EXPECT_EQ(view.generation, 3U);
      ++found;
    }
    return found;
  }

  TemporaryDirectory m_directory;
  const Expected<SigningKey> m_key = SigningKey::create();
  const Expected<SigningKey> m_other = SigningKey::create();
};

TEST_F(PackTest, CreatedTwiceItIsTheSameBytes) {
  write_pack(pack_path(), &*m_key);
  const Bytes first = read_file(pack_path());
  write_pack(pack_path(), &*m_key);
  EXPECT_EQ(first, read_file(pack_path()));
  EXPECT_FALSE(fs::exists(pack_path() + ".part"));
}

TEST_F(PackTest, ItGivesBackWhatWasPutIn) {
  write_pack(pack_path(), &*m_key);
  const auto pack = Pack::open(pack_path());
  ASSERT_TRUE(pack.ok()) << pack.status().to_string();
  EXPECT_TRUE(pack->check_all().ok());
  EXPECT_EQ(pack->signer(), m_key->public_key());
  EXPECT_EQ(pack->size(), fs::file_size(pack_path()));
  const Head head = plan_batch(5, plan_size(5)).heads[0];
  ASSERT_NE(pack->head(head.key), nullptr);
  EXPECT_EQ(digest_in(pack->head(head.key)->artifact), head.artifact);
  const auto described = pack->describe(*pack->head(head.key));
  ASSERT_TRUE(described.ok());
  EXPECT_EQ(*described, describe(head));
  EXPECT_EQ(pack->head(key_of(k_plans)), nullptr);
}

TEST_F(PackTest, ATrustedOneIsUsedInPlaceItsCodeRunsAndItsCapturesNeedMoreTrust) {
  write_pack(pack_path(), &*m_key);
  EXPECT_EQ(plans_found(), k_plans);
  {
    Sources sources(m_directory.path("no cache"), folders());
    kiln_view view;
    const uint8_t* code = nullptr;
    ASSERT_EQ(sources.find_key(key_of(77), KILN_ARTIFACT_CODE, view), KILN_HIT);
    ASSERT_EQ(sources.directory().map_code(view, code), KILN_HIT);
    EXPECT_EQ(reinterpret_cast<uint32_t (*)()>(const_cast<uint8_t*>(code))(), 77U);
    EXPECT_NE(sources.find_key(key_of(k_capture), KILN_ARTIFACT_CAPTURE, view), KILN_HIT);
    EXPECT_EQ(sources.find_key(key_of(1), KILN_ARTIFACT_CODE, view), KILN_MISS_NO_CACHE);  // it is a plan
  }
  fs::copy_file(m_directory.path("trust/kiln.pub"), m_directory.path("trust_captures/kiln.pub"));
  Sources sources(m_directory.path("no cache"), folders());
  kiln_view view;
  EXPECT_EQ(sources.find_key(key_of(k_capture), KILN_ARTIFACT_CAPTURE, view), KILN_HIT);
}

TEST_F(PackTest, TheCacheComesFirst) {
  write_pack(pack_path(), &*m_key);
  ASSERT_TRUE(open_store(m_directory.path("cache"))->publish(plan_batch(1, plan_size(1), 7)).ok());
  Sources sources(m_directory.path("cache"), folders());
  kiln_view view;
  ASSERT_EQ(sources.find_key(key_of(1), KILN_ARTIFACT_PLAN, view), KILN_HIT);
  EXPECT_EQ(view.generation, 7U);
  ASSERT_EQ(sources.find_key(key_of(2), KILN_ARTIFACT_PLAN, view), KILN_HIT);
  EXPECT_EQ(view.generation, 3U);
}

/// Whoever changes a byte of a pack has changed what was signed, or what lies behind it.
TEST_F(PackTest, OfFiveHundredDamagedOnesNoneIsLoaded) {
  write_pack(pack_path(), &*m_key);
  const Bytes whole = read_file(pack_path());
  std::mt19937_64 random(12);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (int i = 0; i < 500; ++i) {
    Bytes damaged = whole;
    switch (i % 4) {
      case 0:
        damaged[below(damaged.size())] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        damaged.resize(below(damaged.size()));
        break;
      case 2:
        damaged.resize(damaged.size() + 1 + below(9000), static_cast<char>(below(2)));
        break;
      default:
        for (size_t at = below(4096), end = at + 1 + below(64); at < end; ++at)
          damaged[at] = static_cast<char>(~damaged[at]);
        break;
    }
    write_file(pack_path(), damaged);
    const auto pack = Pack::open(pack_path());
    EXPECT_FALSE(pack.ok() && pack->check_all().ok()) << i;
    if (i % 25 < 4) plans_found();  // right bytes, or none
  }
}

/// A forger who can write anything but has no trusted key.
TEST_F(PackTest, OfForgeriesNothingIsFound) {
  write_pack(pack_path(), &*m_key);
  const Bytes whole = read_file(pack_path());
  const auto forge = [&](const std::string& what, const std::function<void(Bytes&, PackHeader&)>& change) {
    Bytes forged = whole;
    PackHeader header;
    std::memcpy(&header, forged.data(), sizeof header);
    change(forged, header);
    std::memcpy(forged.data(), &header, sizeof header);
    write_file(pack_path(), forged);
    EXPECT_EQ(plans_found(), 0U) << what;
  };
  const auto first_head = [](Bytes& bytes, const PackHeader& header) {
    return reinterpret_cast<PackedHead*>(bytes.data() + sizeof header + pack_manifest_size(header.artifact_count, 0));
  };
  forge("no signature", [](Bytes&, PackHeader& header) {
    std::memset(header.signer, 0, sizeof header.signer);
    std::memset(header.signature, 0, sizeof header.signature);
  });
  forge("no signature, yet a signer", [](Bytes&, PackHeader& header) { std::memset(header.signature, 0, 64); });
  forge("another signer's name",
        [&](Bytes&, PackHeader& header) { std::ranges::copy(m_other->public_key().bytes, header.signer); });
  forge("a right signature of something else",
        [&](Bytes&, PackHeader& header) { std::ranges::copy(m_key->sign(sha256_of({})), header.signature); });
  forge("another key for what was signed",
        [&](Bytes& bytes, PackHeader& header) { ++first_head(bytes, header)->key[31]; });
  forge("another artifact for a key", [&](Bytes& bytes, PackHeader& header) {
    PackedHead* heads = first_head(bytes, header);
    std::swap(heads[0].artifact, heads[1].artifact);
  });
  forge("another generation", [&](Bytes& bytes, PackHeader& header) { ++first_head(bytes, header)->generation; });
  forge("fewer keys than were signed", [](Bytes&, PackHeader& header) { --header.head_count; });
  forge("a manifest of gigabytes", [](Bytes&, PackHeader& header) { header.artifact_count = UINT32_MAX; });
  forge("another version", [](Bytes&, PackHeader& header) { ++header.version; });
  write_pack(pack_path(), &*m_other);
  EXPECT_EQ(plans_found(), 0U) << "a stranger's";
  write_pack(pack_path(), &*m_key);
  EXPECT_EQ(plans_found(), k_plans);
}

/// What a signer was wrong about: an entry that is another artifact, and pieces that overlap, or lie outside.
TEST_F(PackTest, ASignatureMakesNothingRightThatIsOutOfShape) {
  write_pack(pack_path(), &*m_key);
  const Bytes whole = read_file(pack_path());
  const auto sign_anew = [&](const std::function<void(std::span<PackedArtifact>)>& change) {
    Bytes bytes = whole;
    auto& header = *reinterpret_cast<PackHeader*>(bytes.data());
    const std::span artifacts(reinterpret_cast<PackedArtifact*>(bytes.data() + sizeof header), header.artifact_count);
    const std::span heads(reinterpret_cast<PackedHead*>(bytes.data() + sizeof header + artifacts.size_bytes()),
                          header.head_count);
    change(artifacts);
    std::ranges::copy(m_key->sign(pack_statement(header, artifacts, heads)), header.signature);
    write_file(pack_path(), bytes);
    const auto pack = Pack::open(pack_path());
    return pack.ok() ? pack->check_all() : pack.status();
  };
  EXPECT_TRUE(sign_anew([](auto) {}).ok());
  const auto is_damage = [](const Status& status) { return status.code() == StatusCode::data_loss; };
  EXPECT_TRUE(is_damage(sign_anew([](auto all) { all[3].offset = all[2].offset; })));
  EXPECT_TRUE(is_damage(sign_anew([](auto all) { all.back().offset = UINT64_MAX - 64; })));
  EXPECT_TRUE(is_damage(sign_anew([](auto all) { all.back().length = UINT64_MAX; })));
  EXPECT_TRUE(is_damage(sign_anew([](auto all) { std::swap(all[0], all[1]); })));
  EXPECT_TRUE(is_damage(sign_anew([](auto all) { all[0].kind = 9; })));
  EXPECT_TRUE(is_damage(sign_anew([](auto all) { all[0].kind = all[0].kind == 1 ? 2 : 1; })));
  EXPECT_TRUE(is_damage(sign_anew([](auto all) { all[0].sha256[0] ^= 1; })));
  EXPECT_TRUE(is_damage(sign_anew([](auto all) { all[0].digest[31] ^= 1; })));
}

TEST_F(PackTest, WhatIsNotUsedSaysWhy) {
  write_pack(pack_path(), &*m_other);
  write_pack(m_directory.path("packs/b.kpack"), nullptr);
  fs::create_directory(m_directory.path("packs/c.kpack"));
  write_file(m_directory.path("trust/d.pub"), {'n', 'o'});
  const Sources sources(m_directory.path("no cache"), folders());
  EXPECT_EQ(sources.packs().count(), 0U);
  EXPECT_THAT(sources.packs().refusals(),
              ElementsAre(HasSubstr("d.pub: is no Ed25519 key"), HasSubstr("whom packs.trust does not name"),
                          HasSubstr("nobody signed it"), HasSubstr("no regular file")));
}

TEST_F(PackTest, KeysThatOthersMayWriteAreNotBelieved) {
  write_pack(pack_path(), &*m_key);
  fs::permissions(m_directory.path("trust/kiln.pub"), fs::perms::group_write, fs::perm_options::add);
  EXPECT_EQ(plans_found(), 0U);
  fs::permissions(m_directory.path("trust/kiln.pub"), fs::perms::group_write, fs::perm_options::remove);
  EXPECT_EQ(plans_found(), k_plans);
  fs::permissions(m_directory.path("trust"), fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(plans_found(), 0U);
}

TEST_F(PackTest, AKeyIsReadBackAndNeverWrittenOver) {
  const auto read = SigningKey::read(m_directory.path("kiln.key"));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->public_key(), m_key->public_key());
  const std::vector<uint8_t> message = {1, 2, 3};
  EXPECT_TRUE(m_key->public_key().has_signed(message, read->sign(message)));
  EXPECT_FALSE(m_other->public_key().has_signed(message, read->sign(message)));
  EXPECT_EQ(m_other->write(m_directory.path("kiln.key"), m_directory.path("x.pub")).code(), StatusCode::already_exists);
  EXPECT_EQ(fs::status(m_directory.path("kiln.key")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

}  // namespace
}  // namespace kiln::testing
