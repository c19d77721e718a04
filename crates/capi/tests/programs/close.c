/* Descriptors are closed in the middle of calls of the thread that uses them most: close
 * [MILLISECONDS]. Each socket has the port of the one before, so a close that does not end, or ends
 * too often, shows. */

#include "check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <tailwater.h>

/* More calls than make a thread the owner of a descriptor. */
enum { CALLS = 80 };

static struct sockaddr_in own = {.sin_family = AF_INET};
static atomic_int calls;

/* Reads until the descriptor is closed, and counts. With a time limit the read waits. */
static void *use(void *argument) {
    char data[8];
    for (;;) {
        CHECK(tw_read((int)(intptr_t)argument, data, sizeof data) == -1);
        if (errno == EBADF) return NULL;
        CHECK(errno == EAGAIN);
        /* Not always, so that most calls are under way on another kthread when one closes. */
        if (atomic_fetch_add(&calls, 1) % 16 == 0) tw_yield();
    }
}

static void round_of(int number) {
    socklen_t len = sizeof own;
    struct timeval limit = {0, 50};
    tw_thread *threads[2];
    int users = 1 + number % 4 / 3, fd = tw_socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(tw_bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
    CHECK(tw_getsockname(fd, (struct sockaddr *)&own, &len) == 0);
    if (number % 2) CHECK(tw_set_nonblocking(fd, true) == 0);
    else CHECK(tw_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    atomic_store(&calls, 0);
    for (int i = 0; i < users; i++) CHECK(tw_thread_spawn(&threads[i], NULL, use, (void *)(intptr_t)fd) == 0);
    while (atomic_load(&calls) < CALLS) tw_yield();
    CHECK(tw_close(fd) == 0 && tw_close(fd) == -1 && errno == EBADF);
    for (int i = 0; i < users; i++) tw_thread_join(threads[i], NULL);
}

static int program(int argc, char **argv) {
    uint64_t end = tw_now_ns() + 1000000 * (uint64_t)(argc > 1 ? atoi(argv[1]) : 500);
    int rounds = 0;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (tw_now_ns() < end || rounds < 8) round_of(rounds++);
    printf("%d rounds\n", rounds);
    return 0;
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
