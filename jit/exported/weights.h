#pragma once

#include <span>
#include <string>

#include "jit/exported/export_manifest.h"

namespace kiln {

/// A file of weights, mapped read only: its pages are shared by all processes that map it, and none is copied. Each tensor
/// begins at a page. A file that is cut while it is mapped ends the process, as with any file that is mapped.
class Weights {
 public:
  Weights() = default;
  Weights(Weights&& other) noexcept { *this = std::move(other); }
  Weights& operator=(Weights&& other) noexcept {
    std::swap(m_bytes, other.m_bytes);
    return *this;
  }
  ~Weights();

  /// Maps a file that an export in `folder` names, and checks every byte of it, on as many threads as there are
  /// processors. Errors: invalid_argument for a name that leads out of the folder; not_found; permission_denied for what is
  /// no regular file of this user or root, or may be written by others; data_loss for other bytes than were exported.
  static Expected<Weights> open(const std::string& folder, const ExportWeights& expected);

  std::span<const uint8_t> bytes() const { return m_bytes; }

 private:
  static Expected<Weights> map(const std::string& folder, const std::string& name);
  friend Expected<ExportWeights> describe_weights(const std::string& folder, const std::string& name);

  std::span<const uint8_t> m_bytes;
};

/// What an export says of the file. Errors: as of Weights::open.
Expected<ExportWeights> describe_weights(const std::string& folder, const std::string& name);

}  // namespace kiln
