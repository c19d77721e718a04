/* An echo server with a thread for each connection: echo [PORT]. Port 7 by default. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <tailwater.h>

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    char data[4096];
    ssize_t len;
    while ((len = tw_read(fd, data, sizeof data)) > 0) {
        if (tw_write(fd, data, (size_t)len) != len) break;
    }
    tw_close(fd);
    return NULL;
}

static int program(int argc, char **argv) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7)};
    socklen_t own_len = sizeof own;
    int listener = tw_socket(AF_INET, SOCK_STREAM, 0);
    if (tw_bind(listener, (struct sockaddr *)&own, sizeof own) || tw_listen(listener, 1024)) {
        perror("echo: cannot listen");
        return 1;
    }
    tw_getsockname(listener, (struct sockaddr *)&own, &own_len);
    printf("echo: port %d\n", ntohs(own.sin_port));
    fflush(stdout);
    for (;;) {
        int fd = tw_accept(listener, NULL, NULL, 0);
        if (fd < 0) {
            perror("echo: accept");
            return 1;
        }
        int status = tw_thread_spawn(NULL, NULL, serve, (void *)(intptr_t)fd);
        if (status < 0) {
            fprintf(stderr, "echo: no thread for a connection: %s\n", tw_strerror(status));
            tw_close(fd);
        }
    }
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
