#pragma once

#include <optional>
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
  /// The plan artifact that this plan key leads to, when every kernel it names is there too.
  std::optional<Digest> complete_plan(const Digest& key);

 private:
  kiln_reader* m_reader;
};

}  // namespace kiln
