#include "cache/pack/public_key.h"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include <memory>

#include "base/hex.h"
#include "cache/pack/key_file.h"

namespace kiln {

std::string PublicKey::to_short() const { return to_hex(std::span(bytes).first(8)); }

bool PublicKey::has_signed(std::span<const uint8_t> message, const Signature& signature) const {
  const EvpKey key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, bytes.data(), bytes.size()));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  return key && context && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
         EVP_DigestVerify(context.get(), signature.data(), signature.size(), message.data(), message.size()) == 1;
}

Expected<PublicKey> PublicKey::read(const std::string& path) {
  KILN_ASSIGN_OR_RETURN(const KeyText text, read_key_file(path));
  const EvpKey key(PEM_read_bio_PUBKEY(text.bio.get(), nullptr, refuse_to_ask, nullptr));
  return public_half(key.get(), path);
}

}  // namespace kiln
