#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/digest.h"
#include "cache/reader/reader.h"
#include "frontend/fuse/plan.h"

namespace kiln {

/// What the mapped cache already has, so that it is not built again.
class Published {
 public:
  explicit Published(const std::string& cache_directory);
  ~Published();
  Published(const Published&) = delete;
  Published& operator=(const Published&) = delete;

  /// The code artifact that this code key leads to.
  std::optional<Digest> code(const Digest& key);
  /// The same, whole.
  std::optional<Image> image(const Digest& key);
  /// The code artifact of this digest, whole.
  std::optional<Image> image_named(const Digest& digest);
  /// The plan artifact of this digest; its bytes are valid as long as this.
  std::optional<std::span<const uint8_t>> plan_named(const Digest& digest);
  struct CompletePlan {
    Digest digest;
    std::vector<Digest> codes;  // per spec of the plan
  };
  /// The plan artifact that this plan key leads to, when every kernel it names is there too.
  std::optional<CompletePlan> complete_plan(const Digest& key);

 private:
  kiln_reader* m_reader;
};

}  // namespace kiln
