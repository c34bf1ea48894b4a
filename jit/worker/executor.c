/* The execution worker: runs candidate kernels that may be wrong.
 *
 * It is a program of its own, on libc and libseccomp alone, so that it starts in a millisecond and holds
 * nothing worth breaking: no compiler, no cache, no network. Its parent sends code in a sealed memfd and data
 * in a shared one, and pools that inputs are made of; it maps the code read+execute (never writable: W^X), calls it
 * with the tasks shared among its threads, and answers with times. It judges nothing: red zones and results are checked
 * by the parent, which never maps the code.
 *
 * What bad code can do: loop (the parent kills us after the deadline), crash (the parent sees us die),
 * scribble over the shared buffers (red zones tell), over our own memory (we die or answer nonsense about
 * times; the results are judged elsewhere). System calls beyond the few below kill the process.
 * What code written to deceive can do besides (remote.untrusted: judge lets in code that others made): be right only while it
 * is looked at, here and for as long as this process lives, and forge times. It reaches no file, network or other process. */

#define _GNU_SOURCE
#include "backends/cpu/runtime/entry.h"
#include "backends/host_process.h"
#include "jit/worker/executor_wire.h"
#include "verdict/repeated_mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <seccomp.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MADV_POPULATE_WRITE_ 23 /* Linux 5.14; older ones refuse, and pages come one by one */
#define MAX_THREADS 64          /* that tasks are shared among */
#define FEW_THREADS 4           /* where nobody says how many */
#define STACK_BYTES (2 << 20)   /* of each thread but the first */
#define CHUNKS_PER_THREAD 8
#define HUGE_PAGE_BYTES (2ull << 20)
#define LARGE_BYTES (256ull << 10) /* of one thread's workspace, a buffer's copy */
#define POISON 0xff                /* NaN in every float format; an index far outside */

struct memory {
  uint8_t* address;
  uint64_t bytes;
  uint8_t* outer; /* with what is unreadable around it */
  uint64_t outer_bytes;
};

/* The launch that the threads work on. */
struct launch {
  struct memory code;
  kiln_entry_point entry;
  void* buffers[KILN_EXECUTOR_BUFFERS];
  int64_t extents[KILN_EXECUTOR_EXTENTS];
  uint32_t* status;
  uint64_t tasks; /* of those that are run */
  uint64_t last_task;
  uint64_t step; /* 0: no launch, caches are swept */
  uint64_t chunk;
  atomic_uint_fast64_t next;
};

static struct memory g_data;
static uint64_t g_populated_bytes;                 /* of the data, from its begin on: what has its pages */
static struct memory g_own[KILN_EXECUTOR_BUFFERS]; /* copies of buffers, for timing */
static struct {
  struct memory memory;
  struct kiln_executor_buffer of;
} g_copies[KILN_EXECUTOR_BUFFERS]; /* copies of what launches that are timed together take from pools */
static struct memory g_swept[MAX_THREADS];
static struct memory g_workspaces[MAX_THREADS];
static uint64_t g_workspace_bytes;
static struct {
  int fd;
  uint64_t bytes;
} g_pools[KILN_EXECUTOR_POOLS];
static struct {
  struct kiln_repeated_mapping mapping;
  struct kiln_executor_buffer of;
} g_inputs[KILN_EXECUTOR_BUFFERS]; /* kept for the next launch, which most often takes the same */
static uint64_t g_page_bytes;
static struct launch g_launches[KILN_EXECUTOR_STEPS]; /* those that are kept; any other is the first */
static struct launch* g_launch = g_launches;
static uint32_t g_kept;
static uint64_t g_swept_bytes;
static int g_threads = 1; /* that there are, with this one */
static int g_team = 1;    /* those of them that take part, from the first on */
static sem_t g_begin[MAX_THREADS], g_done;

static uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

/* Maps whole pages from a multiple of `alignment` on, with unreadable ones on both sides, so that a stride too far
 * crashes instead of finding a neighbour. */
static int map_guarded(struct memory* out, uint64_t bytes, uint64_t alignment, int protection, int flags, int fd) {
  const uint64_t inner = round_up(bytes ? bytes : 1, alignment), outer_bytes = inner + alignment + g_page_bytes;
  uint8_t* outer = mmap(NULL, outer_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (outer == MAP_FAILED) return -1;
  const uint64_t at = (uintptr_t)outer;
  uint8_t* begin = outer + (round_up(at + g_page_bytes, alignment) - at);
  if (mmap(begin, inner, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) return -1;
  *out = (struct memory){begin, inner, outer, outer_bytes};
  return 0;
}

/* Memory of this process's own. What is large lies in huge pages, as what programs work in does: small ones, which may lie
 * anywhere, seem to crowd some sets of the second-level cache, and times would be those of where they happen to lie. */
static int map_own(struct memory* out, uint64_t bytes) {
  const int is_large = bytes >= LARGE_BYTES, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const uint64_t alignment = is_large ? HUGE_PAGE_BYTES : g_page_bytes;
  if (map_guarded(out, bytes, alignment, PROT_READ | PROT_WRITE, flags, -1) != 0) return -1;
  if (is_large) madvise(out->address, out->bytes, MADV_HUGEPAGE); /* advice: refusal is harmless */
  return 0;
}

static void unmap_guarded(struct memory* memory) {
  if (memory->address) munmap(memory->outer, memory->outer_bytes);
  *memory = (struct memory){0};
}

/* Nothing but what the loop below needs; everything else kills. mmap may not ask for writable and executable.
 */
static int enter_sandbox(void) {
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
  if (!filter) return -1;
  const int plain[] = {SCMP_SYS(recvmsg),         SCMP_SYS(sendmsg),   SCMP_SYS(munmap),     SCMP_SYS(close),
                       SCMP_SYS(clock_gettime),   SCMP_SYS(getrusage), SCMP_SYS(exit_group), SCMP_SYS(exit),
                       SCMP_SYS(restart_syscall), SCMP_SYS(futex)};
  int failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1); /* the threads that have begun, too */
  for (size_t i = 0; i < sizeof plain / sizeof *plain; ++i)
    failed |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, plain[i], 0);
  const uint64_t wx = PROT_WRITE | PROT_EXEC;
  const uint64_t allowed[] = {0, PROT_WRITE, PROT_EXEC};
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; ++i) {
    failed |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, wx, allowed[i]));
  }
  const uint64_t advice[] = {MADV_POPULATE_WRITE_, MADV_HUGEPAGE};
  for (size_t i = 0; i < sizeof advice / sizeof *advice; ++i)
    failed |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(madvise), 1, SCMP_A2(SCMP_CMP_EQ, advice[i]));
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
  g_populated_bytes = 0;
  return map_guarded(&g_data, request->bytes, g_page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
}

static int keep_pool(const struct kiln_executor_request* request, int fd) {
  if (request->pool >= KILN_EXECUTOR_POOLS) return errno = EINVAL, -1;
  g_pools[request->pool].fd = fd;
  g_pools[request->pool].bytes = request->bytes;
  return 0;
}

/* Where a thread's workspace begins: pushed against the upper guard page, the likelier end to overrun, and 64-byte
 * aligned as the contract says. */
static uint8_t* workspace_of(int thread) {
  const struct memory* memory = &g_workspaces[thread];
  return memory->address ? memory->address + (memory->bytes - g_workspace_bytes) / 64 * 64 : NULL;
}

static int prepare_workspaces(uint64_t bytes) {
  g_workspace_bytes = bytes;
  for (int thread = 0; thread < g_team; ++thread) {
    struct memory* memory = &g_workspaces[thread];
    if (bytes > memory->bytes) {
      unmap_guarded(memory);
      if (map_own(memory, bytes) != 0) return -1;
    }
    if (memory->address) memset(workspace_of(thread), POISON, bytes);
  }
  return 0;
}

/* Argument `i` of a launch that takes it from a pool; all its pages at once for a launch that runs all its tasks. */
static int map_input(uint32_t i, const struct kiln_executor_buffer* buffer, bool is_populated) {
  if (g_inputs[i].mapping.first && memcmp(&g_inputs[i].of, buffer, sizeof *buffer) == 0) return 0;
  kiln_unmap_repeated(&g_inputs[i].mapping);
  if (buffer->pool >= KILN_EXECUTOR_POOLS) return errno = EINVAL, -1;
  const int fd = g_pools[buffer->pool].fd;
  const uint64_t pool_bytes = g_pools[buffer->pool].bytes; /* 0 where none was sent: refused */
  g_inputs[i].of = *buffer;
  return kiln_map_repeatedly(&g_inputs[i].mapping, fd, pool_bytes, buffer->offset, buffer->bytes, is_populated);
}

static int map_buffers(const struct kiln_executor_request* request) {
  for (uint32_t i = request->buffer_count; i < KILN_EXECUTOR_BUFFERS; ++i) kiln_unmap_repeated(&g_inputs[i].mapping);
  for (uint32_t i = 0; i < request->buffer_count; ++i) {
    const struct kiln_executor_buffer* buffer = &request->buffers[i];
    if (buffer->pool == KILN_EXECUTOR_NO_POOL) {
      if (buffer->offset > g_data.bytes) return errno = EINVAL, -1;
      g_launch->buffers[i] = g_data.address + buffer->offset;
      continue;
    }
    if (map_input(i, buffer, request->task_step == 1) != 0) return -1;
    g_launch->buffers[i] = g_inputs[i].mapping.first;
  }
  return 0;
}

/* Copies of the buffers, so that a kernel is timed over memory like a program's: what it is judged on is a pool mapped
 * again and again, which stays in a cache. They are kept from one candidate to the next. */
static int copy_buffers(const struct kiln_executor_request* request) {
  for (int i = 0; request->is_fresh && i < KILN_EXECUTOR_BUFFERS; ++i) unmap_guarded(&g_own[i]);
  for (uint32_t i = 0; i < request->buffer_count; ++i) {
    struct memory* own = &g_own[i];
    const uint64_t bytes = request->buffers[i].bytes;
    if (own->address && own->bytes < bytes) return errno = EINVAL, -1;
    if (!own->address) {
      if (map_own(own, bytes) != 0) return -1;
      memcpy(own->address, g_launch->buffers[i], bytes);
    }
    g_launch->buffers[i] = own->address;
  }
  return 0;
}

/* Where a copy of this part of a pool is, made when it is first asked for. */
static void* copy_of(const struct kiln_executor_buffer* part, const void* pooled) {
  for (int i = 0; i < KILN_EXECUTOR_BUFFERS; ++i) {
    struct memory* memory = &g_copies[i].memory;
    if (memory->address && memcmp(&g_copies[i].of, part, sizeof *part) == 0) return memory->address;
    if (memory->address) continue;
    if (map_own(memory, part->bytes) != 0) return NULL;
    g_copies[i].of = *part;
    return memcpy(memory->address, pooled, part->bytes);
  }
  return errno = ENOBUFS, NULL;
}

static int copy_pooled(const struct kiln_executor_request* request) {
  for (int i = 0; request->is_fresh && request->place == 0 && i < KILN_EXECUTOR_BUFFERS; ++i)
    unmap_guarded(&g_copies[i].memory);
  for (uint32_t i = 0; i < request->buffer_count; ++i) {
    if (request->buffers[i].pool == KILN_EXECUTOR_NO_POOL) continue;
    g_launch->buffers[i] = copy_of(&request->buffers[i], g_launch->buffers[i]);
    if (!g_launch->buffers[i]) return -1;
  }
  return 0;
}

static int prepare_sweep(uint64_t bytes) {
  for (int thread = 0; thread < g_team; ++thread) {
    struct memory* memory = &g_swept[thread];
    if (bytes <= memory->bytes) continue;
    unmap_guarded(memory);
    if (map_own(memory, bytes) != 0) return -1;
  }
  return 0;
}

/* Drives what the last repetition left out of the caches that a core has for itself, as the kernels in between do. */
static void sweep(int thread) {
  for (uint64_t i = 0; i < g_swept_bytes; i += 64) ++*(volatile uint8_t*)(g_swept[thread].address + i);
}

/* How often a thread of this process had to wait for a processor, and for how long its threads had one. */
struct turns {
  uint64_t lost;
  uint64_t ran_ns;
};

static struct turns turns_so_far(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return (struct turns){0, 0};
  const uint64_t us = (uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec;
  const uint64_t s = (uint64_t)usage.ru_utime.tv_sec + (uint64_t)usage.ru_stime.tv_sec;
  return (struct turns){(uint64_t)usage.ru_nivcsw, s * 1000000000u + us * 1000u};
}

static void do_tasks(int thread) {
  uint8_t* workspace = workspace_of(thread);
  for (;;) {
    const uint64_t first = atomic_fetch_add(&g_launch->next, g_launch->chunk);
    if (first >= g_launch->tasks) return;
    const uint64_t left = g_launch->tasks - first;
    const uint64_t last = first + (left < g_launch->chunk ? left : g_launch->chunk);
    if (g_launch->step == 1) {
      g_launch->entry(g_launch->buffers, workspace, g_launch->status, (int64_t)first, (int64_t)last, g_launch->extents);
      continue;
    }
    for (uint64_t i = first; i < last; ++i) {
      const uint64_t each = i + 1 == g_launch->tasks ? g_launch->last_task : i * g_launch->step;
      g_launch->entry(g_launch->buffers, workspace, g_launch->status, (int64_t)each, (int64_t)each + 1,
                      g_launch->extents);
    }
  }
}

static void wait_for(sem_t* semaphore) {
  while (sem_wait(semaphore) != 0) { /* a signal */
  }
}

static void* help(void* number) {
  const int thread = (int)(intptr_t)number;
  sem_post(&g_done); /* begun: from here on it needs no system call but futex */
  for (;;) {
    wait_for(&g_begin[thread]);
    g_launch->step == 0 ? sweep(thread) : do_tasks(thread);
    sem_post(&g_done);
  }
  return NULL;
}

/* As many threads as processors that this process may run on; begun before the door closes. */
static void start_threads(void) {
  cpu_set_t allowed;
  const int processors = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sem_init(&g_done, 0, 0);
  for (pthread_t thread; g_threads < processors && g_threads < MAX_THREADS; ++g_threads) {
    sem_init(&g_begin[g_threads], 0, 0);
    if (pthread_create(&thread, &attributes, help, (void*)(intptr_t)g_threads) != 0) return;
    wait_for(&g_done);
  }
}

static void call_team(int members) {
  for (int i = 1; i < members; ++i) sem_post(&g_begin[i]);
}

static void await_team(int members) {
  for (int i = 1; i < members; ++i) wait_for(&g_done);
}

static void do_all_tasks(void) {
  const int members = g_launch->tasks > 1 ? g_team : 1;
  atomic_store(&g_launch->next, 0);
  call_team(members);
  do_tasks(0);
  await_team(members);
}

/* Pages of what may be written to, all at once instead of one by one while time is taken. Some tasks need some pages. */
static void populate(const struct kiln_executor_request* request) {
  if (!g_data.address || request->task_step > 1) return;
  if (request->used_bytes > g_populated_bytes) {
    madvise(g_data.address, round_up(request->used_bytes, g_page_bytes), MADV_POPULATE_WRITE_);
    g_populated_bytes = request->used_bytes;
  }
  for (uint32_t i = 0; !request->used_bytes && i < request->buffer_count; ++i) {
    const struct kiln_executor_buffer* buffer = &request->buffers[i];
    if (buffer->pool != KILN_EXECUTOR_NO_POOL) continue;
    const uint64_t first = buffer->offset / g_page_bytes * g_page_bytes;
    madvise(g_data.address + first, round_up(buffer->offset + buffer->bytes - first, g_page_bytes),
            MADV_POPULATE_WRITE_);
  }
}

static void sweep_all(void) {
  const uint64_t step = g_launch->step;
  g_launch->step = 0;
  call_team(g_team);
  sweep(0);
  await_team(g_team);
  g_launch->step = step;
}

static void repeat(const struct kiln_executor_request* request, uint32_t launches, struct kiln_executor_reply* reply) {
  g_swept_bytes = request->swept_bytes;
  for (uint32_t i = 0; i < launches; ++i) g_launches[i].status = &reply->launch_status;
  for (uint32_t i = 0; i < request->repetitions; ++i) {
    if (request->swept_bytes) sweep_all();
    const struct turns before = turns_so_far();
    const uint64_t begin = now_ns();
    for (uint32_t l = 0; l < launches; ++l) {
      g_launch = &g_launches[l];
      do_all_tasks();
    }
    reply->nanoseconds[i] = now_ns() - begin;
    /* One turn of another process in so much of its own time does not matter. Of the time that passed it would: the
     * more processes wait for a processor, the fewer turns are lost in it. */
    const struct turns after = turns_so_far();
    reply->was_disturbed[i] = after.lost - before.lost > (after.ran_ns - before.ran_ns) / 20000000u;
  }
  reply->repetitions = request->repetitions;
  reply->threads = (uint32_t)g_team;
}

static void forget_launches(void) {
  for (int i = 0; i < KILN_EXECUTOR_STEPS; ++i) unmap_guarded(&g_launches[i].code);
  g_kept = 0;
  g_launch = g_launches;
}

static int map_launch(const struct kiln_executor_request* request, int fd) {
  struct launch* launch = g_launch;
  if (map_guarded(&launch->code, request->bytes, g_page_bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd) != 0) return -1;
  const uint8_t* address = launch->code.address + request->entry;
  memcpy(&launch->entry, &address, sizeof launch->entry);
  memcpy(launch->extents, request->extents, sizeof launch->extents);
  launch->step = request->task_step;
  launch->last_task = request->tasks - 1;
  const bool is_last_alone = launch->step >= request->tasks; /* of no tasks or one, too */
  launch->tasks = is_last_alone ? request->tasks != 0 : (request->tasks - 1 + launch->step - 1) / launch->step + 1;
  launch->chunk = 1 + launch->tasks / (uint64_t)(g_team * CHUNKS_PER_THREAD);
  return 0;
}

static int launch(const struct kiln_executor_request* request, int fd, struct kiln_executor_reply* reply) {
  forget_launches();
  if (map_buffers(request) != 0 || prepare_workspaces(request->workspace_bytes) != 0) return -1;
  if (request->command == KILN_EXECUTOR_TIME &&
      (copy_buffers(request) != 0 || prepare_sweep(request->swept_bytes) != 0))
    return -1;
  populate(request);
  if (map_launch(request, fd) != 0) return -1;
  repeat(request, 1, reply);
  forget_launches();
  return 0;
}

static int keep(const struct kiln_executor_request* request, int fd, struct kiln_executor_reply* reply) {
  if (request->place == 0) forget_launches();
  if (request->place != g_kept || g_kept == KILN_EXECUTOR_STEPS) return errno = EINVAL, -1;
  g_launch = &g_launches[g_kept];
  const uint64_t before = g_kept ? g_workspace_bytes : 0;
  const uint64_t workspace_bytes = request->workspace_bytes > before ? request->workspace_bytes : before;
  if (map_buffers(request) != 0 || copy_pooled(request) != 0) return -1;
  if (prepare_workspaces(workspace_bytes) != 0 || prepare_sweep(request->swept_bytes) != 0) return -1;
  populate(request);
  if (map_launch(request, fd) != 0) return -1;
  ++g_kept;
  if (request->repetitions == 0) return 0;
  repeat(request, g_kept, reply);
  forget_launches();
  return 0;
}

static int run(const struct kiln_executor_request* request, int fd, struct kiln_executor_reply* reply) {
  if (request->buffer_count > KILN_EXECUTOR_BUFFERS || request->extent_count > KILN_EXECUTOR_EXTENTS ||
      request->repetitions > KILN_EXECUTOR_REPETITIONS || request->entry >= request->bytes || request->task_step == 0 ||
      request->used_bytes > g_data.bytes) {
    return errno = EINVAL, -1;
  }
  const uint32_t wanted = request->threads ? request->threads : FEW_THREADS;
  g_team = wanted < (uint32_t)g_threads ? (int)wanted : g_threads;
  return request->command == KILN_EXECUTOR_STEP ? keep(request, fd, reply) : launch(request, fd, reply);
}

static int obey(const struct kiln_executor_request* request, int fd, struct kiln_executor_reply* reply) {
  switch (request->command) {
    case KILN_EXECUTOR_DATA:
      return map_data(request, fd);
    case KILN_EXECUTOR_POOL:
      return keep_pool(request, fd);
    default:
      return run(request, fd, reply);
  }
}

/* argv: the parent's pid, the address space limit in bytes (0: none). */
int main(int argc, char** argv) {
  if (argc != 3) return 2;
  g_page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != (pid_t)atol(argv[1])) return 0; /* the parent died before prctl could tell */
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_NOFILE, 16 + KILN_EXECUTOR_POOLS);
  const rlim_t address_space = strtoull(argv[2], NULL, 10);
  if (address_space) limit(RLIMIT_AS, address_space);
  kiln_ask_for_kernel_state(); /* refused: the parent has no candidates that need it */
  start_threads();
  now_ns(); /* binds the vdso before the door closes */
  if (enter_sandbox() != 0) return 3;

  for (;;) {
    struct kiln_executor_request request;
    int fd;
    if (!receive(&request, &fd)) _exit(0);
    struct kiln_executor_reply reply = {.magic = KILN_EXECUTOR_MAGIC};
    if (obey(&request, fd, &reply) != 0) {
      reply.result = KILN_EXECUTOR_REFUSED;
      reply.error_number = (uint32_t)errno;
    }
    if (request.command != KILN_EXECUTOR_POOL) close(fd); /* a pool's is kept */
    send_reply(&reply);
  }
}
