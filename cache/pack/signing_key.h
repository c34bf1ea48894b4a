#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/expected.h"
#include "cache/pack/public_key.h"

namespace kiln {

/// What packs are signed with: an Ed25519 key with both its halves.
class SigningKey {
 public:
  static Expected<SigningKey> create();
  /// From a file as `kiln key create` or `openssl genpkey -algorithm ed25519` writes it. Errors: not_found,
  /// permission_denied for a file that others may write, invalid_argument.
  static Expected<SigningKey> read(const std::string& path);
  SigningKey(SigningKey&&) noexcept;
  SigningKey& operator=(SigningKey&&) noexcept;
  ~SigningKey();

  /// Writes both halves, in PEM: `private_path` for its owner's eyes alone. Errors: already_exists when one of the files is
  /// there, unavailable.
  Status write(const std::string& private_path, const std::string& public_path) const;

  const PublicKey& public_key() const { return m_public; }
  Signature sign(std::span<const uint8_t> message) const;

 private:
  struct Secret;
  SigningKey(std::unique_ptr<Secret> secret, const PublicKey& half);

  std::unique_ptr<Secret> m_secret;
  PublicKey m_public;
};

}  // namespace kiln
