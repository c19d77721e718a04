/* What the compiler calls at every edge of kernel.c: each 32nd call is a poll point. Compiled
 * without -fsanitize-coverage. A count in thread-local storage is the thread's own, so no switch
 * disturbs it. */

#include <tailwater.h>

void __sanitizer_cov_trace_pc(void);

void __sanitizer_cov_trace_pc(void) {
    static _Thread_local uint32_t edges;
    if ((++edges & 31) == 0) tw_poll();
}
