#ifndef KILN_JIT_WORKER_EXECUTOR_WIRE_H
#define KILN_JIT_WORKER_EXECUTOR_WIRE_H

/* What the compile worker and its execution worker say to each other: one struct per SOCK_SEQPACKET message,
 * each request with one descriptor. Both come from one build, so there is no version. C, because the executor
 * of the host is. The executor of a device speaks first: one reply, once it has opened the device, whose message
 * is the machine (backends/machine.h) where schedules for the target should be made for it. */

#include <stdint.h>

#define KILN_EXECUTOR_MAGIC 0x4358454bu /* "KEXC" */
#define KILN_EXECUTOR_SOCKET 3          /* the descriptor the executor finds its socket at */
#define KILN_EXECUTOR_BUFFERS 128
#define KILN_EXECUTOR_EXTENTS 64
#define KILN_EXECUTOR_REPETITIONS 256
#define KILN_EXECUTOR_STEPS 64
#define KILN_EXECUTOR_POOLS 28
#define KILN_EXECUTOR_MESSAGE_BYTES 512

enum kiln_executor_command {
  KILN_EXECUTOR_DATA = 1, /* descriptor: memfd with the buffers; replaces the one before */
  KILN_EXECUTOR_POOL = 2, /* descriptor: sealed memfd that inputs repeat; kept as number `pool` */
  KILN_EXECUTOR_RUN = 3,  /* descriptor: sealed memfd with the code */
  KILN_EXECUTOR_TIME = 4, /* the same, over copies of the buffers in memory of the worker's own */
  KILN_EXECUTOR_STEP = 5  /* the same, over copies of pools alone; kept until `repetitions` is not 0: then all that are
                             kept run so often, one after another, and are timed together; of the host */
};

#define KILN_EXECUTOR_NO_POOL 0xffffffffu

struct kiln_executor_buffer {
  uint64_t offset; /* into the data, or into the pool */
  uint64_t bytes;
  uint32_t pool; /* which one, read-only; KILN_EXECUTOR_NO_POOL: the data */
  uint32_t reserved;
};

struct kiln_executor_request {
  uint32_t magic;
  uint32_t command;
  uint64_t bytes; /* of the descriptor's memory */
  /* POOL */
  uint32_t pool;
  /* RUN */
  uint32_t task_step;  /* every so many tasks one is run, and the last; from their number on it alone; of the host */
  uint64_t used_bytes; /* of the data, from its begin on: what the launch may touch; 0: its buffers only */
  uint64_t entry;
  uint64_t tasks;
  uint64_t workspace_bytes;
  uint64_t features;
  uint32_t repetitions;
  uint32_t buffer_count;
  uint32_t extent_count;
  uint32_t is_fresh; /* TIME, STEP: the buffers hold something else than at the last one */
  uint32_t place;    /* STEP: how many are kept before it; 0 forgets those that were */
  uint32_t threads;  /* that tasks are shared among, where there are so many; 0: a few; of the host */
  uint64_t
      swept_bytes; /* TIME, STEP: of other memory, touched by each thread, or on the device, before each repetition */
  int64_t extents[KILN_EXECUTOR_EXTENTS];
  struct kiln_executor_buffer buffers[KILN_EXECUTOR_BUFFERS];
};

enum kiln_executor_result {
  KILN_EXECUTOR_OK = 0,
  KILN_EXECUTOR_REFUSED = 1,
  KILN_EXECUTOR_ABSENT = 2, /* of a device: this host has none for the target */
  KILN_EXECUTOR_FULL = 3,   /* of a device: there is no memory for it */
  KILN_EXECUTOR_LOST = 4    /* of a device: what faulted there has lost it for this process, which ends */
};

struct kiln_executor_reply {
  uint32_t magic;
  uint32_t result;        /* kiln_executor_result */
  uint32_t error_number;  /* errno, when refused */
  uint32_t launch_status; /* kiln::LaunchStatus */
  uint32_t repetitions;
  uint32_t threads; /* TIME, STEP: that the tasks were shared among */
  uint64_t nanoseconds[KILN_EXECUTOR_REPETITIONS];
  uint8_t was_disturbed[KILN_EXECUTOR_REPETITIONS]; /* TIME, STEP: a thread lost its processor meanwhile */
  char message
      [KILN_EXECUTOR_MESSAGE_BYTES]; /* why, when not OK and there is no errno; the greeting's; ends with a zero */
};

#endif /* KILN_JIT_WORKER_EXECUTOR_WIRE_H */
