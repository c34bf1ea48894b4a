#define _GNU_SOURCE
#include "backends/host_process.h"

#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM_ 0x1023
#define TILE_DATA 18

/* AMX's tiles are 8 KiB of state that the system saves for each thread: it wants to be asked, once in a process. It refuses
 * where there are none, and where a thread has a signal stack without room for them. */
bool kiln_ask_for_kernel_state(void) { return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, TILE_DATA) == 0; }
