/* A table of what sockets, epoll, poll and select do, one line for each case. The same program runs
 * on Linux's network and on Tailwater's, and must print the same. It uses no time but to wait for
 * what must come or must not (30 ms), and prints no number that differs from run to run. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MUST_NOT = 30 };
/* Milliseconds for what must come: the argument. */
static int must;
static int listener, port;

static void line(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

static const char *error(long result) { return result < 0 ? strerrorname_np(errno) : "ok"; }

static struct sockaddr_in local(int to) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(to)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static int open_listener(int *at) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = local(0);
    socklen_t len = sizeof a;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&a, sizeof a) || listen(fd, 16)) abort();
    getsockname(fd, (void *)&a, &len);
    *at = ntohs(a.sin_port);
    return fd;
}

/* A connected pair: [0] connected, [1] accepted. */
static void pair(int fds[2]) {
    struct sockaddr_in a = local(port);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fds[0], (void *)&a, sizeof a)) abort();
    fds[1] = accept(listener, 0, 0);
    if (fds[1] < 0) abort();
}

static void drop(int fds[2]) {
    close(fds[0]);
    close(fds[1]);
}

static void settle(int fd, short events) {
    struct pollfd p = {fd, events, 0};
    poll(&p, 1, must);
}

static const char *bits(uint32_t events) {
    static char text[100];
    text[0] = 0;
    const struct { uint32_t bit; const char *name; } names[] = {
        {EPOLLIN, "IN "}, {EPOLLOUT, "OUT "}, {EPOLLRDHUP, "RDHUP "}, {EPOLLHUP, "HUP "}, {EPOLLERR, "ERR "},
        {EPOLLPRI, "PRI "}, {0x20, "NVAL "}};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (events & names[i].bit) strcat(text, names[i].name);
    return *text ? text : "- ";
}

static void add(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event e = {events, {.u64 = data}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &e)) line("ADD fails: %s", strerrorname_np(errno));
}

static void mod(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event e = {events, {.u64 = data}};
    if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &e)) line("MOD fails: %s", strerrorname_np(errno));
}

static int compare(const void *a, const void *b) {
    uint64_t x = ((struct epoll_event *)a)->data.u64, y = ((struct epoll_event *)b)->data.u64;
    return x < y ? -1 : x > y;
}

static void report(const char *what, int set, int ms) {
    struct epoll_event e[16];
    int n = epoll_wait(set, e, 16, ms);
    if (n < 0) return line("%s: %s", what, strerrorname_np(errno));
    qsort(e, n, sizeof *e, compare);
    printf("%s: %d", what, n);
    for (int i = 0; i < n; i++) printf(" [%d %s]", (int)e[i].data.u64, bits(e[i].events));
    line("");
}

static void put(int fd, const char *text) {
    if (write(fd, text, strlen(text)) != (long)strlen(text)) abort();
}

static void take(int fd, int bytes) {
    char buffer[100];
    while (bytes > 0) {
        long n = read(fd, buffer, bytes);
        if (n <= 0) abort();
        bytes -= n;
    }
}

static void epoll_cases(void) {
    int s[2], set = epoll_create1(0);
    pair(s);
    add(set, s[1], EPOLLIN, 1);
    report("level, nothing to read", set, MUST_NOT);
    put(s[0], "abc");
    report("level, data", set, must);
    report("level, again", set, must);
    take(s[1], 1);
    report("level, after a partial read", set, must);
    take(s[1], 2);
    report("level, after all was read", set, MUST_NOT);
    mod(set, s[1], EPOLLIN | EPOLLOUT, 2);
    report("MOD to OUT", set, must);
    mod(set, s[1], EPOLLIN | EPOLLET, 3);
    report("edge, nothing", set, MUST_NOT);
    put(s[0], "abc");
    report("edge, data", set, must);
    report("edge, again", set, MUST_NOT);
    take(s[1], 1);
    report("edge, after a partial read", set, MUST_NOT);
    put(s[0], "d");
    report("edge, more data", set, must);
    mod(set, s[1], EPOLLIN | EPOLLET, 4);
    report("edge, MOD re-arms", set, must);
    mod(set, s[1], EPOLLIN | EPOLLET | EPOLLONESHOT, 5);
    report("edge and one-shot", set, must);
    put(s[0], "e");
    report("one-shot, more data", set, MUST_NOT);
    mod(set, s[1], EPOLLIN | EPOLLONESHOT, 6);
    report("one-shot, MOD re-arms", set, must);
    report("one-shot, again", set, MUST_NOT);
    mod(set, s[1], EPOLLIN | EPOLLRDHUP, 7);
    shutdown(s[0], SHUT_WR);
    settle(s[1], POLLRDHUP);
    report("RDHUP with unread data", set, must);
    mod(set, s[1], EPOLLIN, 8);
    report("RDHUP not asked for", set, must);
    mod(set, s[1], 0, 9);
    report("nothing asked, half closed", set, MUST_NOT);
    shutdown(s[1], SHUT_WR);
    report("nothing asked, closed both ways", set, must);
    mod(set, s[1], EPOLLIN | EPOLLOUT | EPOLLRDHUP, 10);
    report("all asked, closed both ways", set, must);
    struct epoll_event e = {EPOLLIN, {.u64 = 1}};
    line("ADD twice: %s", error(epoll_ctl(set, EPOLL_CTL_ADD, s[1], &e)));
    line("DEL: %s", error(epoll_ctl(set, EPOLL_CTL_DEL, s[1], 0)));
    line("DEL twice: %s", error(epoll_ctl(set, EPOLL_CTL_DEL, s[1], 0)));
    line("MOD of none: %s", error(epoll_ctl(set, EPOLL_CTL_MOD, s[1], &e)));
    line("max 0: %s", error(epoll_wait(set, &e, 0, 0)));
    add(set, s[0], EPOLLIN, 11);
    close(s[0]);
    report("a closed descriptor leaves the set", set, MUST_NOT);
    close(s[1]);
    close(set);
}

static void reset_cases(void) {
    int s[2], set = epoll_create1(0), value;
    socklen_t len = sizeof value;
    struct linger now = {1, 0};
    char buffer[10];
    pair(s);
    add(set, s[1], 0, 1);
    setsockopt(s[0], SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(s[0]);
    report("reset, nothing asked", set, must);
    mod(set, s[1], EPOLLIN | EPOLLOUT | EPOLLRDHUP, 2);
    report("reset, all asked", set, must);
    getsockopt(s[1], SOL_SOCKET, SO_ERROR, &value, &len);
    line("SO_ERROR: %s", strerrorname_np(value));
    getsockopt(s[1], SOL_SOCKET, SO_ERROR, &value, &len);
    line("SO_ERROR again: %d", value);
    long n = read(s[1], buffer, sizeof buffer);
    line("read after that: %ld %s", n, error(n));
    signal(SIGPIPE, SIG_IGN);
    n = write(s[1], "x", 1);
    line("write after that: %ld %s", n, error(n));
    close(s[1]);
    pair(s);
    setsockopt(s[0], SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(s[0]);
    settle(s[1], 0);
    n = read(s[1], buffer, sizeof buffer);
    line("read of a reset connection: %ld %s", n, error(n));
    n = read(s[1], buffer, sizeof buffer);
    line("read again: %ld %s", n, error(n));
    close(s[1]);
    close(set);
}

static void connect_cases(void) {
    int unused, set = epoll_create1(0), value;
    socklen_t len = sizeof value;
    int gone = open_listener(&unused);
    struct sockaddr_in a = local(port), refused = local(unused);
    close(gone);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    line("connect without waiting: %s", error(connect(fd, (void *)&a, sizeof a)));
    add(set, fd, EPOLLOUT, 1);
    report("connected", set, must);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len);
    line("SO_ERROR: %d", value);
    line("flags: %s", fcntl(fd, F_GETFL) & O_NONBLOCK ? "NONBLOCK" : "-");
    int accepted = accept4(listener, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC);
    line("accepted: %s %s", fcntl(accepted, F_GETFL) & O_NONBLOCK ? "NONBLOCK" : "-",
         fcntl(accepted, F_GETFD) & FD_CLOEXEC ? "CLOEXEC" : "-");
    struct sockaddr_in own, peer;
    socklen_t n = sizeof own;
    getsockname(fd, (void *)&own, &n);
    getpeername(accepted, (void *)&peer, &n);
    line("addresses agree: %d, length %d", own.sin_port == peer.sin_port && own.sin_addr.s_addr == peer.sin_addr.s_addr,
         (int)n);
    line("connect when connected: %s", error(connect(fd, (void *)&a, sizeof a)));
    close(fd);
    close(accepted);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    line("connect to no listener: %s", error(connect(fd, (void *)&refused, sizeof refused)));
    close(fd);
    close(set);
}

static void io_cases(void) {
    int s[2], value = 0;
    char a[4] = "", b[8] = "", big[64];
    pair(s);
    struct iovec out[2] = {{"ab", 2}, {"cdef", 4}}, in[2] = {{a, 3}, {b, 7}};
    line("writev: %ld", (long)writev(s[0], out, 2));
    settle(s[1], POLLIN);
    line("FIONREAD: %d %d", ioctl(s[1], FIONREAD, &value), value);
    line("peek: %ld", (long)recv(s[1], big, sizeof big, MSG_PEEK));
    line("readv: %ld %.3s %.3s", (long)readv(s[1], in, 2), a, b);
    line("DONTWAIT: %s", error(recv(s[1], big, 1, MSG_DONTWAIT)));
    struct msghdr m = {.msg_iov = out, .msg_iovlen = 2};
    line("sendmsg: %ld", (long)sendmsg(s[0], &m, 0));
    struct msghdr r = {.msg_iov = in, .msg_iovlen = 2};
    settle(s[1], POLLIN);
    long got = recvmsg(s[1], &r, 0);
    line("recvmsg: %ld flags %d control %d", got, r.msg_flags, (int)r.msg_controllen);
    struct iovec rooms[2] = {{a, 3}, {b, 3}};
    struct mmsghdr sent[2] = {{.msg_hdr = {.msg_iov = out, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = out + 1, .msg_iovlen = 1}}};
    struct mmsghdr read_in[2] = {{.msg_hdr = {.msg_iov = rooms, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = rooms + 1, .msg_iovlen = 1}}};
    struct timespec none = {0, 0};
    int count = sendmmsg(s[0], sent, 2, 0);
    line("sendmmsg: %d, %u and %u bytes", count, sent[0].msg_len, sent[1].msg_len);
    count = recvmmsg(s[1], read_in, 2, MSG_WAITALL, 0);
    line("recvmmsg: %d, %u and %u bytes, %.3s %.3s", count, read_in[0].msg_len, read_in[1].msg_len, a, b);
    put(s[0], "abc");
    settle(s[1], POLLIN);
    line("recvmmsg, not for a second: %d", recvmmsg(s[1], read_in, 2, MSG_WAITFORONE | MSG_WAITALL, 0));
    put(s[0], "abcdef");
    line("recvmmsg, no time: %d", recvmmsg(s[1], read_in, 2, MSG_WAITALL, &none));
    none.tv_sec = 60;
    line("recvmmsg, some time: %d", recvmmsg(s[1], read_in, 1, MSG_WAITALL, &none));
    line("time that is left: %d", none.tv_sec < 60);
    put(s[0], "abc");
    none.tv_nsec = -1;
    line("recvmmsg, an impossible time: %s", error(recvmmsg(s[1], read_in, 2, MSG_WAITALL, &none)));
    line("TRUNC throws away: %ld", (long)recv(s[1], big, 3, MSG_TRUNC | MSG_WAITALL));
    put(s[0], "12");
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, 0, 0);
    put(s[0], "34");
    line("WAITALL: %ld %.4s", (long)recv(s[1], big, 4, MSG_WAITALL), big);
    struct timeval time = {0, 20000};
    setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    line("RCVTIMEO: %s", error(read(s[1], big, 1)));
    fcntl(s[1], F_SETFL, O_NONBLOCK);
    line("NONBLOCK: %s", error(read(s[1], big, 1)));
    value = 0;
    ioctl(s[1], FIONBIO, &value);
    line("FIONBIO off: %s", fcntl(s[1], F_GETFL) & O_NONBLOCK ? "NONBLOCK" : "-");
    int copy = dup(s[0]);
    close(s[0]);
    put(copy, "z");
    take(s[1], 1);
    line("a copy lives on");
    int other = dup2(copy, 77);
    close(copy);
    put(other, "y");
    take(s[1], 1);
    line("dup2: %d", other);
    close(other);
    line("end of stream: %ld", (long)read(s[1], big, 1));
    line("shutdown, then write: %s", (shutdown(s[1], SHUT_WR), error(send(s[1], "x", 1, MSG_NOSIGNAL))));
    close(s[1]);
    line("a closed descriptor: %s", error(read(s[1], big, 1)));
    pair(s);
    FILE *file = tmpfile();
    fputs("0123456789", file);
    fflush(file);
    off_t offset = 2;
    line("sendfile: %ld", (long)sendfile(s[0], fileno(file), &offset, 5));
    line("offset: %ld", (long)offset);
    line("received: %ld %.5s", (long)recv(s[1], big, 5, MSG_WAITALL), big);
    drop(s);
}

/* What a program reads back. */
static void show_options(const char *what, int fd) {
    static const struct { int level, name; } ints[] = {
        {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_CORK}, {IPPROTO_TCP, TCP_KEEPIDLE}, {IPPROTO_TCP, TCP_KEEPINTVL},
        {IPPROTO_TCP, TCP_KEEPCNT}, {IPPROTO_TCP, TCP_USER_TIMEOUT}, {SOL_SOCKET, SO_KEEPALIVE}, {SOL_SOCKET, SO_TYPE}};
    struct linger linger = {-1, -1};
    struct timeval receive = {-1, -1}, send = {-1, -1};
    socklen_t len;
    printf("%s:", what);
    for (unsigned i = 0; i < sizeof ints / sizeof *ints; i++) {
        int value = -1;
        len = sizeof value;
        getsockopt(fd, ints[i].level, ints[i].name, &value, &len);
        printf(" %d", value);
    }
    len = sizeof linger;
    getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len);
    len = sizeof receive;
    getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive, &len);
    getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send, &len);
    line(", linger %d %d, times %ld %ld", linger.l_onoff, linger.l_linger, (long)receive.tv_sec, (long)send.tv_sec);
}

static const char *set_int(int fd, int level, int name, int value) {
    return error(setsockopt(fd, level, name, &value, sizeof value));
}

static void set_options(int fd) {
    struct linger linger = {1, 5};
    struct timeval receive = {60, 0}, send = {70, 0};
    /* The probes' form may come before they are switched on. */
    line("KEEPIDLE: %s", set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30));
    line("KEEPINTVL: %s", set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10));
    line("KEEPCNT: %s", set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 3));
    line("KEEPALIVE: %s", set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1));
    line("NODELAY: %s", set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1));
    line("CORK: %s", set_int(fd, IPPROTO_TCP, TCP_CORK, 1));
    line("USER_TIMEOUT: %s", set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000));
    line("LINGER: %s", error(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger)));
    line("RCVTIMEO: %s", error(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive, sizeof receive)));
    line("SNDTIMEO: %s", error(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send, sizeof send)));
}

static void option_cases(void) {
    static char data[1 << 20];
    int s[2], at;
    long n;
    pair(s);
    show_options("of a connection", s[0]);
    show_options("of an accepted one", s[1]);
    set_options(s[0]);
    show_options("set", s[0]);
    put(s[0], "ab");
    line("no CORK: %s", set_int(s[0], IPPROTO_TCP, TCP_CORK, 0));
    take(s[1], 2);
    line("KEEPIDLE of 0: %s", set_int(s[0], IPPROTO_TCP, TCP_KEEPIDLE, 0));
    line("KEEPIDLE of a day: %s", set_int(s[0], IPPROTO_TCP, TCP_KEEPIDLE, 86400));
    line("KEEPCNT of 128: %s", set_int(s[0], IPPROTO_TCP, TCP_KEEPCNT, 128));
    line("USER_TIMEOUT of -1: %s", set_int(s[0], IPPROTO_TCP, TCP_USER_TIMEOUT, -1));
    line("no KEEPALIVE: %s", set_int(s[0], SOL_SOCKET, SO_KEEPALIVE, 0));
    show_options("and after that", s[0]);
    show_options("the other side", s[1]);
    struct tcp_info info;
    socklen_t len = sizeof info;
    getsockopt(s[0], IPPROTO_TCP, TCP_INFO, &info, &len);
    line("TCP_INFO state: %d", info.tcpi_state);
    struct timeval limit = {0, 30000};
    setsockopt(s[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    while ((n = send(s[0], data, sizeof data, 0)) > 0) {}
    line("SNDTIMEO: %s", error(n));
    /* Data that no one has read resets the connection, or closing the other side would linger. */
    drop((int[2]){s[1], s[0]});

    /* Options of a socket that is connected later, and of a listener, are those of the connection. */
    int fd = open_listener(&at), before = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = local(at);
    set_options(before);
    set_options(fd);
    /* Without it the listener, and so the connection, is Linux's alone. */
    poll(&(struct pollfd){fd, POLLIN, 0}, 1, 0);
    line("connect: %s", error(connect(before, (void *)&a, sizeof a)));
    int accepted = accept(fd, 0, 0);
    show_options("set before connect", before);
    show_options("set for a listener", accepted);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    line("accept with a limit: %s", error(accept(fd, 0, 0)));
    drop((int[2]){before, accepted});
    close(fd);
}

static void poll_cases(void) {
    int s[2], pipes[2];
    pair(s);
    if (pipe(pipes)) abort();
    struct pollfd p[4] = {{s[1], POLLIN, 0}, {pipes[0], POLLIN, 0}, {-1, POLLIN, 0}, {s[0], POLLOUT, 0}};
    line("poll: %d", poll(p, 4, must));
    line("poll: %s| %s| %s", bits(p[0].revents), p[1].revents ? "pipe" : "-", p[3].revents & POLLOUT ? "OUT" : "-");
    line("poll, nothing: %d", poll(p, 3, MUST_NOT));
    put(pipes[1], "x");
    line("poll, pipe: %d", poll(p, 3, must));
    put(s[0], "x");
    settle(s[1], POLLIN);
    line("poll, both: %d", poll(p, 3, must));
    fd_set reads, writes;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_SET(s[1], &reads);
    FD_SET(pipes[0], &reads);
    FD_SET(s[0], &writes);
    struct timeval time = {5, 0};
    int n = select(100, &reads, &writes, 0, &time);
    line("select: %d %d %d %d", n, !!FD_ISSET(s[1], &reads), !!FD_ISSET(pipes[0], &reads), !!FD_ISSET(s[0], &writes));
    take(s[1], 1);
    FD_ZERO(&reads);
    FD_SET(s[1], &reads);
    time = (struct timeval){0, 20000};
    line("select, nothing: %d", select(100, &reads, 0, 0, &time));
    line("time that is left of none: %ld %ld", (long)time.tv_sec, (long)time.tv_usec);
    FD_SET(s[1], &reads);
    time.tv_sec = -1;
    line("select, an impossible time: %s", error(select(100, &reads, 0, 0, &time)));
    put(s[0], "x");
    /* A set has as many words as the call says. */
    unsigned long small[3] = {0, ~0UL, ~0UL};
    fd_set *least = (fd_set *)small;
    FD_SET(s[1], least);
    time = (struct timeval){must / 1000, 0};
    n = select(s[1] + 1, least, 0, 0, &time);
    line("select, a small set: %d %d, behind it: %d %d", n, !!FD_ISSET(s[1], least), small[1] == ~0UL, small[2] == ~0UL);
    line("time that is left: %d", time.tv_sec < must / 1000);
    int high = fcntl(s[1], F_DUPFD, FD_SETSIZE + 100);
    for (int has = 1; high >= 0 && has >= 0; has--) {
        unsigned long large[FD_SETSIZE / 32] = {0};
        large[high / 64] |= 1UL << high % 64;
        time = (struct timeval){0, 0};
        n = select(high + 1, (fd_set *)large, 0, 0, &time);
        line("select, a large set: %d %d", n, !!(large[high / 64] & 1UL << high % 64));
        if (has) take(s[1], 1);
    }
    close(high);
    close(s[0]);
    settle(s[1], POLLRDHUP);
    p[0].events = POLLRDHUP | POLLIN;
    poll(p, 1, must);
    line("poll, closed by the peer: %s", bits(p[0].revents));
    drop((int[2]){s[1], pipes[0]});
    line("poll of a closed descriptor: %d %s", poll(p, 1, 0), bits(p[0].revents));
    close(pipes[1]);
    struct sockaddr_in a = local(port);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    connect(client, (void *)&a, sizeof a);
    struct pollfd l = {listener, POLLIN, 0};
    line("poll, a client waits: %d %s", poll(&l, 1, must), bits(l.revents));
    close(accept(listener, 0, 0));
    close(client);
}

static void mixed_cases(void) {
    int s[2], pipes[2], set = epoll_create1(0), outer = epoll_create1(0), event = eventfd(0, EFD_NONBLOCK);
    uint64_t count = 1;
    pair(s);
    if (pipe(pipes)) abort();
    add(set, pipes[0], EPOLLIN, 1);
    add(set, s[1], EPOLLIN, 2);
    add(set, event, EPOLLIN | EPOLLET, 3);
    report("mixed, nothing", set, MUST_NOT);
    put(pipes[1], "x");
    report("mixed, pipe", set, must);
    report("mixed, pipe by level", set, must);
    put(s[0], "x");
    settle(s[1], POLLIN);
    report("mixed, pipe and socket", set, must);
    take(pipes[0], 1);
    if (write(event, &count, 8) != 8) abort();
    report("mixed, socket and event", set, must);
    report("mixed, event by edge", set, must);
    if (write(event, &count, 8) != 8) abort();
    report("mixed, each write fires", set, must);
    take(s[1], 1);
    report("mixed, nothing", set, MUST_NOT);
    add(outer, set, EPOLLIN, 4);
    report("nested, nothing", outer, MUST_NOT);
    put(s[0], "x");
    report("nested, socket", outer, must);
    report("nested, by level", outer, must);
    take(s[1], 1);
    report("nested, nothing", outer, MUST_NOT);
    put(pipes[1], "x");
    report("nested, pipe", outer, must);
    take(pipes[0], 1);
    struct pollfd p = {set, POLLIN, 0};
    line("poll of a set, nothing: %d", poll(&p, 1, MUST_NOT));
    put(s[0], "x");
    line("poll of a set: %d", poll(&p, 1, must));
    struct epoll_event e = {EPOLLIN, {.u64 = 1}};
    line("a set in itself: %s", error(epoll_ctl(set, EPOLL_CTL_ADD, set, &e)));
    line("a cycle of sets: %s", error(epoll_ctl(set, EPOLL_CTL_ADD, outer, &e)));
    int copy = dup(set);
    close(set);
    report("a copy of a set", copy, must);
    drop(s);
    drop(pipes);
    close(copy);
    close(outer);
    close(event);
}

static void listener_cases(void) {
    int set = epoll_create1(0), at, fd = open_listener(&at), value = 1;
    struct sockaddr_in a = local(at);
    ioctl(fd, FIONBIO, &value);
    line("accept, none: %s", error(accept(fd, 0, 0)));
    add(set, fd, EPOLLIN | EPOLLEXCLUSIVE, 1);
    report("listener, none", set, MUST_NOT);
    int one = socket(AF_INET, SOCK_STREAM, 0), two = socket(AF_INET, SOCK_STREAM, 0);
    connect(one, (void *)&a, sizeof a);
    connect(two, (void *)&a, sizeof a);
    report("listener, two", set, must);
    int first = accept(fd, 0, 0);
    line("accepted does not inherit: %s", fcntl(first, F_GETFL) & O_NONBLOCK ? "NONBLOCK" : "-");
    report("listener, one left", set, must);
    int second = accept(fd, 0, 0);
    report("listener, none left", set, MUST_NOT);
    int again = socket(AF_INET, SOCK_STREAM, 0);
    line("bind to a taken port: %s", error(bind(again, (void *)&a, sizeof a)));
    line("listen on a connection: %s", error(listen(first, 1)));
    int accepting;
    socklen_t len = sizeof accepting;
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &len);
    line("ACCEPTCONN: %d", accepting);
    close(fd);
    int late = socket(AF_INET, SOCK_STREAM, 0);
    line("connect after close: %s", error(connect(late, (void *)&a, sizeof a)));
    drop((int[2]){one, two});
    drop((int[2]){first, second});
    drop((int[2]){again, late});
    close(set);
}

static volatile sig_atomic_t signals;
static void on_signal(int number) { signals += number == SIGALRM; }

/* Has the timer's signal come again and again, or no more: one that came before the wait would leave
 * that without an end. Its handlers have run then. */
static void every(int ms) {
    struct itimerval timer = {{0, ms * 1000}, {0, ms * 1000}};
    setitimer(ITIMER_REAL, &timer, 0);
    sigprocmask(SIG_BLOCK, 0, 0);
}

static volatile sig_atomic_t restarted;
static void on_restart(int number) { restarted += number == SIGALRM; }

/* Writes once the handler has run, which runs on another thread. */
static void *write_after(void *argument) {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, 0);
    while (!restarted) usleep(1000);
    put(*(int *)argument, "x");
    return 0;
}

static void restart_cases(void) {
    int s[2];
    char buffer[10];
    pthread_t writer;
    struct sigaction action = {.sa_handler = on_restart, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    pair(s);
    pthread_create(&writer, 0, write_after, s);
    every(30);
    long n = read(s[1], buffer, sizeof buffer);
    line("read goes on after SA_RESTART: %ld %d", n, restarted > 0);
    pthread_join(writer, 0);
    struct pollfd p = {s[1], POLLIN, 0};
    line("poll does not: %s", error(poll(&p, 1, must)));
    struct timeval limit = {must / 1000, 0};
    setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    line("nor does read with a limit: %s", error(read(s[1], buffer, 1)));
    every(0);
    drop(s);
}

static void signal_cases(void) {
    int s[2], set = epoll_create1(0);
    char buffer[10];
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, 0);
    pair(s);
    add(set, s[1], EPOLLIN, 1);
    every(30);
    report("a handler ends epoll_wait", set, must);
    struct pollfd p = {s[1], POLLIN, 0};
    line("a handler ends poll: %s", error(poll(&p, 1, must)));
    line("a handler ends read: %s", error(read(s[1], buffer, 1)));
    line("a handler ends accept: %s", error(accept(listener, 0, 0)));
    every(0);
    line("handlers ran: %d", signals > 0);
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, &before);
    signals = 0;
    kill(getpid(), SIGALRM);
    usleep(MUST_NOT * 1000);
    line("a blocked signal waits: %d", (int)signals);
    struct epoll_event e;
    line("epoll_pwait opens the mask: %s %d", error(epoll_pwait(set, &e, 1, must, &before)), (int)signals);
    sigprocmask(SIG_SETMASK, &before, 0);
    put(s[0], "x");
    settle(s[1], POLLIN);
    raise(SIGALRM);
    line("raise runs the handler: %d", (int)signals);
    report("and the set goes on", set, must);
    drop(s);
    close(set);
}

static void take_both(int fd) {
    char one[10], two[10];
    struct iovec rooms[2] = {{one, sizeof one}, {two, sizeof two}};
    struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = rooms, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = rooms + 1, .msg_iovlen = 1}}};
    int n = recvmmsg(fd, both, 2, 0, 0);
    line("recvmmsg: %d, %u and %u bytes, %.2s%.2s", n, both[0].msg_len, both[1].msg_len, one, two);
}

/* A UDP socket at a port of its own choice, which is what makes it a server. */
static int open_server(int *at) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), first = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in a = local(0);
    socklen_t len = sizeof a;
    if (bind(first, (void *)&a, sizeof a)) abort();
    getsockname(first, (void *)&a, &len);
    close(first);
    if (bind(fd, (void *)&a, sizeof a)) abort();
    *at = ntohs(a.sin_port);
    struct pollfd begin = {fd, POLLIN, 0};
    poll(&begin, 1, 0);
    return fd;
}

static void datagram_cases(void) {
    int at, fd = open_server(&at), client = socket(AF_INET, SOCK_DGRAM, 0), set = epoll_create1(0), n;
    char buffer[100] = "";
    struct sockaddr_in to = local(at), from, own;
    socklen_t len = sizeof from, own_len = sizeof own;
    add(set, client, EPOLLIN, 2);
    add(set, fd, EPOLLIN, 1);
    report("no datagram", set, MUST_NOT);
    line("sendto: %ld", (long)sendto(client, "hello", 5, 0, (void *)&to, sizeof to));
    report("a datagram", set, must);
    ioctl(fd, FIONREAD, &n);
    line("FIONREAD: %d", n);
    line("peek: %ld", (long)recv(fd, buffer, sizeof buffer, MSG_PEEK));
    line("recvfrom: %ld %.5s", (long)recvfrom(fd, buffer, sizeof buffer, 0, (void *)&from, &len), buffer);
    getsockname(client, (void *)&own, &own_len);
    line("the sender: %d, %d bytes", own.sin_port == from.sin_port && from.sin_family == AF_INET, (int)len);
    line("none left: %s", error(recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)));
    line("reply: %ld", (long)sendto(fd, "reply", 5, 0, (void *)&from, len));
    report("a set that was there before", set, must);
    line("truncated: %ld", (long)recv(client, buffer, 2, MSG_TRUNC));
    struct iovec parts[2] = {{"ab", 2}, {"cd", 2}}, rooms[2] = {{buffer, 3}, {buffer + 10, 10}};
    line("not connected: %s", error(writev(client, parts, 2)));
    line("connect: %s", error(connect(client, (void *)&to, sizeof to)));
    line("writev: %ld", (long)writev(client, parts, 2));
    settle(fd, POLLIN);
    line("readv: %ld %.3s%.1s", (long)readv(fd, rooms, 2), buffer, buffer + 10);
    len = sizeof from;
    n = getpeername(client, (void *)&from, &len);
    line("getpeername: %s %d", error(n), from.sin_port == to.sin_port);
    line("no bytes: %ld", (long)send(client, 0, 0, 0));
    settle(fd, POLLIN);
    line("received: %ld", (long)recv(fd, buffer, sizeof buffer, 0));
    static char large[70000];
    line("too long: %s", error(send(client, large, sizeof large, 0)));
    struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    line("sendmmsg: %d", sendmmsg(client, both, 2, 0));
    take_both(fd);
    int linux_one = syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0);
    line("from Linux: %ld", syscall(SYS_sendto, linux_one, "linux", 5, 0, &to, sizeof to));
    settle(fd, POLLIN);
    len = sizeof from;
    line("received: %ld", (long)recvfrom(fd, buffer, sizeof buffer, 0, (void *)&from, &len));
    line("answered: %ld", (long)sendto(fd, "answer", 6, 0, (void *)&from, len));
    settle(linux_one, POLLIN);
    line("there: %ld", syscall(SYS_recvfrom, linux_one, buffer, sizeof buffer, 0, 0, 0));
    struct timeval limit = {0, 30000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    line("RCVTIMEO: %s", error(recv(fd, buffer, 1, 0)));
    mod(set, fd, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    report("edge, writable", set, must);
    report("edge, again", set, MUST_NOT);
    close(linux_one);
    close(client);
    close(fd);
    close(set);
}

/* A program may add a socket to a set and connect it then. */
static void early_cases(void) {
    int set = epoll_create1(0), fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = local(port);
    add(set, fd, EPOLLIN | EPOLLOUT, 1);
    mod(set, fd, EPOLLIN, 2);
    line("connect in a set: %s", error(connect(fd, (void *)&a, sizeof a)));
    int other = accept(listener, 0, 0);
    report("nothing to read", set, MUST_NOT);
    put(other, "x");
    report("data", set, must);
    mod(set, fd, EPOLLOUT, 3);
    report("writable", set, must);
    line("ADD again: %s", error(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {0}})));
    line("DEL: %s", error(epoll_ctl(set, EPOLL_CTL_DEL, fd, 0)));
    drop((int[2]){fd, other});
    close(set);
}

/* All descriptors above those in use: the library's own stay open. */
static void closing_cases(void) {
    int s[2], at[2], n;
    pair(s);
    if (pipe(at)) abort();
    line("close_range: %s", error(close_range(at[1] + 1, ~0U, 0)));
    put(s[0], "x");
    take(s[1], 1);
    int more[2];
    pair(more);
    put(more[0], "x");
    take(more[1], 1);
    line("connections go on, and new ones come");
    line("closing at exec: %s", error(close_range(more[0], ~0U, CLOSE_RANGE_CLOEXEC)));
    line("CLOEXEC: %d %d", fcntl(more[0], F_GETFD), fcntl(more[1], F_GETFD));
    put(more[1], "x");
    take(more[0], 1);
    line("and they are open until then");
    char end;
    n = syscall(SYS_close, more[0]);
    line("closed by a system call: %s %ld", error(n), (long)read(more[1], &end, 1));
    closefrom(at[1] + 1);
    line("closed by closefrom: %s", error(read(more[1], &end, 1)));
    pair(more);
    put(more[0], "x");
    take(more[1], 1);
    line("new connections come");
    drop(more);
    drop(at);
    drop(s);
}

static void *write_later(void *argument) {
    usleep(20000);
    put(*(int *)argument, "x");
    return 0;
}

/* As write_later, for an eventfd: eight bytes. */
static void *signal_later(void *argument) {
    usleep(20000);
    put(*(int *)argument, "12345678");
    return 0;
}

static void *echo(void *argument) {
    int fd = *(int *)argument;
    char buffer[100];
    long n;
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        if (write(fd, buffer, n) != n) abort();
    return (void *)(intptr_t)(n == 0);
}

/* Writes a megabyte to a pipe at once, which has room for less. */
static void *fill(void *argument) {
    static char data[1 << 20];
    int fd = *(int *)argument;
    return (void *)(intptr_t)(write(fd, data, sizeof data) == sizeof data);
}

static void pipe_cases(void) {
    int pipes[2], s[2];
    char buffer[4096];
    long total = 0, n;
    void *whole;
    pthread_t thread;
    if (pipe(pipes)) abort();
    pair(s);
    pthread_create(&thread, 0, fill, &pipes[1]);
    while (total < 1 << 20) {
        put(s[0], "x");
        take(s[1], 1);
        if ((n = read(pipes[0], buffer, sizeof buffer)) <= 0) abort();
        total += n;
    }
    pthread_join(thread, &whole);
    line("a write of more than a pipe holds: %ld %d", total, (int)(intptr_t)whole);
    drop(pipes);
    drop(s);
}

static void *take_one(void *argument) {
    int fd = accept(*(int *)argument, 0, 0);
    if (fd < 0) abort();
    close(fd);
    return 0;
}

static void accept_cases(void) {
    pthread_t threads[2];
    int fds[2];
    struct sockaddr_in a = local(port);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, take_one, &listener);
    for (int i = 0; i < 2; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fds[i], (void *)&a, sizeof a)) abort();
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    line("two threads accept from one listener");
    drop(fds);
}

static void privilege_cases(void) {
    int s[2], set = -1;
    char path[100], text[200];
    pair(s);
    put(s[0], "x");
    take(s[1], 1);
    line("prctl: %s", error(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
    put(s[0], "x");
    take(s[1], 1);
    snprintf(path, sizeof path, "/proc/self/task/%d/status", getpid());
    FILE *status = fopen(path, "r");
    while (status && fgets(text, sizeof text, status))
        if (sscanf(text, "NoNewPrivs: %d", &set) == 1) break;
    fclose(status);
    line("prctl is of the thread: %d", set);
    drop(s);
}

/* Waits for a connection's data, and returns the user that it has then. */
static void *user_after(void *argument) {
    take(*(int *)argument, 1);
    return (void *)(intptr_t)geteuid();
}

/* Changes of the user are those of all threads. */
static void user_cases(void) {
    int s[2];
    uid_t before = geteuid(), there;
    pthread_t thread;
    void *user;
    pair(s);
    pthread_create(&thread, 0, user_after, &s[1]);
    usleep(MUST_NOT * 1000);
    line("setgid: %s", error(setgid(getgid())));
    line("another user: %s", before ? "ok" : error(seteuid(65534)));
    put(s[0], "x");
    pthread_join(thread, &user);
    there = (uid_t)(intptr_t)user;
    line("of all threads: %d", there == (before ? before : 65534));
    line("and back: %s", error(seteuid(before)));
    put(s[0], "x");
    take(s[1], 1);
    drop(s);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int turns;

static void *take_turns(void *argument) {
    int me = *(int *)argument;
    for (int i = 0; i < 100; i++) {
        pthread_mutex_lock(&mutex);
        while (turns % 2 != me) pthread_cond_wait(&condition, &mutex);
        turns++;
        pthread_cond_broadcast(&condition);
        pthread_mutex_unlock(&mutex);
    }
    return 0;
}

static void thread_cases(void) {
    int s[2], set = epoll_create1(0), who[2] = {0, 1};
    pthread_t threads[2];
    void *result;
    char text[200];
    pair(s);
    add(set, s[1], EPOLLIN, 1);
    pthread_create(threads, 0, write_later, s);
    report("another thread writes", set, must);
    pthread_join(threads[0], 0);
    take(s[1], 1);
    pthread_create(threads, 0, echo, &s[1]);
    for (int i = 0; i < 100; i++) {
        int n = snprintf(text, sizeof text, "%d", i);
        put(s[0], text);
        take(s[0], n);
    }
    shutdown(s[0], SHUT_WR);
    pthread_join(threads[0], &result);
    line("a thread echoes to the end: %d", (int)(intptr_t)result);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, take_turns, &who[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    line("threads take turns: %d", turns);
    drop(s);
    pair(s);
    struct iovec rooms[2] = {{text, 1}, {text + 1, 1}};
    struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = rooms, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = rooms + 1, .msg_iovlen = 1}}};
    put(s[0], "x");
    pthread_create(threads, 0, write_later, s);
    line("recvmmsg waits for the second: %d", recvmmsg(s[1], both, 2, 0, 0));
    pthread_join(threads[0], 0);
    drop(s);
    close(set);
}

/* What the threads of wait_cases wait for. Each calls for `served`, a connection, first. */
static struct {
    pthread_mutex_t mutex, inherits;
    pthread_cond_t condition;
    pthread_rwlock_t lock;
    pthread_barrier_t barrier;
    sem_t there, back, shared;
    volatile int ready, ends;
    long count;
    int served;
} waits = {.mutex = PTHREAD_MUTEX_INITIALIZER, .condition = PTHREAD_COND_INITIALIZER, .lock = PTHREAD_RWLOCK_INITIALIZER};

static void call_served(void) {
    char one;
    if (recv(waits.served, &one, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN) abort();
}

static void *take_turns_served(void *argument) {
    call_served();
    return take_turns(argument);
}

static void *pass_on(void *argument) {
    call_served();
    for (int i = 0; i < 100; i++) {
        sem_wait(argument ? &waits.there : &waits.back);
        waits.count++;
        sem_post(argument ? &waits.back : &waits.there);
    }
    return 0;
}

static void *share(void *argument) {
    (void)argument;
    call_served();
    for (int i = 0; i < 100; i++) {
        pthread_rwlock_wrlock(&waits.lock);
        waits.count++;
        pthread_rwlock_unlock(&waits.lock);
        pthread_mutex_lock(&waits.inherits);
        waits.count++;
        call_served();
        pthread_mutex_unlock(&waits.inherits);
        sem_wait(&waits.shared);
        waits.count++;
        sem_post(&waits.shared);
    }
    pthread_barrier_wait(&waits.barrier);
    return 0;
}

static void *await(void *argument) {
    call_served();
    long result = sem_wait(&waits.there);
    *(const char **)argument = error(result);
    waits.ends = 1;
    return 0;
}

static void unlock(void *argument) { pthread_mutex_unlock(argument); }

static void *await_condition(void *argument) {
    call_served();
    pthread_mutex_lock(&waits.mutex);
    pthread_cleanup_push(unlock, &waits.mutex);
    waits.ready = 1;
    while (waits.ready != 2) pthread_cond_wait(&waits.condition, &waits.mutex);
    pthread_cleanup_pop(1);
    return argument;
}

/* Has a thread wait, and sends it signals until it ends, or some if `times` says how many. */
static const char *interrupt(int flags, int times) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    const char *ended;
    pthread_t thread;
    sigaction(SIGALRM, &action, 0);
    waits.ends = signals = 0;
    pthread_create(&thread, 0, await, &ended);
    for (int i = 0; times ? i < times : !waits.ends; i++) {
        pthread_kill(thread, SIGALRM);
        usleep(1000);
    }
    if (times) sem_post(&waits.there);
    pthread_join(thread, 0);
    return ended;
}

/* Threads that use sockets and wait for each other. */
static void wait_cases(void) {
    int s[2], who[2] = {0, 1};
    pthread_t threads[4];
    void *result;
    pthread_mutexattr_t attributes;
    pair(s);
    waits.served = s[0];
    turns = 0;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, take_turns_served, &who[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    line("condition: %d", turns);
    sem_init(&waits.there, 0, 1);
    sem_init(&waits.back, 0, 0);
    sem_init(&waits.shared, 1, 1);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, pass_on, i ? &waits : 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    line("semaphores: %ld", waits.count);
    waits.count = 0;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&waits.inherits, &attributes);
    pthread_barrier_init(&waits.barrier, 0, 4);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, share, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    line("locks by four threads: %s", waits.count > 0 ? "ok" : "lost");
    sem_wait(&waits.there);
    line("a signal: %s", interrupt(0, 0));
    line("its handler has run: %d", signals > 0);
    line("SA_RESTART: %s", interrupt(SA_RESTART, 20));
    line("its handler has run: %d", signals > 0);
    pthread_create(threads, 0, await_condition, 0);
    while (!waits.ready) usleep(1000);
    pthread_mutex_lock(&waits.mutex);
    pthread_mutex_unlock(&waits.mutex);
    pthread_cancel(threads[0]);
    pthread_join(threads[0], &result);
    line("cancelled: %d, unlocked: %d", result == PTHREAD_CANCELED, pthread_mutex_trylock(&waits.mutex) == 0);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    call_served();
    line("times out: %s", strerrorname_np(pthread_cond_timedwait(&waits.condition, &waits.mutex, &until)));
    pthread_mutex_unlock(&waits.mutex);
    drop(s);
}

static void fork_cases(void) {
    int s[2], status;
    pair(s);
    pid_t child = fork();
    if (child == 0) {
        int pipes[2];
        char one;
        if (pipe(pipes) || write(pipes[1], "x", 1) != 1 || read(pipes[0], &one, 1) != 1) _exit(1);
        int at, fd = open_listener(&at);
        struct sockaddr_in a = local(at);
        int client = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client, (void *)&a, sizeof a)) _exit(2);
        int server = accept(fd, 0, 0);
        put(client, "x");
        take(server, 1);
        _exit(42);
    }
    waitpid(child, &status, 0);
    line("a child has Linux's network: %d", WEXITSTATUS(status));
    int set = epoll_create1(0);
    add(set, s[1], EPOLLIN, 1);
    add(set, listener, EPOLLIN, 2);
    child = fork();
    if (child == 0) {
        close_range(3, ~0U, 0);
        _exit(0);
    }
    waitpid(child, &status, 0);
    line("a child closes all: %d", WEXITSTATUS(status));
    put(s[0], "x");
    report("and the parent's set goes on", set, must);
    take(s[1], 1);
    int events = eventfd(0, EFD_NONBLOCK);
    add(set, events, EPOLLIN, 3);
    pthread_t writer;
    pthread_create(&writer, 0, signal_later, &events);
    report("with the kernel's side", set, must);
    pthread_join(writer, 0);
    close(events);
    close(set);
    child = vfork();
    if (child == 0) {
        close(s[0]);
        _exit(0);
    }
    waitpid(child, &status, 0);
    put(s[0], "x");
    take(s[1], 1);
    line("a child's close is its own");
    line("dup2 of no descriptor: %s", error(dup2(1 << 20, s[0])));
    put(s[0], "x");
    take(s[1], 1);
    line("leaves the other");
    line("no bytes: %s", error(read(s[1], 0, 0)));
    struct iovec parts[3] = {{0, 0}, {"yz", 2}, {0, 0}};
    line("empty parts: %ld", (long)writev(s[0], parts, 3));
    take(s[1], 2);
    line("system: %d", WEXITSTATUS(system("exit 7")));
    FILE *pipe = popen("echo out", "r");
    char text[20] = "";
    if (!fgets(text, sizeof text, pipe)) abort();
    line("popen: %.3s %d", text, pclose(pipe));
    drop(s);
}

#include "sharing.c"

int main(int count, char **arguments) {
    if (count < 2 || (must = atoi(arguments[1])) <= 0) {
        fprintf(stderr, "usage: cases MILLISECONDS [refusals | protected], the longest wait for what must come\n");
        return 2;
    }
    if (count == 4) {
        again_cases(atoi(arguments[3]));
        return 0;
    }
    /* PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: systemd's MemoryDenyWriteExecute. */
    if (count == 3 && !strcmp(arguments[2], "protected") && prctl(65, 1, 0, 0, 0)) {
        fprintf(stderr, "no PR_SET_MDWE\n");
        return 3;
    }
    listener = open_listener(&port);
    /* The first use of a listener is what starts the service. */
    struct pollfd first = {listener, POLLIN, 0};
    poll(&first, 1, 0);
    if (count == 3 && !strcmp(arguments[2], "refusals")) {
        refusals();
        return 0;
    }
    epoll_cases();
    reset_cases();
    connect_cases();
    io_cases();
    option_cases();
    poll_cases();
    mixed_cases();
    listener_cases();
    datagram_cases();
    early_cases();
    signal_cases();
    restart_cases();
    thread_cases();
    wait_cases();
    pipe_cases();
    accept_cases();
    fork_cases();
    closing_cases();
    user_cases();
    set_cases();
    kernel_cases();
    copy_cases();
    port_cases();
    interrupted_cases();
    sent_signal_cases();
    privilege_cases();
    become(arguments[1]);
}
