/* An echo server and a client of it, as programs that know nothing of Tailwater.
 *
 *   posix-echo serve       prints "started", waits for a line of input, listens at a free port of
 *                          all addresses, prints "port N", and echoes
 *   posix-echo serve6      the same over IPv6 alone (IPV6_V6ONLY)
 *   posix-echo daemon      as serve, in a child that leads a session, after its parent has ended;
 *                          prints "pid N" first
 *   posix-echo ask IP PORT connects, prints "connected", and prints what comes back for each line
 *                          of its input
 *
 * Each runs until its input ends, or SIGTERM, after which it prints "terminated". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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

static void serve(int family) {
    struct pollfd all[MOST] = {{.fd = 0, .events = POLLIN}};
    /* The port of an address of IPv6 is where that of IPv4 has it. */
    struct sockaddr_in6 at = {.sin6_family = family};
    socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof at;
    char line[100];
    int count = 2, only = 1;
    puts("started");
    input(line, sizeof line);
    all[1] = (struct pollfd){socket(family, SOCK_STREAM, 0), POLLIN, 0};
    if (family == AF_INET6)
        check(setsockopt(all[1].fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), "IPV6_V6ONLY");
    check(bind(all[1].fd, (void *)&at, size), "bind");
    check(listen(all[1].fd, MOST), "listen");
    check(getsockname(all[1].fd, (void *)&at, &size), "getsockname");
    printf("port %d\n", ntohs(at.sin6_port));
    for (;;) {
        await(all, count);
        if (all[0].revents) exit(0);
        for (int i = count - 1; i > 1; i--)
            if (all[i].revents && !echo(all[i].fd)) {
                close(all[i].fd);
                all[i] = all[--count];
            }
        if (all[1].revents && count < MOST) {
            all[count] = (struct pollfd){accept(all[1].fd, 0, 0), POLLIN, 0};
            check(all[count++].fd, "accept");
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
    if (count == 4 && !strcmp(words[1], "ask")) ask(words[2], words[3]);
    if (count == 2 && !strcmp(words[1], "daemon")) {
        pid_t child = fork();
        check(child, "fork");
        if (child) _exit(0);
        check(setsid(), "setsid");
        printf("pid %d\n", getpid());
    }
    serve(count == 2 && !strcmp(words[1], "serve6") ? AF_INET6 : AF_INET);
}
