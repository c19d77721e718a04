/* The rows of beside.rs in C: prints a name and nanoseconds for each. */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <tailwater.h>

double swaption_price(uint64_t seed, long paths);
double swaption_price_polled(uint64_t seed, long paths);

enum { POLLS = 10000000, PATHS = 10000, SPAWNS = 200000, YIELDS = 500000, LOCKS = 200000, TRIPS = 50000, BYTES = 64 };

static void report(const char *name, uint64_t begin, uint64_t count) {
    printf("%s %.1f\n", name, (double)(tw_now_ns() - begin) / (double)count);
}

static void *nothing(void *argument) { return argument; }

static void spawns(void) {
    uint64_t begin = tw_now_ns();
    for (int i = 0; i < SPAWNS; i++) {
        tw_thread *thread;
        if (tw_thread_spawn(&thread, NULL, nothing, NULL) != 0) abort();
        tw_thread_join(thread, NULL);
    }
    report("spawn+join", begin, SPAWNS);
}

static void polls(void) {
    uint64_t begin = tw_now_ns();
    for (int i = 0; i < POLLS; i++) tw_poll();
    report("poll", begin, POLLS);
}

static void kernel(const char *name, double (*price)(uint64_t, long)) {
    uint64_t begin = tw_now_ns();
    if (price(88172645463325252u, PATHS) <= 0) abort();
    report(name, begin, PATHS);
}

static void *yields(void *argument) {
    for (int i = 0; i < YIELDS; i++) tw_yield();
    return argument;
}

static tw_mutex lock = TW_MUTEX_INIT;

/* With the yield, each locking finds the mutex held, and each unlocking hands it over. */
static void *locks(void *argument) {
    for (int i = 0; i < LOCKS; i++) {
        tw_mutex_lock(&lock);
        tw_yield();
        tw_mutex_unlock(&lock);
    }
    return argument;
}

static void two(const char *name, void *(*function)(void *), uint64_t each) {
    tw_thread *threads[2];
    uint64_t begin = tw_now_ns();
    for (int i = 0; i < 2; i++)
        if (tw_thread_spawn(&threads[i], NULL, function, NULL) != 0) abort();
    for (int i = 0; i < 2; i++) tw_thread_join(threads[i], NULL);
    report(name, begin, 2 * each);
}

static void *echo(void *argument) {
    int fd = (int)(intptr_t)argument;
    char data[BYTES];
    for (;;) {
        struct sockaddr_storage from;
        socklen_t len = sizeof from;
        ssize_t got = tw_recvfrom(fd, data, sizeof data, 0, (struct sockaddr *)&from, &len);
        if (got > 0) tw_sendto(fd, data, (size_t)got, 0, (struct sockaddr *)&from, len);
    }
    return NULL;
}

static void *echo_stream(void *argument) {
    int fd = tw_accept((int)(intptr_t)argument, NULL, NULL, 0), one = 1;
    char data[BYTES];
    ssize_t got;
    tw_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while ((got = tw_read(fd, data, sizeof data)) > 0) tw_write(fd, data, (size_t)got);
    return NULL;
}

static void trips(const char *name, int fd) {
    char data[BYTES] = "";
    uint64_t begin = tw_now_ns();
    for (int i = 0; i < TRIPS; i++) {
        if (tw_write(fd, data, sizeof data) != BYTES) abort();
        for (size_t got = 0; got < BYTES;) got += (size_t)tw_read(fd, data + got, sizeof data - got);
    }
    report(name, begin, TRIPS);
}

static int program(int argc, char **argv) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t len = sizeof own;
    int one = 1;
    (void)argc, (void)argv;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    polls();
    kernel("kernel", swaption_price);
    kernel("kernel,polled", swaption_price_polled);
    spawns();
    two("yield", yields, YIELDS);
    two("mutex", locks, LOCKS);
    for (int stream = 0; stream < 2; stream++) {
        int type = stream ? SOCK_STREAM : SOCK_DGRAM;
        int server = tw_socket(AF_INET, type, 0), client = tw_socket(AF_INET, type, 0);
        own.sin_port = 0;
        if (tw_bind(server, (struct sockaddr *)&own, sizeof own) || (stream && tw_listen(server, 8))) abort();
        tw_getsockname(server, (struct sockaddr *)&own, &len);
        tw_thread_spawn(NULL, NULL, stream ? echo_stream : echo, (void *)(intptr_t)server);
        if (stream) tw_setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (tw_connect(client, (struct sockaddr *)&own, len)) abort();
        trips(stream ? "tcp" : "udp", client);
    }
    return 0;
}

int main(int argc, char **argv) { return tw_main(argc, argv, program); }
