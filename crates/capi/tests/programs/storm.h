/* Preempt signals to all kthreads of the process, at a rate at which no program gets them, for
 * tests of what they interrupt: a thread that runs at two signals in a row while others wait is
 * preempted. Among them are signals that the program handles, if storm_signal is set. */

#ifndef STORM_H
#define STORM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STORM_US = 25, STORM_THREADS = 64, STORM_OWN = 4 };

/* Sent in each STORM_OWN-th round; 0: none. Set before storm_start. */
static int storm_signal;

static int storm_kthreads(pid_t *tids) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks)) && count < STORM_THREADS;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (file) {
            if (fgets(name, sizeof name, file) && strncmp(name, "tailwater/", 10) == 0 && name[10] >= '0' &&
                name[10] <= '9')
                tids[count++] = (pid_t)atoi(task->d_name);
            fclose(file);
        }
    }
    if (tasks) closedir(tasks);
    return count;
}

static void *storm_run(void *unused) {
    pid_t tids[STORM_THREADS];
    (void)unused;
    for (;;) {
        int count = storm_kthreads(tids);
        for (int round = 0; round < 1000; round++) {
            for (int i = 0; i < count; i++) {
                syscall(SYS_tgkill, getpid(), tids[i], SIGURG);
                if (storm_signal && round % STORM_OWN == 0) syscall(SYS_tgkill, getpid(), tids[i], storm_signal);
            }
            struct timespec pause = {0, STORM_US * 1000};
            nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

/* Starts a storm that lasts as long as the process. From an ordinary thread. */
static void storm_start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, storm_run, NULL) != 0) abort();
}

#endif
