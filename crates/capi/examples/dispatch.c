/* Requests of two classes, in the shape of Shinjuku: init, init_per_core, classify, handle.
 * dispatch [PORT], UDP port 5001 by default. A request is 'G' (short) or 'S' (a scan of 100 us);
 * short ones do not wait behind scans, which give way after 5 us. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <tailwater.h>

enum { GET, SCAN };

static void init_per_core(void *argument, size_t lane) {
    (void)argument;
    (void)lane; /* a place for what each core needs */
}

static size_t classify(void *argument, const void *request, size_t len) {
    (void)argument;
    return len > 0 && *(const char *)request == 'S' ? SCAN : GET;
}

static void handle(void *argument, const void *request, size_t len, tw_reply *reply) {
    uint64_t end = tw_now_ns() + (classify(argument, request, len) == SCAN ? 100000 : 1000);
    while (tw_now_ns() < end) tw_poll();
    tw_reply_write(reply, request, len);
}

static int program(int argc, char **argv) {
    static const tw_class classes[] = {{"GET", 50000}, {"SCAN", 5000000}};
    tw_service service = TW_SERVICE_INIT;
    service.init_per_core = init_per_core;
    service.classify = classify;
    service.handle = handle;
    service.policy = "mq:5us";
    service.classes = classes;
    service.n_classes = 2;

    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 5001)};
    socklen_t own_len = sizeof own;
    int fd = tw_socket(AF_INET, SOCK_DGRAM, 0);
    if (tw_bind(fd, (struct sockaddr *)&own, sizeof own)) {
        perror("dispatch: cannot bind");
        return 1;
    }
    tw_server *server;
    int status = tw_serve(fd, &service, &server);
    if (status < 0) {
        fprintf(stderr, "dispatch: cannot serve: %s\n", tw_strerror(status));
        return 1;
    }
    tw_getsockname(fd, (struct sockaddr *)&own, &own_len);
    printf("dispatch: port %d\n", ntohs(own.sin_port));
    fflush(stdout);
    for (;;) {
        tw_class_stats stats[2];
        tw_sleep_ns(1000000000);
        tw_server_stats(server, stats, 2);
        printf("GET %lu, p99 %lu us; SCAN %lu, preempted %lu times\n", (unsigned long)stats[GET].finished,
               (unsigned long)stats[GET].latency_p99_ns / 1000, (unsigned long)stats[SCAN].finished,
               (unsigned long)stats[SCAN].preemptions);
        fflush(stdout);
    }
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
