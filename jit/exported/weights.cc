#include "jit/exported/weights.h"

#include <fcntl.h>
#include <omp.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "base/limits.h"
#include "base/trusted_file.h"
#include "jit/run/team_size.h"

namespace kiln {
namespace {

bool is_bare_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::vector<uint64_t> checksums_of(std::span<const uint8_t> bytes) {
  const auto pieces = static_cast<int64_t>((bytes.size() + k_weights_piece_bytes - 1) / k_weights_piece_bytes);
  std::vector<uint64_t> checksums(static_cast<size_t>(pieces));
  const uint32_t team = team_size(static_cast<uint32_t>(omp_get_num_procs()));
#pragma omp parallel for schedule(dynamic, 4) num_threads(team)
  for (int64_t i = 0; i < pieces; ++i) {
    const auto begin = static_cast<uint64_t>(i) * k_weights_piece_bytes;
    checksums[static_cast<size_t>(i)] =
        checksum_of(bytes.subspan(begin, std::min<uint64_t>(k_weights_piece_bytes, bytes.size() - begin)));
  }
  return checksums;
}

}  // namespace

Weights::~Weights() {
  if (!m_bytes.empty()) ::munmap(const_cast<uint8_t*>(m_bytes.data()), m_bytes.size());
}

Expected<Weights> Weights::map(const std::string& folder, const std::string& name) {
  if (!is_bare_name(name)) {
    return invalid_argument("the export names its weights '{}', expected a file in its own folder", name);
  }
  const std::string path = folder + "/" + name;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    const StatusCode code = errno == ENOENT  ? StatusCode::not_found
                            : errno == ELOOP ? StatusCode::permission_denied
                                             : StatusCode::unavailable;
    return error(code, "{}: {}", path, errno == ELOOP ? "is a link, expected a file" : std::strerror(errno));
  }
  struct stat status;
  if (::fstat(file.get(), &status) != 0 || !is_trusted_file(status)) {
    return error(StatusCode::permission_denied, "{}: is no file that this user or root alone may write", path);
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size > limits::k_export_weights_bytes) {
    return error(StatusCode::resource_exhausted, "{}: {} bytes, at most {}", path, size,
                 limits::k_export_weights_bytes);
  }
  Weights weights;
  if (size == 0) return weights;
  void* pages = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (pages == MAP_FAILED) return error(StatusCode::unavailable, "{}: {}", path, std::strerror(errno));
  weights.m_bytes = {static_cast<const uint8_t*>(pages), size};
  return weights;
}

Expected<Weights> Weights::open(const std::string& folder, const ExportWeights& expected) {
  KILN_ASSIGN_OR_RETURN(Weights weights, map(folder, expected.file));
  if (weights.m_bytes.size() != expected.bytes) {
    return error(StatusCode::data_loss, "{}/{}: has {} bytes, {} were exported", folder, expected.file,
                 weights.m_bytes.size(), expected.bytes);
  }
  const std::vector<uint64_t> found = checksums_of(weights.m_bytes);
  if (found == expected.checksums) return weights;
  const auto first = std::ranges::mismatch(found, expected.checksums).in1 - found.begin();
  return error(StatusCode::data_loss, "{}/{}: the bytes at {} are not those that were exported", folder, expected.file,
               static_cast<uint64_t>(first) * k_weights_piece_bytes);
}

Expected<ExportWeights> describe_weights(const std::string& folder, const std::string& name) {
  KILN_ASSIGN_OR_RETURN(const Weights weights, Weights::map(folder, name));
  return ExportWeights{name, weights.bytes().size(), checksums_of(weights.bytes())};
}

}  // namespace kiln
