/* The execution worker: runs candidate kernels that may be wrong.
 *
 * It is a program of its own, on libc and libseccomp alone, so that it starts in a millisecond and holds
 * nothing worth breaking: no compiler, no cache, no network. Its parent sends code in a sealed memfd and data
 * in a shared one; it maps the code read+execute (never writable: W^X), calls it, and answers with times. It
 * judges nothing: red zones and results are checked by the parent, which never maps the code.
 *
 * What bad code can do: loop (the parent kills us after the deadline), crash (the parent sees us die),
 * scribble over the shared buffers (red zones tell), over our own memory (we die or answer nonsense about
 * times; the results are judged elsewhere). System calls beyond the few below kill the process. Not defended:
 * code written to deceive, which could forge times. Our compiler is buggy at worst, not malicious. */

#define _GNU_SOURCE
#include "jit/worker/executor_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define POISON 0xff /* NaN in every float format; an index far outside */

typedef void (*entry_point)(void* const* buffers, void* workspace, uint32_t* status, int64_t first, int64_t last);

struct memory {
  uint8_t* address;
  uint64_t bytes;
};

static struct memory g_data;
static struct memory g_workspace;
static uint64_t g_page_bytes;

static uint64_t round_up(uint64_t bytes) { return (bytes + g_page_bytes - 1) / g_page_bytes * g_page_bytes; }

/* Maps with an unreadable page on both sides, so that a stride too far crashes instead of finding a
 * neighbour. */
static int map_guarded(struct memory* out, uint64_t bytes, int protection, int flags, int fd) {
  const uint64_t inner = round_up(bytes ? bytes : 1);
  uint8_t* outer = mmap(NULL, inner + 2 * g_page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (outer == MAP_FAILED) return -1;
  if (mmap(outer + g_page_bytes, inner, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) return -1;
  out->address = outer + g_page_bytes;
  out->bytes = inner;
  return 0;
}

static void unmap_guarded(struct memory* memory) {
  if (memory->address) munmap(memory->address - g_page_bytes, memory->bytes + 2 * g_page_bytes);
  memory->address = NULL;
  memory->bytes = 0;
}

/* Nothing but what the loop below needs; everything else kills. mmap may not ask for writable and executable.
 */
static int enter_sandbox(void) {
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
  if (!filter) return -1;
  const int plain[] = {SCMP_SYS(recvmsg),       SCMP_SYS(sendmsg),    SCMP_SYS(munmap), SCMP_SYS(close),
                       SCMP_SYS(clock_gettime), SCMP_SYS(exit_group), SCMP_SYS(exit),   SCMP_SYS(restart_syscall)};
  int failed = 0;
  for (size_t i = 0; i < sizeof plain / sizeof *plain; ++i)
    failed |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, plain[i], 0);
  const uint64_t wx = PROT_WRITE | PROT_EXEC;
  const uint64_t allowed[] = {0, PROT_WRITE, PROT_EXEC};
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; ++i) {
    failed |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, wx, allowed[i]));
  }
  failed |= seccomp_load(filter);
  seccomp_release(filter);
  return failed ? -1 : 0;
}

static void limit(int resource, rlim_t value) {
  const struct rlimit bound = {value, value};
  setrlimit(resource, &bound);
}

static int receive(struct kiln_executor_request* request, int* fd) {
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {request, sizeof *request};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got;
  do got = recvmsg(KILN_EXECUTOR_SOCKET, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  *fd = -1;
  for (struct cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(header), sizeof *fd);
  }
  return got == sizeof *request && request->magic == KILN_EXECUTOR_MAGIC && *fd >= 0;
}

static void send_reply(const struct kiln_executor_reply* reply) {
  struct iovec part = {(void*)reply, sizeof *reply};
  const struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (sendmsg(KILN_EXECUTOR_SOCKET, &message, MSG_NOSIGNAL) != sizeof *reply) _exit(1);
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int map_data(const struct kiln_executor_request* request, int fd) {
  unmap_guarded(&g_data);
  return map_guarded(&g_data, request->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
}

static int run(const struct kiln_executor_request* request, int fd, struct kiln_executor_reply* reply) {
  void* buffers[KILN_EXECUTOR_BUFFERS];
  if (request->buffer_count > KILN_EXECUTOR_BUFFERS || request->repetitions > KILN_EXECUTOR_REPETITIONS ||
      request->entry >= request->bytes) {
    errno = EINVAL;
    return -1;
  }
  for (uint32_t i = 0; i < request->buffer_count; ++i) {
    if (request->buffer_offsets[i] > g_data.bytes) return errno = EINVAL, -1;
    buffers[i] = g_data.address + request->buffer_offsets[i];
  }
  if (request->workspace_bytes > g_workspace.bytes) {
    unmap_guarded(&g_workspace);
    if (map_guarded(&g_workspace, request->workspace_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1) != 0) {
      return -1;
    }
  }
  /* Pushed against the upper guard page: the likelier end to overrun. 64-byte aligned as the contract says.
   */
  uint8_t* workspace = g_workspace.address;
  if (workspace) {
    workspace += (g_workspace.bytes - request->workspace_bytes) / 64 * 64;
    memset(workspace, POISON, request->workspace_bytes);
  }
  struct memory code = {0};
  if (map_guarded(&code, request->bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd) != 0) return -1;
  entry_point entry;
  const uint8_t* address = code.address + request->entry;
  memcpy(&entry, &address, sizeof entry);
  for (uint32_t i = 0; i < request->repetitions; ++i) {
    const uint64_t begin = now_ns();
    entry(buffers, workspace, &reply->launch_status, 0, (int64_t)request->tasks);
    reply->nanoseconds[i] = now_ns() - begin;
  }
  reply->repetitions = request->repetitions;
  unmap_guarded(&code);
  return 0;
}

/* argv: the parent's pid, the address space limit in bytes (0: none). */
int main(int argc, char** argv) {
  if (argc != 3) return 2;
  g_page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != (pid_t)atol(argv[1])) return 0; /* the parent died before prctl could tell */
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_NOFILE, 16);
  const rlim_t address_space = strtoull(argv[2], NULL, 10);
  if (address_space) limit(RLIMIT_AS, address_space);
#if defined(__x86_64__)
  syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* AMX tile data; refused where there is none */);
#endif
  now_ns(); /* binds the vdso before the door closes */
  if (enter_sandbox() != 0) return 3;

  for (;;) {
    struct kiln_executor_request request;
    int fd;
    if (!receive(&request, &fd)) _exit(0);
    struct kiln_executor_reply reply = {.magic = KILN_EXECUTOR_MAGIC};
    const int failed = request.command == KILN_EXECUTOR_DATA ? map_data(&request, fd) : run(&request, fd, &reply);
    if (failed) {
      reply.result = KILN_EXECUTOR_REFUSED;
      reply.error_number = (uint32_t)errno;
    }
    close(fd);
    send_reply(&reply);
  }
}
