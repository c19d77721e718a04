/* libtailwater-malloc: the C library's allocation functions, as the runtime guards them.
 *
 * The shared library libtailwater exports no `malloc`, so that nothing changes for programs that
 * merely load it. A program whose user threads allocate links this one before the C library: its
 * names are then found first, by C++'s `operator new` and by the C library itself, too. They call
 * libtailwater, which runs glibc's own functions without preemption and on the OS thread's own
 * thread-local storage. `__cxa_thread_atexit_impl` registers the destructors of C++'s
 * `thread_local` objects with the user thread. Mutexes get no priority protocol: the C library waits
 * without end for a contended one that a user thread has locked. Without a version script: a symbol
 * with a version would not be found in place of glibc's. */

#include <errno.h>
#include <pthread.h>

#include "tailwater.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void *malloc(size_t size) { return tw_malloc(size); }

EXPORT void *calloc(size_t count, size_t size) { return tw_calloc(count, size); }

EXPORT void *realloc(void *block, size_t size) { return tw_realloc(block, size); }

EXPORT void free(void *block) { tw_free(block); }

EXPORT void *aligned_alloc(size_t align, size_t size) { return tw_aligned_alloc(align, size); }

EXPORT void *memalign(size_t align, size_t size) { return tw_aligned_alloc(align, size); }

EXPORT int posix_memalign(void **out, size_t align, size_t size) {
    return tw_posix_memalign(out, align, size);
}

/* Attributes keep PTHREAD_PRIO_NONE, which they have from the start. */
EXPORT int pthread_mutexattr_setprotocol(pthread_mutexattr_t *attributes, int protocol) {
    (void)attributes;
    return protocol == PTHREAD_PRIO_NONE || protocol == PTHREAD_PRIO_INHERIT ||
                   protocol == PTHREAD_PRIO_PROTECT
               ? 0
               : EINVAL;
}

EXPORT int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *dso) {
    return tw_thread_atexit(destructor, object, dso);
}
