#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "backends/backend.h"
#include "base/digest.h"
#include "cache/reader/reader.h"
#include "frontend/fuse/fuse_choices.h"
#include "jit/build/code_supply.h"
#include "jit/build/kernel_choice.h"

namespace kiln {

/// The choices that a plan was made with, and their generation.
struct PublishedChoices {
  FuseChoices choices;
  uint32_t generation = 0;
};

/// The choices in a plan's bytes; none where they never raced, or are of another version.
std::optional<PublishedChoices> choices_in(std::span<const uint8_t> plan);

/// A record's JSON, and the generation of the head that led to it.
struct PublishedRecord {
  std::string_view json;
  uint32_t generation = 0;
  bool is_elsewhere = false;  // it is in other sources than the cache
};

/// What the mapped cache already has, so that it is not built again; and the records that other sources have. Threading: one
/// thread where there is a supply.
class Published {
 public:
  /// `supply`: of those records; null: there are none.
  explicit Published(const std::string& cache_directory, CodeSupply* supply = nullptr);
  ~Published();
  Published(const Published&) = delete;
  Published& operator=(const Published&) = delete;

  /// What this code key leads to.
  std::optional<KernelChoice> code(const Digest& key);
  /// The code artifact that this code key leads to, whole.
  std::optional<Image> image(const Digest& key);
  /// The code artifact of this digest, whole.
  std::optional<Image> image_named(const Digest& digest);
  /// Asks other sources for the records of these keys at once, so that record() of each need not.
  void ask_for_records(std::span<const Digest> keys);
  /// The record that this key leads to, of whatever version. Its bytes stay while this object does.
  std::optional<PublishedRecord> record(const Digest& key);
  /// The choices of the plan that this key leads to; none where they never raced, or are of another version.
  std::optional<PublishedChoices> choices(const Digest& key);
  /// Whether this plan key leads to this artifact, and every kernel that it names is there too.
  bool has_plan(const Digest& key, const Digest& artifact);

 private:
  /// That of the mapped cache.
  std::optional<PublishedRecord> mapped_record(const Digest& key);

  kiln_reader* m_reader;
  CodeSupply* m_supply;
  std::unordered_map<Digest, SuppliedEntry> m_elsewhere;  // what the supply said, by key; no bytes: it has none
};

}  // namespace kiln
