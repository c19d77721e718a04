/* An echo server in one event loop, without a thread for each connection: events [PORT]. Port 7 by
 * default. Data is sent from where it was received; what finds no room stays on loan, and stops
 * the peer. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <tailwater.h>

/* Sends back what there is room for. An error is that the connection is over, which is reported. */
static void echo(tw_loop *events, const tw_condition *it) {
    ssize_t sent = tw_loop_send(events, it->handle, it->data, it->len);
    if (sent < 0 || tw_loop_consume(events, it->handle, (size_t)sent) < 0) return;
    if ((size_t)sent == it->len && tw_loop_is_eof(events, it->handle) == 1) tw_loop_shutdown(events, it->handle);
}

static int handle(void *argument, tw_loop *events, const tw_condition *it) {
    (void)argument;
    switch (it->kind) {
    case TW_INCOMING:
        tw_loop_accept(events, it->handle, 0);
        break;
    case TW_RECEIVED:
    case TW_WINDOW:
    case TW_EOF:
        echo(events, it);
        break;
    }
    return 0;
}

/* One of the loops: all have the listener, and each connection has the loop that accepted it. */
static void *serve(void *argument) {
    tw_loop *events = tw_loop_new();
    int status = tw_loop_add(events, (int)(intptr_t)argument, 0, NULL);
    if (status == 0) status = tw_loop_run(events, handle, NULL);
    fprintf(stderr, "events: %s\n", tw_strerror(status));
    tw_loop_free(events);
    return NULL;
}

static int program(int argc, char **argv) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7)};
    socklen_t own_len = sizeof own;
    int listener = tw_socket(AF_INET, SOCK_STREAM, 0);
    if (tw_bind(listener, (struct sockaddr *)&own, sizeof own) || tw_listen(listener, 1024)) {
        perror("events: cannot listen");
        return 1;
    }
    tw_getsockname(listener, (struct sockaddr *)&own, &own_len);
    printf("events: port %d\n", ntohs(own.sin_port));
    fflush(stdout);
    for (size_t i = 1; i < tw_parallelism(); i++) {
        int status = tw_thread_spawn(NULL, NULL, serve, (void *)(intptr_t)listener);
        if (status < 0) fprintf(stderr, "events: cannot start a loop: %s\n", tw_strerror(status));
    }
    serve((void *)(intptr_t)listener);
    return 1;
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
