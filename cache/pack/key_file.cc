#include "cache/pack/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "base/trusted_file.h"

namespace kiln {
namespace {

constexpr off_t k_key_file_bytes = 16 << 10;  // a key in PEM has a hundred

}  // namespace

Expected<KeyText> read_key_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return error(StatusCode::not_found, "{}: {}", path, std::strerror(errno));
  struct stat status;
  if (::fstat(file.get(), &status) != 0 || !is_trusted_file(status)) {
    return error(StatusCode::permission_denied, "{}: is no file that this user or root alone may write", path);
  }
  if (status.st_size > k_key_file_bytes) {
    return error(StatusCode::resource_exhausted, "{}: {} bytes, at most {}", path, status.st_size, k_key_file_bytes);
  }
  KeyText text{std::vector<char>(static_cast<size_t>(status.st_size)), nullptr};
  const ssize_t got = ::pread(file.get(), text.bytes.data(), text.bytes.size(), 0);
  text.bytes.resize(got < 0 ? 0 : static_cast<size_t>(got));
  text.bio.reset(BIO_new_mem_buf(text.bytes.data(), static_cast<int>(text.bytes.size())));
  if (!text.bio) return error(StatusCode::resource_exhausted, "{}: no memory", path);
  return text;
}

int refuse_to_ask(char*, int, int, void*) { return -1; }

Expected<PublicKey> public_half(const EVP_PKEY* key, const std::string& path) {
  PublicKey half;
  size_t size = half.bytes.size();
  if (key == nullptr || EVP_PKEY_get_id(key) != EVP_PKEY_ED25519 ||
      EVP_PKEY_get_raw_public_key(key, half.bytes.data(), &size) != 1 || size != half.bytes.size()) {
    return invalid_argument("{}: is no Ed25519 key in PEM without a password", path);
  }
  return half;
}

}  // namespace kiln
