/* Every part of tailwater.h once, by what it promises. Prints "ok". */

#include "check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>
#include <sys/time.h>
#include <tailwater.h>
#include <tailwater.h> /* as well as one time */
#include <unistd.h>

static const uint64_t MS = 1000000;

static void *doubled(void *argument) { return (void *)(2 * (intptr_t)argument); }

static tw_mutex lock = TW_MUTEX_INIT;
static tw_cond changed = TW_COND_INIT;
static tw_rwlock table = TW_RWLOCK_INIT;
static tw_once once = TW_ONCE_INIT;
static int counter, initialised;

static void *count(void *unused) {
    for (int i = 0; i < 1000; i++) {
        tw_mutex_lock(&lock);
        int seen = counter;
        if (i % 100 == 0) tw_yield();
        counter = seen + 1;
        tw_mutex_unlock(&lock);
    }
    tw_mutex_lock(&lock);
    tw_cond_signal(&changed);
    tw_mutex_unlock(&lock);
    return unused;
}

static void threads(void) {
    tw_thread *thread;
    void *result = NULL;
    tw_thread_options options = TW_THREAD_OPTIONS_INIT;
    options.name = "worker";
    options.stack_size = 1 << 20;
    CHECK(tw_thread_is_user() && tw_parallelism() == 2);
    CHECK(tw_thread_spawn(&thread, &options, doubled, (void *)21) == 0);
    CHECK(tw_thread_join(thread, &result) == 0 && result == (void *)42);
    options.stack_size = 1;
    CHECK(tw_thread_spawn(&thread, &options, doubled, NULL) == -EINVAL);
    options.size = 3;
    CHECK(tw_thread_spawn(&thread, &options, doubled, NULL) == -EINVAL);
    CHECK(tw_thread_spawn(&thread, NULL, NULL, NULL) == -EINVAL);
    CHECK(tw_thread_spawn(NULL, NULL, doubled, NULL) == 0);
    CHECK(tw_thread_spawn(&thread, NULL, doubled, NULL) == 0);
    while (!tw_thread_is_finished(thread)) tw_yield();
    tw_thread_detach(thread);
    CHECK(strcmp(tw_version(), "0.1.0") == 0 && strcmp(tw_strerror(-EAGAIN), strerror(EAGAIN)) == 0);
    CHECK(strcmp(tw_strerror(100000), "Unknown error") == 0);
}

static void locks(void) {
    tw_thread *all[4];
    for (int i = 0; i < 4; i++) CHECK(tw_thread_spawn(&all[i], NULL, count, NULL) == 0);
    tw_mutex_lock(&lock);
    while (counter < 4000) tw_cond_wait(&changed, &lock);
    CHECK(tw_mutex_trylock(&lock) == -EBUSY);
    CHECK(tw_cond_wait_for(&changed, &lock, MS) == -ETIMEDOUT || counter == 4000);
    tw_mutex_unlock(&lock);
    for (int i = 0; i < 4; i++) tw_thread_join(all[i], NULL);
    CHECK(tw_mutex_trylock(&lock) == 0);
    tw_mutex_unlock(&lock);
    tw_rwlock_read(&table);
    CHECK(tw_rwlock_tryread(&table) == 0 && tw_rwlock_trywrite(&table) == -EBUSY);
    tw_rwlock_read_unlock(&table);
    tw_rwlock_read_unlock(&table);
    tw_rwlock_write(&table);
    CHECK(tw_rwlock_tryread(&table) == -EBUSY);
    tw_rwlock_write_unlock(&table);
    CHECK(tw_rwlock_trywrite(&table) == 0);
    tw_rwlock_write_unlock(&table);
}

static pthread_mutex_t inheriting;
static int holders;

static void *hold(void *unused) {
    for (int i = 0; i < 20; i++) {
        CHECK(pthread_mutex_lock(&inheriting) == 0);
        CHECK(holders++ == 0);
        tw_yield();
        holders--;
        CHECK(pthread_mutex_unlock(&inheriting) == 0);
    }
    return unused;
}

/* The C library's mutex with priority inheritance, contended by user threads. */
static void priorities(void) {
    pthread_mutexattr_t attributes;
    int protocol = -1;
    tw_thread *all[2];
    pthread_mutexattr_init(&attributes);
    CHECK(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
    CHECK(pthread_mutexattr_getprotocol(&attributes, &protocol) == 0);
    CHECK(protocol == PTHREAD_PRIO_NONE);
    CHECK(pthread_mutexattr_setprotocol(&attributes, 77) == EINVAL);
    CHECK(pthread_mutex_init(&inheriting, &attributes) == 0);
    for (int i = 0; i < 2; i++) CHECK(tw_thread_spawn(&all[i], NULL, hold, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(tw_thread_join(all[i], NULL) == 0);
}

static void initialise(void *argument) { initialised += (int)(intptr_t)argument; }

struct meeting {
    tw_waitgroup group;
    tw_barrier barrier;
    tw_sem sem;
    int leaders;
};

static void *meet(void *argument) {
    struct meeting *meeting = argument;
    if (tw_barrier_wait(&meeting->barrier)) meeting->leaders++;
    tw_sem_release(&meeting->sem, 2);
    CHECK(tw_waitgroup_done(&meeting->group) == 0);
    return NULL;
}

static void meetings(void) {
    tw_once_call(&once, initialise, (void *)1);
    tw_once_call(&once, initialise, (void *)1);
    CHECK(initialised == 1);
    struct meeting meeting = {TW_WAITGROUP_INIT, {{0}}, TW_SEM_INIT, 0};
    tw_barrier_init(&meeting.barrier, 3);
    tw_sem_init(&meeting.sem, 1);
    tw_waitgroup_add(&meeting.group, 3);
    for (int i = 0; i < 3; i++) CHECK(tw_thread_spawn(NULL, NULL, meet, &meeting) == 0);
    tw_waitgroup_wait(&meeting.group);
    CHECK(tw_waitgroup_done(&meeting.group) == -EINVAL);
    CHECK(meeting.leaders == 1);
    tw_sem_acquire(&meeting.sem, 7);
    CHECK(tw_sem_tryacquire(&meeting.sem, 1) == -EAGAIN);
    CHECK(tw_sem_acquire_for(&meeting.sem, 1, MS) == -ETIMEDOUT);
    tw_sem_release(&meeting.sem, 1);
    CHECK(tw_sem_acquire_for(&meeting.sem, 1, TW_FOREVER) == 0);
}

static void *failing(void *argument) {
    CHECK(!tw_thread_is_user());
    errno = ENOTTY;
    return argument;
}

static void no_switch(void *argument) { *(int *)argument = 7; }

static int key_destroyed;
static void destroy_value(void *value) { key_destroyed += (int)(intptr_t)value; }
static tw_key key;

static void *use_key(void *value) {
    CHECK(tw_key_get(key) == NULL && tw_key_set(key, value) == 0);
    tw_yield();
    CHECK(tw_key_get(key) == value);
    return NULL;
}

static void control(void) {
    int value = 0;
    CHECK(tw_blocking(failing, &value) == &value && errno == ENOTTY);
    tw_no_preempt(no_switch, &value);
    tw_poll();
    CHECK(value == 7);
    uint64_t begin = tw_now_ns();
    tw_sleep_ns(2 * MS);
    CHECK(tw_now_ns() - begin >= 2 * MS);
    tw_sleep_until_ns(begin + 3 * MS);
    CHECK(tw_now_ns() >= begin + 3 * MS);
    tw_interval ticks;
    CHECK(tw_interval_init(&ticks, 0) == -EINVAL && tw_interval_init(&ticks, MS) == 0);
    uint64_t first = tw_interval_tick(&ticks);
    CHECK(tw_interval_tick(&ticks) == first + MS && tw_now_ns() >= first + MS);
    CHECK(tw_key_create(&key, destroy_value) == 0);
    tw_thread *thread;
    CHECK(tw_thread_spawn(&thread, NULL, use_key, (void *)5) == 0);
    tw_thread_join(thread, NULL);
    CHECK(key_destroyed == 5 && tw_key_get(key) == NULL);
    CHECK(tw_key_delete(key) == 0 && tw_key_delete(key) == -EINVAL && tw_key_set(key, NULL) == -EINVAL);
    uint32_t cores[4], counts[9] = {1};
    CHECK(tw_cores_held(cores, 4) == 0 && tw_cores_granted() == 0);
    CHECK(tw_cores_request(counts, 9) == -EINVAL && tw_cores_request(NULL, 1) == -EINVAL && tw_cores_request(counts, 1) == 0);
    CHECK(tw_cores_requested() == 1 && tw_cores_request(NULL, 0) == 0);
    tw_counters counters;
    tw_count(&counters);
}

static void *produce(void *channel) {
    for (intptr_t i = 1; i <= 100; i++) CHECK(tw_channel_send(channel, (void *)i, TW_FOREVER) == 0);
    tw_channel_close(channel);
    return NULL;
}

static void read_value(void *value, void *out) { *(int *)out = *(int *)value; }

static void exchange(void) {
    tw_channel *channel = tw_channel_new(2);
    void *message = NULL;
    CHECK(tw_channel_receive(channel, &message, 0) == -EAGAIN);
    CHECK(tw_channel_receive(channel, &message, MS) == -ETIMEDOUT);
    CHECK(tw_channel_send(channel, NULL, 0) == 0 && tw_channel_send(channel, NULL, 0) == 0);
    CHECK(tw_channel_send(channel, NULL, 0) == -EAGAIN && tw_channel_send(channel, NULL, MS) == -ETIMEDOUT);
    CHECK(tw_channel_len(channel) == 2);
    CHECK(tw_channel_receive(channel, &message, 0) == 0 && tw_channel_receive(channel, &message, 0) == 0);
    tw_thread_spawn(NULL, NULL, produce, channel);
    intptr_t sum = 0;
    int status;
    while ((status = tw_channel_receive(channel, &message, TW_FOREVER)) == 0) sum += (intptr_t)message;
    CHECK(status == -EPIPE && sum == 5050 && tw_channel_send(channel, NULL, TW_FOREVER) == -EPIPE);
    tw_channel_free(channel);
    int old = 1, new = 2, seen = 0;
    tw_rcu *rcu = tw_rcu_new(&old);
    tw_rcu_read(rcu, read_value, &seen);
    CHECK(seen == 1 && tw_rcu_replace(rcu, &new) == &old);
    tw_rcu_read(rcu, read_value, &seen);
    CHECK(seen == 2 && tw_rcu_free(rcu) == &new);
}

static struct sockaddr_in loopback = {.sin_family = AF_INET};
#define ADDRESS(address) ((struct sockaddr *)&(address)), sizeof(address)

static void *echo_once(void *listener) {
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    char data[64];
    int fd = tw_accept((int)(intptr_t)listener, (struct sockaddr *)&peer, &len, 0);
    CHECK(fd >= TW_FD_BASE && len == sizeof peer && peer.sin_family == AF_INET);
    ssize_t got;
    while ((got = tw_read(fd, data, sizeof data)) > 0) CHECK(tw_write(fd, data, (size_t)got) == got);
    CHECK(got == 0 && tw_close(fd) == 0);
    return NULL;
}

static int listening(struct sockaddr_in *own) {
    socklen_t len = sizeof *own;
    int fd = tw_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(tw_bind(fd, ADDRESS(loopback)) == 0 && tw_listen(fd, 16) == 0);
    CHECK(tw_getsockname(fd, (struct sockaddr *)own, &len) == 0 && own->sin_port != 0);
    return fd;
}

static void tcp(void) {
    struct sockaddr_in own;
    char data[64] = "";
    int listener = listening(&own), one = 1, value = 0;
    socklen_t len = sizeof value;
    tw_thread *server;
    tw_thread_spawn(&server, NULL, echo_once, (void *)(intptr_t)listener);
    int fd = tw_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(tw_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(tw_read(fd, data, 1) == -1 && errno == ENOTCONN);
    CHECK(tw_connect(fd, ADDRESS(own)) == 0);
    CHECK(tw_connect(fd, ADDRESS(own)) == -1 && errno == EISCONN);
    CHECK(tw_getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value != 0);
    CHECK(tw_getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
    CHECK(tw_setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof one) == -1 && errno == ENOPROTOOPT);
    struct iovec pieces[2] = {{"he", 2}, {"llo", 3}};
    CHECK(tw_writev(fd, pieces, 2) == 5 && tw_send(fd, "!", 1, MSG_NOSIGNAL) == 1);
    CHECK(tw_recv(fd, data, 1, MSG_PEEK) == 1 && data[0] == 'h');
    for (size_t got = 0; got < 6;) got += (size_t)tw_read(fd, data + got, sizeof data - got);
    CHECK(strcmp(data, "hello!") == 0);
    struct timeval soon = {0, 1000};
    CHECK(tw_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    CHECK(tw_read(fd, data, 1) == -1 && errno == EAGAIN);
    CHECK(tw_shutdown(fd, SHUT_WR) == 0 && tw_write(fd, data, 1) == -1 && errno == EPIPE);
    tw_thread_join(server, NULL);
    CHECK(tw_close(fd) == 0 && tw_close(fd) == -1 && errno == EBADF && close(fd) == -1 && errno == EBADF);
    CHECK(tw_close(listener) == 0);
    fd = tw_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(tw_connect(fd, ADDRESS(own)) == -1 && errno == ECONNREFUSED);
    tw_close(fd);
    CHECK(tw_socket(AF_UNIX, SOCK_STREAM, 0) == -1 && errno == EAFNOSUPPORT);
}

static void udp(void) {
    struct sockaddr_in own, from;
    socklen_t len = sizeof own, from_len = sizeof from;
    char data[8];
    int server = tw_socket(AF_INET, SOCK_DGRAM, 0), client = tw_socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(tw_bind(server, ADDRESS(loopback)) == 0);
    CHECK(tw_getsockname(server, (struct sockaddr *)&own, &len) == 0);
    CHECK(tw_sendto(client, "ping", 4, 0, ADDRESS(own)) == 4);
    CHECK(tw_recvfrom(server, data, 8, 0, (struct sockaddr *)&from, &from_len) == 4);
    CHECK(tw_sendto(server, "pong!", 5, 0, ADDRESS(from)) == 5);
    CHECK(tw_connect(client, ADDRESS(own)) == 0 && tw_read(client, data, 8) == 5);
    CHECK(tw_write(client, "x", 1) == 1 && tw_read(server, data, 8) == 1);
    CHECK(tw_set_nonblocking(client, true) == 0);
    CHECK(tw_read(client, data, 8) == -1 && errno == EAGAIN);
    int second = tw_socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(tw_bind(second, ADDRESS(own)) == -1 && errno == EADDRINUSE);
    tw_close(second), tw_close(server), tw_close(client);
}

static void poller(void) {
    struct sockaddr_in own;
    int listener = listening(&own), fd = tw_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    tw_poller *poller = tw_poller_new();
    tw_event events[4], in = {TW_IN, 1}, out = {TW_OUT | TW_ONESHOT, 2};
    CHECK(tw_set_nonblocking(listener, true) == 0 && tw_accept(listener, NULL, NULL, 0) == -1 && errno == EAGAIN);
    CHECK(tw_accept(listener, NULL, NULL, SOCK_NONBLOCK | 1) == -1 && errno == EINVAL);
    CHECK(tw_poller_ctl(poller, TW_CTL_ADD, listener, &in) == 0);
    CHECK(tw_poller_ctl(poller, TW_CTL_ADD, listener, &in) == -EEXIST);
    CHECK(tw_poller_ctl(poller, TW_CTL_ADD, 3, &in) == -EBADF);
    CHECK(tw_poller_wait(poller, events, 4, 0) == 0);
    CHECK(tw_connect(fd, ADDRESS(own)) == -1 && errno == EINPROGRESS);
    CHECK(tw_poller_ctl(poller, TW_CTL_ADD, fd, &out) == 0);
    bool accepted = false, connected = false;
    int peer = -1;
    while (!accepted || !connected) {
        int count = tw_poller_wait(poller, events, 4, TW_FOREVER);
        for (int i = 0; i < count; i++) {
            if (events[i].data == 2) connected = (events[i].events & TW_OUT) != 0;
            else if (!accepted) accepted = (peer = tw_accept(listener, NULL, NULL, 0)) >= 0;
        }
    }
    CHECK(tw_poller_ctl(poller, TW_CTL_DEL, listener, NULL) == 0);
    tw_poller_set_timer(poller, 9, MS);
    CHECK(tw_poller_wait(poller, events, 4, TW_FOREVER) == 1 && events[0].events == TW_TIMER && events[0].data == 9);
    CHECK(tw_poller_clear_timer(poller, 9) == -ENOENT);
    tw_poller_wake(poller);
    CHECK(tw_poller_wait(poller, events, 4, TW_FOREVER) == 0);
    out = (tw_event){TW_IN | TW_RDHUP, 3};
    CHECK(tw_poller_ctl(poller, TW_CTL_MOD, fd, &out) == 0 && tw_close(peer) == 0);
    CHECK(tw_poller_wait(poller, events, 4, TW_FOREVER) == 1 && events[0].events & TW_RDHUP);
    tw_close(fd), tw_close(listener);
    tw_poller_free(poller);
}

static size_t classify(void *unused, const void *request, size_t len) {
    (void)unused;
    return len > 0 && *(const char *)request == 'S';
}

static void handle(void *calls, const void *request, size_t len, tw_reply *reply) {
    __atomic_fetch_add((int *)calls, 1, __ATOMIC_RELAXED);
    tw_reply_write(reply, request, len);
    tw_reply_write(reply, "\n", 1);
}

static ssize_t one_byte(void *unused, const void *bytes, size_t len, size_t seen) {
    (void)unused, (void)seen;
    return len > 0 && *(const char *)bytes == '!' ? -1 : 1;
}

static void dispatch(void) {
    static int calls;
    const tw_class classes[] = {{"GET", 50000}, {"SCAN", 5 * 1000000}};
    tw_service service = TW_SERVICE_INIT;
    struct sockaddr_in own;
    socklen_t len = sizeof own;
    char data[4];
    service.classify = classify, service.handle = handle, service.frame = one_byte, service.argument = &calls;
    service.classes = classes, service.n_classes = 2;
    int fd = tw_socket(AF_INET, SOCK_DGRAM, 0), client = tw_socket(AF_INET, SOCK_DGRAM, 0);
    tw_server *server;
    CHECK(tw_bind(fd, ADDRESS(loopback)) == 0 && tw_getsockname(fd, (struct sockaddr *)&own, &len) == 0);
    service.policy = "no such policy";
    CHECK(tw_serve(fd, &service, &server) == -EINVAL);
    service.policy = "mq:5us";
    CHECK(tw_serve(fd, &service, &server) == 0 && tw_close(fd) == 0);
    CHECK(tw_connect(client, ADDRESS(own)) == 0 && tw_write(client, "S", 1) == 1 && tw_read(client, data, 4) == 2);
    CHECK(data[0] == 'S' && data[1] == '\n' && calls == 1);
    tw_class_stats stats[2];
    CHECK(tw_server_stats(server, stats, 2) == 2 && stats[0].accepted == 0 && stats[1].accepted == 1);
    tw_close(client);
    int listener = listening(&own);
    CHECK(tw_serve(listener, &service, NULL) == 0);
    client = tw_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(tw_connect(client, ADDRESS(own)) == 0 && tw_write(client, "G", 1) == 1);
    for (size_t got = 0; got < 2;) got += (size_t)tw_read(client, data + got, 2 - got);
    CHECK(data[0] == 'G' && tw_write(client, "!", 1) == 1 && tw_read(client, data, 4) == 0);
    tw_close(client);
}

static int on_incoming(void *argument, tw_loop *events, const tw_condition *it) {
    if (it->kind != TW_INCOMING) return 0;
    CHECK(it->token == 1 && it->address_len == sizeof(struct sockaddr_in) && it->address.ss_family == AF_INET);
    CHECK(tw_loop_consume(events, it->handle, 1) == -EINVAL && tw_loop_accept(events, it->handle, 3) == 0);
    CHECK(tw_loop_accept(events, it->handle, 3) == -EISCONN);
    *(tw_handle *)argument = it->handle;
    return 42;
}

static void *wake(void *events) {
    tw_loop_wake(events);
    return NULL;
}

static bool has_room;

/* Polls until there is a condition of this kind with this token; notes that there was room. */
static tw_condition expect(tw_loop *events, uint32_t kind, uint64_t token) {
    tw_condition it;
    do {
        CHECK(tw_loop_poll(events, &it, 1, TW_FOREVER) == 1);
        if (it.kind == TW_WINDOW) has_room = it.count > 0;
    } while (it.kind != kind || it.token != token);
    return it;
}

static int bound_udp(struct sockaddr_in *own) {
    socklen_t len = sizeof *own;
    int fd = tw_socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(tw_bind(fd, ADDRESS(loopback)) == 0 && tw_getsockname(fd, (struct sockaddr *)own, &len) == 0);
    return fd;
}

static void event_loop(void) {
    static char large[100000];
    tw_condition it;
    tw_handle client, server, datagrams;
    tw_loop *events = tw_loop_new();
    tw_shared *shared = tw_shared_new(large, sizeof large);
    struct sockaddr_in own;
    const void *data;
    int udp = bound_udp(&own), listener = listening(&own), fresh = tw_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(tw_loop_poll(events, &it, 1, 0) == 0);
    CHECK(tw_loop_poll(events, &it, 0, 0) == -EINVAL && tw_loop_run(events, NULL, NULL) == -EINVAL);
    CHECK(tw_loop_add(events, 3, 1, NULL) == -EBADF && tw_loop_add(events, fresh, 1, NULL) == -ENOTCONN);
    CHECK(tw_loop_add(events, listener, 1, NULL) == 0);
    CHECK(tw_loop_connect(events, (struct sockaddr *)&own, 1, 2, NULL) == -EINVAL);
    CHECK(tw_loop_connect(events, ADDRESS(own), 2, &client) == 0);
    CHECK(tw_loop_run(events, on_incoming, &server) == 42);
    struct iovec pieces[2] = {{"ab", 2}, {"c", 1}};
    CHECK(tw_loop_sendv(events, client, pieces, 2) == 3 && tw_loop_sendv(events, client, pieces, -1) == -EINVAL);
    it = expect(events, TW_RECEIVED, 3);
    CHECK(it.count == 3 && it.len == 3 && memcmp(it.data, "abc", 3) == 0);
    CHECK(tw_loop_consume(events, it.handle, 1) == 0 && tw_loop_data(events, server, &data) == 2);
    CHECK(memcmp(data, "bc", 2) == 0 && tw_loop_is_eof(events, server) == 0);
    CHECK(tw_loop_consume(events, server, 2) == 0 && tw_loop_sendto(events, client, "x", 1, NULL, 0) == -EOPNOTSUPP);

    /* What the peer has acknowledged is counted on demand, while every send has room. */
    CHECK(tw_loop_report_acknowledged(events, client, true) == 0);
    size_t acknowledged = 0;
    while (acknowledged < 3) acknowledged += expect(events, TW_WINDOW, 2).acknowledged;
    CHECK(acknowledged == 3 && tw_loop_report_acknowledged(events, client, false) == 0);
    has_room = false;

    /* More than a send buffer has room for, from shared bytes: TW_WINDOW reports room. */
    size_t sent = 0, got = 0;
    ssize_t taken;
    while ((taken = tw_loop_send_shared(events, client, shared, 0)) == sizeof large) sent += (size_t)taken;
    CHECK(taken >= 0 && tw_loop_send_shared(events, client, shared, sizeof large + 1) == -EINVAL);
    sent += (size_t)taken;
    tw_shared_free(shared);
    while (got < sent) {
        it = expect(events, TW_RECEIVED, 3);
        got += it.count;
        CHECK(tw_loop_consume(events, server, it.len) == 0);
    }
    if (!has_room) expect(events, TW_WINDOW, 2);
    CHECK(has_room && tw_loop_shutdown(events, client) == 0);
    CHECK(tw_loop_send(events, client, "x", 1) == -EPIPE);
    expect(events, TW_EOF, 3);
    CHECK(tw_loop_is_eof(events, server) == 1 && tw_loop_shutdown(events, server) == 0);
    CHECK(expect(events, TW_CLOSED, 2).error == 0);
    tw_loop_close(events, server);
    CHECK(tw_loop_close(events, server) == -EBADF && tw_loop_data(events, server, &data) == -EBADF);

    CHECK(tw_loop_add(events, udp, 4, &datagrams) == 0 && tw_close(udp) == 0);
    udp = bound_udp(&own);
    CHECK(tw_loop_add(events, udp, 5, NULL) == 0);
    CHECK(tw_loop_sendto(events, datagrams, "datagram", 8, ADDRESS(own)) == 0);
    it = expect(events, TW_DATAGRAM, 5);
    CHECK(it.len == 8 && memcmp(it.data, "datagram", 8) == 0 && it.address.ss_family == AF_INET);
    CHECK(tw_loop_data(events, datagrams, &data) == -EOPNOTSUPP);
    CHECK(tw_loop_report_acknowledged(events, datagrams, true) == -EOPNOTSUPP);
    tw_thread_spawn(NULL, NULL, wake, events);
    expect(events, TW_WOKEN, 0);
    /* A connection that is refused. */
    own.sin_port = htons(1);
    CHECK(tw_loop_connect(events, ADDRESS(own), 6, NULL) == 0);
    CHECK(expect(events, TW_CLOSED, 6).error == ECONNREFUSED);
    tw_loop_free(events);
    CHECK(tw_close(listener) == 0 && tw_close(udp) == 0 && tw_close(fresh) == 0);
}

static void *send_later(void *channel) {
    tw_yield();
    CHECK(tw_channel_send(channel, "later", TW_FOREVER) == 0);
    return NULL;
}

static void selection(void) {
    tw_channel *one = tw_channel_new(1), *other = tw_channel_new(0);
    tw_operation both[2] = {{.channel = one, .kind = TW_RECEIVE}, {.channel = other, .kind = TW_RECEIVE}};
    CHECK(tw_select(both, 2, 0) == -EAGAIN && tw_select(both, 2, MS) == -ETIMEDOUT);
    CHECK(tw_select(both, 0, 0) == -EINVAL && tw_select(both, TW_SELECT_MAX + 1, 0) == -EINVAL);
    tw_thread_spawn(NULL, NULL, send_later, other);
    CHECK(tw_select(both, 2, TW_FOREVER) == 1 && both[1].status == 0 && strcmp(both[1].message, "later") == 0);
    both[0].kind = TW_SEND, both[0].message = "sent";
    CHECK(tw_select(both, 2, TW_FOREVER) == 0 && both[0].status == 0 && tw_channel_len(one) == 1);
    CHECK(tw_select(both, 2, 0) == -EAGAIN);
    tw_channel_close(one);
    CHECK(tw_select(both, 2, TW_FOREVER) == 0 && both[0].status == -EPIPE);
    both[0].kind = TW_RECEIVE;
    CHECK(tw_select(both, 2, TW_FOREVER) == 0 && both[0].status == 0 && strcmp(both[0].message, "sent") == 0);
    CHECK(tw_select(both, 2, TW_FOREVER) == 0 && both[0].status == -EPIPE);
    both[0].kind = 7;
    CHECK(tw_select(both, 2, 0) == -EINVAL);
    tw_channel_free(one);
    tw_channel_free(other);
}

static void program(void *argument) {
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    threads();
    locks();
    priorities();
    meetings();
    control();
    exchange();
    tcp();
    udp();
    poller();
    dispatch();
    event_loop();
    selection();
    *(bool *)argument = true;
}

int main(void) {
    char reason[256] = "";
    bool done = false;
    tw_config config = TW_CONFIG_INIT;
    config.error = reason, config.error_size = sizeof reason;
    CHECK(!tw_thread_is_user() && tw_thread_spawn(NULL, NULL, doubled, NULL) == -ENXIO);
    CHECK(tw_socket(AF_INET, SOCK_DGRAM, 0) == -1 && errno == ENXIO);
    tw_loop *events = tw_loop_new();
    CHECK(tw_loop_connect(events, ADDRESS(loopback), 1, NULL) == -ENXIO);
    tw_loop_free(events);
    config.kthreads = 100000;
    CHECK(tw_run(&config, program, &done) == -EINVAL && strstr(reason, "kthreads"));
    config.kthreads = 2, config.ip = "not an address";
    CHECK(tw_run(&config, program, &done) == -EINVAL && strstr(reason, "not an address"));
    config.ip = NULL, config.size = 3;
    CHECK(tw_run(&config, program, &done) == -EINVAL);
    struct { tw_config known; long later; } larger = {config, 1};
    larger.known.size = sizeof larger;
    CHECK(tw_run(&larger.known, program, &done) == -E2BIG && strstr(reason, "one version"));
    config.size = sizeof config;
    CHECK(tw_run(&config, program, &done) == 0 && done);
    CHECK(tw_run(&config, program, &done) == -EBUSY && strstr(reason, "already"));
    puts("ok");
}
