/* A load for memcached over TCP: `mcload HOST PORT CONNECTIONS REQUESTS`. Each connection has one
 * `get` of a stored value under way. One thread, epoll. Prints requests a second, and median and
 * 99th percentile of the time to the whole answer in microseconds. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static const char set[] = "set key 0 0 32\r\n0123456789abcdef0123456789abcdef\r\n";
static const char get[] = "get key\r\n";
/* "VALUE key 0 32\r\n", the value and its "\r\n", "END\r\n". */
enum { ANSWER = 16 + 34 + 5 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int count, char **argument) {
    if (count != 5) return fprintf(stderr, "usage: mcload HOST PORT CONNECTIONS REQUESTS\n"), 2;
    int connections = atoi(argument[3]), requests = atoi(argument[4]), epoll = epoll_create1(0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argument[2]))};
    inet_pton(AF_INET, argument[1], &to.sin_addr);
    float *times = calloc(requests, sizeof *times);
    double *since = calloc(connections, sizeof *since), begun = 0;
    int *sockets = calloc(connections, sizeof *sockets), *got = calloc(connections, sizeof *got);
    char buffer[4096];
    for (int i = 0; i < connections; i++) {
        sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(sockets[i], (void *)&to, sizeof to)) fail("connect");
        if (i == 0) {
            if (write(sockets[0], set, sizeof set - 1) < 0) fail("write");
            for (int n = 0; n < 8;) {
                int r = read(sockets[0], buffer, sizeof buffer);
                if (r <= 0) fail("read");
                n += r;
            }
        }
        struct epoll_event event = {EPOLLIN, {.u32 = i}};
        epoll_ctl(epoll, EPOLL_CTL_ADD, sockets[i], &event);
    }
    begun = now();
    int sent = 0, done = 0;
    for (; sent < connections && sent < requests; sent++) {
        since[sent] = now();
        if (write(sockets[sent], get, sizeof get - 1) < 0) fail("write");
    }
    while (done < requests) {
        struct epoll_event events[64];
        int n = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < n; i++) {
            int c = events[i].data.u32, r = read(sockets[c], buffer, sizeof buffer);
            if (r <= 0) fail("read");
            if ((got[c] += r) < ANSWER) continue;
            got[c] = 0;
            double at = now();
            times[done++] = at - since[c];
            if (sent == requests) continue;
            sent++;
            since[c] = at;
            if (write(sockets[c], get, sizeof get - 1) < 0) fail("write");
        }
    }
    double seconds = (now() - begun) / 1e6;
    qsort(times, done, sizeof *times, compare);
    printf("%.0f %.0f %.0f\n", done / seconds, times[done / 2], times[(int)(done * 0.99)]);
    return 0;
}
