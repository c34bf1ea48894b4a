#include "cache/pack/pack_trust.h"

namespace kiln {

Expected<bool> PackTrust::allows_captures(const Pack& pack) const {
  if (!pack.signer()) return error(StatusCode::permission_denied, "{}: nobody signed it", pack.path());
  if (capture_keys.contains(*pack.signer())) return true;
  if (keys.contains(*pack.signer())) return false;
  return error(StatusCode::permission_denied, "{}: signed by {}, whom packs.trust does not name", pack.path(),
               pack.signer()->to_short());
}

}  // namespace kiln
