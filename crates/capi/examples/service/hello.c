/* A service, and a client that asks it once, as two user threads of one program. */

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <tailwater.h>

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    for (;;) {
        struct sockaddr_storage peer;
        socklen_t peer_len = sizeof peer;
        char request[100], reply[120];
        ssize_t len = tw_recvfrom(fd, request, sizeof request, 0, (struct sockaddr *)&peer, &peer_len);
        if (len < 0) continue;
        int reply_len = snprintf(reply, sizeof reply, "hello, %.*s", (int)len, request);
        tw_sendto(fd, reply, (size_t)reply_len, 0, (struct sockaddr *)&peer, peer_len);
    }
    return NULL;
}

static int program(int argc, char **argv) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t own_len = sizeof own;
    char reply[120];
    (void)argc, (void)argv;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int server = tw_socket(AF_INET, SOCK_DGRAM, 0), client = tw_socket(AF_INET, SOCK_DGRAM, 0);
    if (tw_bind(server, (struct sockaddr *)&own, sizeof own) != 0 ||
        tw_getsockname(server, (struct sockaddr *)&own, &own_len) != 0 ||
        tw_connect(client, (struct sockaddr *)&own, own_len) != 0) {
        perror("hello: sockets");
        return 1;
    }
    int status = tw_thread_spawn(NULL, NULL, serve, (void *)(intptr_t)server);
    if (status < 0) {
        fprintf(stderr, "hello: cannot start a thread: %s\n", tw_strerror(status));
        return 1;
    }
    tw_write(client, "world", 5);
    ssize_t len = tw_read(client, reply, sizeof reply);
    if (len < 0) {
        perror("hello: no reply");
        return 1;
    }
    printf("%.*s\n", (int)len, reply);
    return 0;
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
