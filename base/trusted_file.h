#pragma once

#include <sys/stat.h>
#include <unistd.h>

namespace kiln {

/// Whether a file is a regular one that this user or root owns, and nobody else may write to.
inline bool is_trusted_file(const struct stat& status) {
  return S_ISREG(status.st_mode) && (status.st_uid == geteuid() || status.st_uid == 0) && (status.st_mode & 022) == 0;
}

}  // namespace kiln
