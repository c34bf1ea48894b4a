// Packs under arbitrary bytes. Signatures are left out, or no mutation would get past them: what a trusted signer writes is
// out of shape, too, as far as this can tell.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "cache/pack/pack.h"

namespace {

std::string make_file() {
  static char name[] = "/tmp/kiln-pack-fuzz-XXXXXX";
  close(mkstemp(name));
  std::atexit([] { unlink(name); });
  return name;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = make_file();
  std::vector<uint8_t> bytes(data, data + size);
  bytes.resize(std::max(size, sizeof(kiln::PackHeader)));
  auto& header = *reinterpret_cast<kiln::PackHeader*>(bytes.data());
  header.magic = kiln::k_pack_magic;
  header.version = kiln::k_pack_version;
  header.reserved = 0;
  std::memset(header.signer, 0, sizeof header.signer);
  std::memset(header.signature, 0, sizeof header.signature);
  header.artifact_count %= 4;  // a file has room for so many
  header.head_count %= 4;
  const uint64_t body = kiln::pack_body_offset(header.artifact_count, header.head_count);
  bytes.resize(std::max<size_t>(bytes.size(), body));
  reinterpret_cast<kiln::PackHeader*>(bytes.data())->body_size = bytes.size() - body;

  const int fd = open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0 || write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  close(fd);
  const auto pack = kiln::Pack::open(path);
  if (pack.ok()) (void)pack->check_all();
  return 0;
}
