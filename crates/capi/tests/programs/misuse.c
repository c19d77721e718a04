/* A handler frees the loop that runs it, which the header forbids: the process ends and says so.
 * The argument says when: "at-once", or "after-nested-run" of the same loop. */

#include "check.h"
#include <netinet/in.h>
#include <string.h>
#include <tailwater.h>

static int is_nested;

static int stop(void *argument, tw_loop *events, const tw_condition *condition) {
    (void)argument, (void)events, (void)condition;
    return 1;
}

static int free_it(void *argument, tw_loop *events, const tw_condition *condition) {
    (void)argument, (void)condition;
    /* Two datagrams were reported, so the run within this one has a condition without a poll. */
    if (is_nested) CHECK(tw_loop_run(events, stop, NULL) == 1);
    puts("frees the loop");
    fflush(stdout);
    tw_loop_free(events);
    return 1;
}

static void run(void *unused) {
    (void)unused;
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof own;
    tw_loop *events = tw_loop_new();
    for (int i = 0; i < 2; i++) {
        int fd = tw_socket(AF_INET, SOCK_DGRAM, 0);
        own.sin_port = 0;
        CHECK(tw_bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
        CHECK(tw_getsockname(fd, (struct sockaddr *)&own, &len) == 0);
        CHECK(tw_sendto(fd, "x", 1, 0, (struct sockaddr *)&own, len) == 1);
        char byte;
        CHECK(tw_recv(fd, &byte, 1, MSG_PEEK) == 1);
        CHECK(tw_loop_add(events, fd, 1, NULL) == 0);
    }
    tw_loop_run(events, free_it, NULL);
}

int main(int argc, char **argv) {
    is_nested = argc > 1 && strcmp(argv[1], "after-nested-run") == 0;
    return tw_run(NULL, run, NULL) == 0 ? 0 : 1;
}
