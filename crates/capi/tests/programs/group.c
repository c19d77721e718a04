/* The last thread to leave a wait group overwrites the group's storage. The thread that woke them may
 * still be in its call then: it is preempted in it. The runtime wakes 32 threads in one go.
 * A thread that locks the overwritten group never returns. group MILLISECONDS prints its rounds. */

#include "storm.h"

#include <stdatomic.h>
#include <tailwater.h>

enum { WAITING = 32 };

static atomic_int inside;

static void *attend(void *group) {
    tw_waitgroup_wait(group);
    if (--inside == 0) memset(group, 0xff, sizeof(tw_waitgroup));
    return NULL;
}

/* Runs for up to two periods of the storm first, so that the preemption falls on each part of what
 * follows. */
static void *finish(void *group) {
    static unsigned long turn;
    uint64_t end = tw_now_ns() + turn++ * 7919 % (2000 * STORM_US);
    while (tw_now_ns() < end) {}
    CHECK(tw_waitgroup_done(group) == 0);
    return NULL;
}

static void meet(void) {
    tw_waitgroup group = TW_WAITGROUP_INIT;
    tw_thread *waiting[WAITING], *last;
    tw_waitgroup_add(&group, 1);
    inside = WAITING;
    for (int i = 0; i < WAITING; i++) CHECK(tw_thread_spawn(&waiting[i], NULL, attend, &group) == 0);
    /* On one kthread all others have run then. */
    tw_yield();
    CHECK(tw_thread_spawn(&last, NULL, finish, &group) == 0);
    for (int i = 0; i < WAITING; i++) CHECK(tw_thread_join(waiting[i], NULL) == 0);
    CHECK(tw_thread_join(last, NULL) == 0);
}

static void run(void *milliseconds) {
    uint64_t begin = tw_now_ns(), least = 1000000ull * (unsigned long)milliseconds;
    unsigned long rounds = 0;
    for (; tw_now_ns() - begin < least; rounds++) meet();
    printf("%lu rounds\n", rounds);
}

int main(int argc, char **argv) {
    tw_config config = TW_CONFIG_INIT;
    config.kthreads = 1;
    config.quantum_ns = STORM_US * 1000;
    config.stall_timeout_ns = TW_FOREVER;
    storm_start();
    return tw_run(&config, run, (void *)(argc > 1 ? atol(argv[1]) : 1000)) == 0 ? 0 : 1;
}
