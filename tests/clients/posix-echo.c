/* An echo server and a client of it, as programs that know nothing of Tailwater.
 *
 *   posix-echo serve       prints "started", waits for a line of input, listens at a free port of
 *                          all addresses, prints "port N", and echoes
 *   posix-echo serve6      the same over IPv6 alone (IPV6_V6ONLY); after another line of input at
 *                          0.0.0.0 and the same port, too
 *   posix-echo workers     as serve, with a child that serves the same listener
 *   posix-echo daemon      as serve, in a child that leads a session, after its parent has ended;
 *                          prints "pid N" first
 *   posix-echo ask IP PORT connects, prints "connected", and prints what comes back for each line
 *                          of its input
 *
 * Each runs until its input ends, or SIGTERM, after which it prints "terminated". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 16 };
static volatile sig_atomic_t terminated;
static void on_term(int number) { terminated = number; }

static void check(long result, const char *what) {
    if (result >= 0) return;
    perror(what);
    exit(1);
}

/* Waits for one of the descriptors; ends the program after SIGTERM, which comes during a wait only. */
static void await(struct pollfd *all, int count) {
    sigset_t none;
    sigemptyset(&none);
    while (!terminated) {
        if (ppoll(all, count, 0, &none) > 0) return;
        if (errno != EINTR) check(-1, "ppoll");
    }
    puts("terminated");
    exit(0);
}

/* Reads a line of input; ends the program at its end. */
static int input(char *line, int room) {
    struct pollfd stdin_only = {0, POLLIN, 0};
    int length = 0;
    while (length == 0 || line[length - 1] != '\n') {
        await(&stdin_only, 1);
        if (length == room || read(0, line + length, 1) <= 0) exit(0);
        length++;
    }
    return length;
}

/* Sends back what has come; returns 0 once the client has closed. */
static int echo(int fd) {
    char buffer[1000];
    long count = read(fd, buffer, sizeof buffer);
    if (count <= 0) return 0;
    check(write(fd, buffer, count), "write");
    return 1;
}

/* Returns a listener at all addresses of a family. `port` 0 is a free one, which replaces it. */
static struct pollfd listener(int family, int *port) {
    int fd = socket(family, SOCK_STREAM, 0), only = 1;
    /* The port of an address of IPv6 is where that of IPv4 has it. */
    struct sockaddr_in6 at = {.sin6_family = family, .sin6_port = htons(*port)};
    socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof at;
    if (family == AF_INET6) check(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), "IPV6_V6ONLY");
    check(bind(fd, (void *)&at, size), "bind");
    check(listen(fd, MOST), "listen");
    check(getsockname(fd, (void *)&at, &size), "getsockname");
    *port = ntohs(at.sin6_port);
    return (struct pollfd){fd, POLLIN, 0};
}

static void serve(int family, int workers) {
    struct pollfd all[MOST] = {{.fd = 0, .events = POLLIN}};
    char line[100];
    /* Connections are behind the listeners. */
    int first = 2, count = first, port = 0;
    puts("started");
    input(line, sizeof line);
    all[1] = listener(family, &port);
    printf("port %d\n", port);
    if (workers) {
        check(fcntl(all[1].fd, F_SETFL, O_NONBLOCK), "fcntl");
        check(fork(), "fork");
    }
    for (;;) {
        await(all, count);
        if (all[0].revents) {
            input(line, sizeof line);
            all[count++] = all[first];
            all[first++] = listener(AF_INET, &port);
            puts("listens");
            continue;
        }
        for (int i = count - 1; i >= first; i--)
            if (all[i].revents && !echo(all[i].fd)) {
                close(all[i].fd);
                all[i] = all[--count];
            }
        for (int i = 1; i < first; i++)
            if (all[i].revents && count < MOST) {
                int fd = accept(all[i].fd, 0, 0);
                /* Another worker may have been first. */
                if (fd < 0 && errno == EAGAIN) continue;
                check(fd, "accept");
                all[count++] = (struct pollfd){fd, POLLIN, 0};
            }
    }
}

static void ask(const char *ip, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    char line[100];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, ip, &to.sin_addr);
    check(connect(fd, (void *)&to, sizeof to), "connect");
    puts("connected");
    for (;;) {
        int length = input(line, sizeof line);
        check(write(fd, line, length), "write");
        if (recv(fd, line, length, MSG_WAITALL) != length) check(-1, "recv");
        fwrite(line, length, 1, stdout);
    }
}

int main(int count, char **words) {
    struct sigaction action = {.sa_handler = on_term};
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    sigaction(SIGTERM, &action, 0);
    /* As servers do that show there what they are: it is no more the program's name. */
    memset(words[0], '-', strlen(words[0]));
    if (count == 4 && !strcmp(words[1], "ask")) ask(words[2], words[3]);
    if (count == 2 && !strcmp(words[1], "daemon")) {
        pid_t child = fork();
        check(child, "fork");
        if (child) _exit(0);
        check(setsid(), "setsid");
        printf("pid %d\n", getpid());
    }
    serve(count == 2 && !strcmp(words[1], "serve6") ? AF_INET6 : AF_INET, count == 2 && !strcmp(words[1], "workers"));
}
