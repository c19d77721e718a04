/* A server of requests that say how long they compute: spin [PORT], UDP port 5000 by default. A
 * request is 4 bytes, microseconds in network order, and comes back as its own reply. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tailwater.h>

static void compute(uint32_t microseconds) {
    uint64_t end = tw_now_ns() + 1000ull * microseconds;
    while (tw_now_ns() < end) tw_poll();
}

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    for (;;) {
        struct sockaddr_storage peer;
        socklen_t peer_len = sizeof peer;
        uint32_t request;
        ssize_t len = tw_recvfrom(fd, &request, sizeof request, 0, (struct sockaddr *)&peer, &peer_len);
        if (len < (ssize_t)sizeof request) continue;
        compute(ntohl(request));
        tw_sendto(fd, &request, sizeof request, 0, (struct sockaddr *)&peer, peer_len);
    }
    return NULL;
}

static int program(int argc, char **argv) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 5000)};
    socklen_t own_len = sizeof own;
    int fd = tw_socket(AF_INET, SOCK_DGRAM, 0);
    if (tw_bind(fd, (struct sockaddr *)&own, sizeof own)) {
        perror("spin: cannot bind");
        return 1;
    }
    tw_getsockname(fd, (struct sockaddr *)&own, &own_len);
    printf("spin: port %d\n", ntohs(own.sin_port));
    fflush(stdout);
    /* One thread for each core, and the main thread is one of them. */
    for (size_t i = 1; i < tw_parallelism(); i++) tw_thread_spawn(NULL, NULL, serve, (void *)(intptr_t)fd);
    serve((void *)(intptr_t)fd);
    return 0;
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
