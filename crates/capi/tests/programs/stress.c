/* What C keeps per thread stays with its user thread under preemption and migration: the checks of
 * crates/runtime/tests/it/soundness, for C. stress MILLISECONDS prints what it has done. */

#include "storm.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <tailwater.h>

enum { DRIVERS = 24, ROUNDS = 6, BLOCKS = 24 };

static atomic_ulong sessions, ended, destroyed, handled;
static atomic_bool stop;
static tw_key key;
static _Thread_local unsigned long mine;
static _Thread_local char text[64] = "initial";
static tw_mutex lock = TW_MUTEX_INIT;
static unsigned char *shared_block;
static size_t shared_size;

/* A few tens of microseconds in general, floating-point and, when optimized, vector registers. */
static unsigned long compute(unsigned long seed) {
    double lanes[4] = {1, 2, 3, 4};
    unsigned long hash = seed;
    for (unsigned long i = 0; i < 1500; i++) {
        for (int lane = 0; lane < 4; lane++) lanes[lane] = sqrt(lanes[lane] * 1.0001 + (double)(hash % 7));
        hash = (hash ^ i) * 0x9e3779b97f4a7c15ul;
        hash = hash << 17 | hash >> 47;
    }
    double sum = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    unsigned long bits;
    memcpy(&bits, &sum, sizeof bits);
    return hash ^ bits;
}

static void destroy(void *value) {
    compute((unsigned long)value);
    if (mine == (unsigned long)value) destroyed++;
}

/* A handler of the program: with all signals blocked it is not preempted, and what it finds per
 * thread is that of the thread which it interrupts, from its first instruction to its last. */
static void on_signal(int number) {
    unsigned long *place = &mine, id = mine;
    int *error = &errno, before = errno;
    CHECK(number == SIGUSR1 && close(-1) == -1 && errno == EBADF);
    for (volatile int i = 0; i < 100; i++) continue;
    CHECK(place == &mine && mine == id && error == &errno && errno == EBADF);
    errno = before;
    handled++;
}

static void check_errno(unsigned long id) {
    CHECK(close(-1) == -1);
    compute(id);
    CHECK(errno == EBADF);
    errno = 1000 + (int)(id % 1000);
    int *place = &errno;
    compute(id);
    CHECK(errno == 1000 + (int)(id % 1000) && place == &errno);
    errno = 0;
    CHECK(strtol("999999999999999999999", NULL, 10) == LONG_MAX && errno == ERANGE);
}

static void check_locals(unsigned long id) {
    mine = id;
    snprintf(text, sizeof text, "%lu", id);
    compute(id);
    char expected[64];
    snprintf(expected, sizeof expected, "%lu", id);
    CHECK(mine == id && strcmp(text, expected) == 0);
    CHECK(tw_key_get(key) == (void *)id);
    CHECK(isalpha('a') && toupper('a') == 'A' && strcmp(setlocale(LC_ALL, NULL), "C") == 0);
}

static void check_memory(unsigned long id) {
    unsigned char *blocks[BLOCKS];
    size_t sizes[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        sizes[i] = i == 0 ? 100000 : 1 + (id * 7 + i * i * 97) % 3000;
        blocks[i] = malloc(sizes[i]);
        CHECK(blocks[i]);
        memset(blocks[i], (int)id, sizes[i]);
    }
    compute(id);
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = realloc(blocks[i], sizes[i] + 500);
        for (size_t at = 0; at < sizes[i]; at++) CHECK(blocks[i][at] == (unsigned char)id);
    }
    for (size_t i = 1; i < BLOCKS; i++) free(blocks[i]);
    /* The first goes to another thread, whose block this one frees. */
    tw_mutex_lock(&lock);
    unsigned char *other = shared_block;
    size_t size = shared_size;
    shared_block = blocks[0];
    shared_size = sizes[0];
    tw_mutex_unlock(&lock);
    compute(id);
    for (size_t at = 1; other && at < size; at++) CHECK(other[at] == other[0]);
    free(other);
    void *aligned = NULL;
    CHECK(posix_memalign(&aligned, 256, 1000) == 0 && (uintptr_t)aligned % 256 == 0);
    free(aligned);
}

static int varied(int count, ...) {
    va_list list;
    va_start(list, count);
    int sum = 0;
    for (int i = 0; i < count; i++) sum += va_arg(list, int);
    va_end(list);
    return sum;
}

static void check_jumps(unsigned long id) {
    jmp_buf back;
    volatile unsigned long turns = 0;
    if (setjmp(back) == 0) {
        compute(id);
        turns = id + 1;
        longjmp(back, 1);
    }
    CHECK(turns == id + 1);
    CHECK(varied(4, 1, 2, 3, 4) == 10);
}

static void *session(void *argument) {
    unsigned long id = (unsigned long)argument;
    sessions++;
    CHECK(mine == 0 && strcmp(text, "initial") == 0 && tw_key_get(key) == NULL);
    CHECK(tw_key_set(key, argument) == 0);
    unsigned long expected = compute(id);
    for (unsigned long round = 0; round < ROUNDS; round++) {
        check_locals(id);
        check_errno(id);
        check_memory(id);
        check_jumps(id);
        CHECK(compute(id) == expected);
        switch ((id + round) % 4) {
        case 0: tw_sleep_ns(200000); break;
        case 1: tw_yield(); break;
        }
    }
    ended++;
    return (void *)expected;
}

static void *driver(void *argument) {
    for (unsigned long id = 1 + (unsigned long)argument; !stop; id += DRIVERS) {
        tw_thread *thread;
        void *result;
        CHECK(tw_thread_spawn(&thread, NULL, session, (void *)id) == 0);
        CHECK(tw_thread_join(thread, &result) == 0);
        CHECK(result == (void *)compute(id));
    }
    return NULL;
}

static void run(void *milliseconds) {
    tw_thread *drivers[DRIVERS];
    tw_counters counters;
    uint64_t begin = tw_now_ns(), least = 1000000ull * (unsigned long)milliseconds;
    CHECK(tw_key_create(&key, destroy) == 0);
    for (long i = 0; i < DRIVERS; i++) CHECK(tw_thread_spawn(&drivers[i], NULL, driver, (void *)i) == 0);
    /* On a busy machine until something was tested, but not for ever. */
    do {
        tw_sleep_ns(10000000);
        tw_count(&counters);
    } while (tw_now_ns() - begin < least ||
             ((counters.preemptions == 0 || counters.stolen_threads == 0 || handled == 0) &&
              tw_now_ns() - begin < least + 900000000000ull));
    stop = true;
    for (int i = 0; i < DRIVERS; i++) tw_thread_join(drivers[i], NULL);
    CHECK(sessions > 0 && sessions == ended && sessions == destroyed);
    CHECK(counters.preemptions > 0 && counters.stolen_threads > 0 && handled > 0);
    printf("%lu sessions, %lu preemptions, %lu threads stolen, %lu signals\n", (unsigned long)sessions,
           (unsigned long)counters.preemptions, (unsigned long)counters.stolen_threads, (unsigned long)handled);
}

int main(int argc, char **argv) {
    tw_config config = TW_CONFIG_INIT;
    config.kthreads = 3;
    config.quantum_ns = STORM_US * 1000;
    config.stall_timeout_ns = TW_FOREVER;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    storm_signal = SIGUSR1;
    storm_start();
    return tw_run(&config, run, (void *)(argc > 1 ? atol(argv[1]) : 1000)) == 0 ? 0 : 1;
}
