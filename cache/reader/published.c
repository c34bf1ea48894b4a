#define _GNU_SOURCE
#include "cache/reader/published.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/format/index.h"
#include "cache/format/touch.h"

/* A private directory of this user, or one of root's that others can only read (a pack in an image). */
static int directory_trusted(const struct stat* status) {
  if (status->st_uid == 0 && (status->st_mode & 022) == 0) return 1;
  return status->st_uid == geteuid() && (status->st_mode & 077) == 0;
}

static int file_trusted(const struct stat* status) {
  return S_ISREG(status->st_mode) && (status->st_uid == 0 || status->st_uid == geteuid()) &&
         (status->st_mode & 022) == 0;
}

static enum kiln_miss miss_of_errno(enum kiln_miss absent) {
  if (errno == ENOENT || errno == ENOTDIR) return absent;
  if (errno == EACCES || errno == EPERM || errno == ELOOP) return KILN_MISS_OWNER;
  return KILN_MISS_UNMAPPABLE; /* out of descriptors, memory, a failing device */
}

static enum kiln_miss open_trusted_directory(int parent, const char* name, int follow, int* out) {
  int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC | follow);
  if (fd < 0) return miss_of_errno(KILN_MISS_NO_CACHE);
  struct stat status;
  if (fstat(fd, &status) != 0 || !directory_trusted(&status)) {
    close(fd);
    return KILN_MISS_OWNER;
  }
  *out = fd;
  return KILN_HIT;
}

/* The user may have linked the cache directory elsewhere; below it nothing is a link. */
enum kiln_miss kiln_folder_open(const char* directory, int* out) {
  int top;
  enum kiln_miss miss = open_trusted_directory(AT_FDCWD, directory, 0, &top);
  if (miss != KILN_HIT) return miss;
  miss = open_trusted_directory(top, KILN_PUBLISHED_FOLDER, O_NOFOLLOW, out);
  close(top);
  return miss;
}

static struct file_identity identity_of(const struct stat* status) {
  struct file_identity identity = {status->st_dev, status->st_ino,
                                   (int64_t)status->st_ctim.tv_sec * 1000000000 + (int64_t)status->st_ctim.tv_nsec};
  return identity;
}

/* O_NONBLOCK: a fifo planted under the name must not hang the open; it is refused by its type. */
static enum kiln_miss open_trusted_file(int folder, const char* name, int access, struct published_file* file) {
  const int fd = openat(folder, name, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return miss_of_errno(KILN_MISS_EVICTED);
  struct stat status;
  if (fstat(fd, &status) != 0 || !file_trusted(&status)) {
    close(fd);
    return KILN_MISS_OWNER;
  }
  file->fd = fd;
  file->size = (uint64_t)status.st_size;
  file->identity = identity_of(&status);
  return KILN_HIT;
}

enum kiln_miss kiln_published_open(int folder, const char* name, struct published_file* file) {
  enum kiln_miss miss = open_trusted_file(folder, name, O_RDONLY, file);
  /* Places are read here and there: what the host would read ahead is nothing anybody asked for. */
  if (miss == KILN_HIT) posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM);
  return miss;
}

enum kiln_miss kiln_published_read(const struct published_file* file, void* to, size_t size, uint64_t offset) {
  uint8_t* next = to;
  while (size > 0) {
    const ssize_t got = pread(file->fd, next, size, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return KILN_MISS_CORRUPT;
    next += got;
    offset += (uint64_t)got;
    size -= (size_t)got;
  }
  return KILN_HIT;
}

static int is_index_name(const char* name) {
  if (strncmp(name, "index.", 6) != 0 || name[6] == '\0') return 0;
  return name[6 + strspn(name + 6, "0123456789")] == '\0';
}

enum kiln_miss kiln_published_current(int folder, char* name, struct file_identity* identity) {
  struct published_file file;
  enum kiln_miss miss = open_trusted_file(folder, KILN_CURRENT_FILE, O_RDONLY, &file);
  if (miss != KILN_HIT) return miss == KILN_MISS_EVICTED ? KILN_MISS_NO_CACHE : miss;
  const ssize_t size = read(file.fd, name, KILN_CURRENT_NAME_BYTES - 1);
  close(file.fd);
  if (size <= 0 || name[size - 1] != '\n') return KILN_MISS_CORRUPT;
  name[size - 1] = '\0';
  *identity = file.identity;
  return is_index_name(name) ? KILN_HIT : KILN_MISS_CORRUPT;
}

int kiln_published_moved(int folder, const struct file_identity* identity) {
  struct stat status;
  if (fstatat(folder, KILN_CURRENT_FILE, &status, AT_SYMLINK_NOFOLLOW) != 0) return 0; /* nothing newer to read */
  const struct file_identity now = identity_of(&status);
  return now.device != identity->device || now.inode != identity->inode || now.changed_ns != identity->changed_ns;
}

void kiln_published_touch(int folder, const uint8_t digest[32], uint32_t minutes) {
  struct published_file file;
  if (open_trusted_file(folder, KILN_TOUCH_FILE, O_WRONLY, &file) != KILN_HIT) return;
  const uint64_t offset = kiln_touch_offset(digest);
  /* Only within the file: a client makes nothing grow. Should the disk be full, the use goes unnoticed. */
  if (offset + sizeof minutes <= file.size && pwrite(file.fd, &minutes, sizeof minutes, (off_t)offset) < 0) errno = 0;
  close(file.fd);
}
