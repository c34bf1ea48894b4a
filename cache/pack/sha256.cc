#include "cache/pack/sha256.h"

#include <openssl/evp.h>

#include <cstdlib>

namespace kiln {

Sha256 sha256_of(std::span<const uint8_t> bytes) {
  // Fetched once: a fetch takes OpenSSL's own lock, which a fork by another thread could leave held.
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Sha256 hash;
  // It fails without memory, or where the host's configuration has turned SHA-256 off: nothing may be believed then.
  if (EVP_Digest(bytes.data(), bytes.size(), hash.data(), nullptr, algorithm, nullptr) != 1) std::abort();
  return hash;
}

}  // namespace kiln
