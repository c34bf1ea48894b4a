#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>

#include <memory>
#include <string>
#include <vector>

#include "base/expected.h"
#include "cache/pack/public_key.h"

/// Files with keys, in PEM. OpenSSL's types: for this folder's sources alone.
namespace kiln {

struct EvpKeyFree {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using EvpKey = std::unique_ptr<EVP_PKEY, EvpKeyFree>;

struct BioFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
};

/// A key's file, in memory.
struct KeyText {
  std::vector<char> bytes;
  std::unique_ptr<BIO, BioFree> bio;  // over the bytes
};

/// Errors: not_found; permission_denied for what is no regular file of this user or root, or may be written by others;
/// resource_exhausted for one that is larger than any key.
Expected<KeyText> read_key_file(const std::string& path);

/// For PEM's functions, which would ask the terminal for a password.
int refuse_to_ask(char* buffer, int size, int writing, void* context);

/// Errors: invalid_argument when `key` is null or another algorithm's.
Expected<PublicKey> public_half(const EVP_PKEY* key, const std::string& path);

}  // namespace kiln
