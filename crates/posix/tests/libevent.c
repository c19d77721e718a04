/* A program of libevent, as one writes it for Linux: a line server with bufferevents, a client of
 * it, a timer, and a signal that ends the loop. Prints what was answered. */

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES = 1000 };

static struct event_base *base;
static int answered, ticks;

/* Each line back, in capitals. */
static void serve(struct bufferevent *connection, void *unused) {
    char *line;
    (void)unused;
    while ((line = evbuffer_readln(bufferevent_get_input(connection), NULL, EVBUFFER_EOL_LF))) {
        for (char *at = line; *at; at++)
            if (*at >= 'a' && *at <= 'z') *at -= 'a' - 'A';
        evbuffer_add_printf(bufferevent_get_output(connection), "%s\n", line);
        free(line);
    }
}

static void end(struct bufferevent *connection, short what, void *unused) {
    (void)unused;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) bufferevent_free(connection);
}

static void accepted(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *peer, int len, void *unused) {
    struct bufferevent *connection = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    (void)listener, (void)peer, (void)len, (void)unused;
    bufferevent_setcb(connection, serve, NULL, end, NULL);
    bufferevent_enable(connection, EV_READ | EV_WRITE);
}

static void answer(struct bufferevent *connection, void *unused) {
    char *line, expected[32];
    (void)unused;
    while ((line = evbuffer_readln(bufferevent_get_input(connection), NULL, EVBUFFER_EOL_LF))) {
        snprintf(expected, sizeof expected, "LINE %d", answered++);
        if (strcmp(line, expected) != 0) {
            printf("%s in place of %s\n", line, expected);
            exit(1);
        }
        free(line);
    }
    if (answered == LINES) {
        bufferevent_free(connection);
        raise(SIGUSR1);
    }
}

static void tick(evutil_socket_t fd, short what, void *unused) {
    (void)fd, (void)what, (void)unused;
    ticks++;
}

static void stop(evutil_socket_t number, short what, void *unused) {
    (void)number, (void)what, (void)unused;
    event_base_loopbreak(base);
}

int main(void) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t len = sizeof own;
    struct timeval millisecond = {0, 1000};
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    base = event_base_new();
    struct evconnlistener *listener =
        evconnlistener_new_bind(base, accepted, NULL, LEV_OPT_CLOSE_ON_FREE, 16, (struct sockaddr *)&own, sizeof own);
    if (!listener || getsockname(evconnlistener_get_fd(listener), (struct sockaddr *)&own, &len) != 0) return 2;
    struct event *timer = event_new(base, -1, EV_PERSIST, tick, NULL), *ends = evsignal_new(base, SIGUSR1, stop, NULL);
    event_add(timer, &millisecond);
    event_add(ends, NULL);
    struct bufferevent *client = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(client, answer, NULL, end, NULL);
    bufferevent_enable(client, EV_READ | EV_WRITE);
    if (bufferevent_socket_connect(client, (struct sockaddr *)&own, len) != 0) return 3;
    for (int i = 0; i < LINES; i++) evbuffer_add_printf(bufferevent_get_output(client), "line %d\n", i);
    event_base_dispatch(base);
    while (ticks == 0) event_base_loop(base, EVLOOP_ONCE);
    printf("%s: %d lines\n", event_base_get_method(base), answered);
    event_free(timer);
    event_free(ends);
    evconnlistener_free(listener);
    event_base_free(base);
    return 0;
}
