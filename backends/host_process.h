#ifndef KILN_BACKENDS_HOST_PROCESS_H
#define KILN_BACKENDS_HOST_PROCESS_H

/* What a process asks of the system before it runs kernels of the host. C, because the executor of candidates is. */

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Asks for the state that the widest kernels keep in a thread, for all threads of the process; once is enough. Whether the
 * system gives it: else kernels that need it must not run. */
bool kiln_ask_for_kernel_state(void);

#ifdef __cplusplus
}
#endif

#endif /* KILN_BACKENDS_HOST_PROCESS_H */
