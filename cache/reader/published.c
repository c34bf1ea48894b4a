#define _GNU_SOURCE
#include "cache/reader/published.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/format/index.h"

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
static enum kiln_miss open_folder(const char* directory, int* out) {
  int top;
  enum kiln_miss miss = open_trusted_directory(AT_FDCWD, directory, 0, &top);
  if (miss != KILN_HIT) return miss;
  miss = open_trusted_directory(top, KILN_PUBLISHED_FOLDER, O_NOFOLLOW, out);
  close(top);
  return miss;
}

/* O_NONBLOCK: a fifo planted under the name must not hang the open; it is refused by its type. */
static enum kiln_miss open_published(const char* directory, const char* name, int* out, struct stat* status) {
  int folder;
  enum kiln_miss miss = open_folder(directory, &folder);
  if (miss != KILN_HIT) return miss;
  int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  miss = fd < 0 ? miss_of_errno(KILN_MISS_EVICTED) : KILN_HIT;
  close(folder);
  if (fd < 0) return miss;
  if (fstat(fd, status) != 0 || !file_trusted(status)) {
    close(fd);
    return KILN_MISS_OWNER;
  }
  *out = fd;
  return KILN_HIT;
}

enum kiln_miss kiln_published_map(const char* directory, const char* name, int sharing, struct mapped_file* file) {
  int fd;
  struct stat status;
  enum kiln_miss miss = open_published(directory, name, &fd, &status);
  if (miss != KILN_HIT) return miss;
  const size_t size = (size_t)status.st_size;
  void* base = size == 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, sharing, fd, 0);
  /* Asked again after mapping: a file cut short in between must not be touched beyond its end. */
  const int cut = fstat(fd, &status) != 0 || (size_t)status.st_size != size;
  close(fd);
  if (base == MAP_FAILED) return size == 0 ? KILN_MISS_CORRUPT : KILN_MISS_UNMAPPABLE;
  if (cut) {
    munmap(base, size);
    return KILN_MISS_CORRUPT;
  }
  /* Before the first touch: else the first fault reads as far ahead as the host is set to, up to megabytes.
   */
  madvise(base, size, MADV_RANDOM);
  file->base = base;
  file->size = size;
  return KILN_HIT;
}

static struct current_identity identity_of(const struct stat* status) {
  struct current_identity identity = {status->st_dev, status->st_ino,
                                      (int64_t)status->st_ctim.tv_sec * 1000000000 + (int64_t)status->st_ctim.tv_nsec};
  return identity;
}

static int is_index_name(const char* name) {
  if (strncmp(name, "index.", 6) != 0 || name[6] == '\0') return 0;
  return name[6 + strspn(name + 6, "0123456789")] == '\0';
}

enum kiln_miss kiln_published_current(const char* directory, char* name, struct current_identity* identity) {
  int fd;
  struct stat status;
  enum kiln_miss miss = open_published(directory, KILN_CURRENT_FILE, &fd, &status);
  if (miss != KILN_HIT) return miss == KILN_MISS_EVICTED ? KILN_MISS_NO_CACHE : miss;
  const ssize_t size = read(fd, name, KILN_CURRENT_NAME_BYTES - 1);
  close(fd);
  if (size <= 0 || name[size - 1] != '\n') return KILN_MISS_CORRUPT;
  name[size - 1] = '\0';
  *identity = identity_of(&status);
  return is_index_name(name) ? KILN_HIT : KILN_MISS_CORRUPT;
}

int kiln_published_moved(const char* directory, const struct current_identity* identity) {
  struct stat status;
  char path[4096 + sizeof "/" KILN_PUBLISHED_FOLDER "/" KILN_CURRENT_FILE];
  const size_t length = strlen(directory);
  if (length > 4096) return 0;
  memcpy(path, directory, length);
  memcpy(path + length, "/" KILN_PUBLISHED_FOLDER "/" KILN_CURRENT_FILE,
         sizeof "/" KILN_PUBLISHED_FOLDER "/" KILN_CURRENT_FILE);
  if (lstat(path, &status) != 0) return 0; /* nothing newer to read */
  const struct current_identity now = identity_of(&status);
  return now.device != identity->device || now.inode != identity->inode || now.changed_ns != identity->changed_ns;
}

enum kiln_miss kiln_populate(const uint8_t* first, size_t size) {
  const uintptr_t begin = (uintptr_t)first & ~(uintptr_t)(KILN_PAGE_BYTES - 1);
  const size_t length = (uintptr_t)first + size - begin;
  madvise((void*)begin, length, MADV_WILLNEED);
  if (madvise((void*)begin, length, MADV_POPULATE_READ) == 0) return KILN_HIT;
  /* Kernels before 5.14 do not know it: the pages fault one by one instead. */
  return errno == EINVAL ? KILN_HIT : KILN_MISS_CORRUPT;
}
