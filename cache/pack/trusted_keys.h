#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/expected.h"
#include "cache/pack/public_key.h"

namespace kiln {

/// The signers that somebody trusts: the `.pub` files of a folder.
class TrustedKeys {
 public:
  /// An empty name is a folder without files. Errors: not_found, permission_denied for a folder that others than this user
  /// and root may write.
  static Expected<TrustedKeys> read(const std::string& folder);

  bool contains(const PublicKey& key) const { return m_keys.contains(key); }
  /// One sentence for each file that is no key, and so trusts nobody.
  const std::vector<std::string>& unreadable() const { return m_unreadable; }

 private:
  std::set<PublicKey> m_keys;
  std::vector<std::string> m_unreadable;
};

}  // namespace kiln
