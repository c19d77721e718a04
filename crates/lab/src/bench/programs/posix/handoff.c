/* Hand-offs between threads of the C library: `handoff TURNS`. Four threads take turns by a mutex
 * and a condition variable each. Each calls for an epoll set with a served socket first, so that
 * under `tailwater run --posix` it runs on a lent core. Prints nanoseconds a hand-off. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <time.h>

enum { THREADS = 4 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_of[THREADS];
static pthread_barrier_t start;
static long turn, turns;
static int set;

static void *take_turns(void *argument) {
    long me = (long)argument;
    struct epoll_event event;
    epoll_wait(set, &event, 1, 0);
    pthread_barrier_wait(&start);
    pthread_mutex_lock(&mutex);
    while (turn < turns) {
        if (turn % THREADS == me) {
            turn++;
            pthread_cond_signal(&turn_of[turn % THREADS]);
        } else {
            pthread_cond_wait(&turn_of[me], &mutex);
        }
    }
    for (int i = 0; i < THREADS; i++) pthread_cond_signal(&turn_of[i]);
    pthread_mutex_unlock(&mutex);
    return 0;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int count, char **arguments) {
    if (count != 2 || (turns = atol(arguments[1])) <= 0) {
        fprintf(stderr, "usage: handoff TURNS\n");
        return 2;
    }
    struct sockaddr_in any = {.sin_family = AF_INET};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct epoll_event event = {.events = EPOLLIN};
    set = epoll_create1(0);
    if (bind(listener, (void *)&any, sizeof any) || listen(listener, 1) || set < 0 ||
        epoll_ctl(set, EPOLL_CTL_ADD, listener, &event)) {
        perror("handoff");
        return 1;
    }
    pthread_t threads[THREADS];
    pthread_barrier_init(&start, 0, THREADS + 1);
    for (long i = 0; i < THREADS; i++) {
        pthread_cond_init(&turn_of[i], 0);
        pthread_create(&threads[i], 0, take_turns, (void *)i);
    }
    double began = now();
    pthread_barrier_wait(&start);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    printf("%.1f\n", (now() - began) / turns);
    return 0;
}
