/* A program that knows its cores, in the shape of Arachne: a thread for each task, and a request for
 * as many cores as the load needs. cores [TASKS]. With an IOKernel that grants requests
 * (TAILWATER_IOKERNEL) it prints which cores came and went; standalone it just computes. */

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <tailwater.h>

static atomic_uint primes;

static void *task(void *argument) {
    unsigned number = (unsigned)(uintptr_t)argument, divisor = 2;
    while (divisor * divisor <= number && number % divisor != 0) {
        divisor++;
        tw_poll();
    }
    primes += number > 1 && divisor * divisor > number;
    return NULL;
}

static void *watch(void *unused) {
    uint32_t gained[64], lost[64];
    size_t n_gained, n_lost;
    tw_core_changes *changes = tw_core_changes_new(1000000);
    for (;;) {
        tw_core_changes_next(changes, gained, &n_gained, lost, &n_lost, 64);
        for (size_t i = 0; i < n_gained && i < 64; i++) printf("core %u came\n", gained[i]);
        for (size_t i = 0; i < n_lost && i < 64; i++) printf("core %u went\n", lost[i]);
    }
    return unused;
}

static int program(int argc, char **argv) {
    unsigned tasks = argc > 1 ? (unsigned)atoi(argv[1]) : 100000, started = 0;
    uint32_t wanted = (uint32_t)tw_parallelism();
    tw_thread_spawn(NULL, NULL, watch, NULL);
    tw_cores_request(&wanted, 1); /* all of them at priority 0 */
    while (started < tasks) {
        tw_thread *threads[256];
        unsigned count = 0;
        for (; count < 256 && started < tasks; count++, started++) {
            int status = tw_thread_spawn(&threads[count], NULL, task, (void *)(uintptr_t)started);
            if (status < 0) {
                fprintf(stderr, "cores: cannot start a thread: %s\n", tw_strerror(status));
                return 1;
            }
        }
        while (count > 0) tw_thread_join(threads[--count], NULL);
    }
    tw_cores_request(NULL, 0); /* none any more */
    printf("%u primes below %u\n", primes, tasks);
    return 0;
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
