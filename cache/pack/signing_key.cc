#include "cache/pack/signing_key.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "base/fd.h"
#include "cache/pack/key_file.h"

namespace kiln {
namespace {

Status write_new(const std::string& path, mode_t mode, const std::function<int(BIO*)>& print) {
  const std::unique_ptr<BIO, BioFree> text(BIO_new(BIO_s_mem()));
  char* bytes = nullptr;
  if (!text || print(text.get()) != 1) return error(StatusCode::unavailable, "{}: the key cannot be written", path);
  const long size = BIO_get_mem_data(text.get(), &bytes);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!file) {
    const StatusCode code = errno == EEXIST ? StatusCode::already_exists : StatusCode::unavailable;
    return error(code, "{}: {}", path, std::strerror(errno));
  }
  if (::write(file.get(), bytes, static_cast<size_t>(size)) != size || ::fsync(file.get()) != 0) {
    return error(StatusCode::unavailable, "{}: {}", path, std::strerror(errno));
  }
  return {};
}

}  // namespace

struct SigningKey::Secret {
  EvpKey key;
};

SigningKey::SigningKey(std::unique_ptr<Secret> secret, const PublicKey& half)
    : m_secret(std::move(secret)), m_public(half) {}
SigningKey::SigningKey(SigningKey&&) noexcept = default;
SigningKey& SigningKey::operator=(SigningKey&&) noexcept = default;
SigningKey::~SigningKey() = default;

Expected<SigningKey> SigningKey::create() {
  EvpKey key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  KILN_ASSIGN_OR_RETURN(const PublicKey half, public_half(key.get(), "a new key"));
  return SigningKey(std::make_unique<Secret>(std::move(key)), half);
}

Expected<SigningKey> SigningKey::read(const std::string& path) {
  KILN_ASSIGN_OR_RETURN(const KeyText text, read_key_file(path));
  EvpKey key(PEM_read_bio_PrivateKey(text.bio.get(), nullptr, refuse_to_ask, nullptr));
  KILN_ASSIGN_OR_RETURN(const PublicKey half, public_half(key.get(), path));
  return SigningKey(std::make_unique<Secret>(std::move(key)), half);
}

Status SigningKey::write(const std::string& private_path, const std::string& public_path) const {
  EVP_PKEY* key = m_secret->key.get();
  KILN_RETURN_IF_ERROR(write_new(private_path, 0600, [key](BIO* to) {
    return PEM_write_bio_PrivateKey(to, key, nullptr, nullptr, 0, nullptr, nullptr);
  }));
  return write_new(public_path, 0644, [key](BIO* to) { return PEM_write_bio_PUBKEY(to, key); });
}

Signature SigningKey::sign(std::span<const uint8_t> message) const {
  Signature signature;
  size_t size = signature.size();
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  // Signing with a key in memory fails without memory alone.
  if (!context || EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, m_secret->key.get()) != 1 ||
      EVP_DigestSign(context.get(), signature.data(), &size, message.data(), message.size()) != 1) {
    std::abort();
  }
  return signature;
}

}  // namespace kiln
