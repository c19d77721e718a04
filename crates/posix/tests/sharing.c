/* A part of cases.c, which has what it uses: what several share. A listener by sets, a set by
 * threads, a port by listeners, a descriptor by its copies and by a program after exec; and what the
 * library refuses. */

static void *wait_for_one(void *argument) {
    struct epoll_event e = {0};
    if (epoll_wait(*(int *)argument, &e, 1, must) != 1) abort();
    return (void *)(intptr_t)e.data.u64;
}

static void *wait_in_vain(void *argument) {
    struct epoll_event e;
    return (void *)(intptr_t)epoll_wait(*(int *)argument, &e, 1, 4 * MUST_NOT);
}

static void *read_one(void *argument) {
    char one;
    return (void *)(intptr_t)read(*(int *)argument, &one, 1);
}

static void set_cases(void) {
    int sets[2] = {epoll_create1(0), epoll_create1(0)}, at, fd = open_listener(&at), value = 1;
    struct sockaddr_in a = local(at);
    struct epoll_event e = {EPOLLIN | EPOLLEXCLUSIVE, {.u64 = 1}};
    ioctl(fd, FIONBIO, &value);
    for (int i = 0; i < 2; i++) add(sets[i], fd, EPOLLIN | EPOLLEXCLUSIVE, i);
    line("MOD of an exclusive one: %s", error(epoll_ctl(sets[0], EPOLL_CTL_MOD, fd, &e)));
    int client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, (void *)&a, sizeof a)) abort();
    report("exclusive, the first set", sets[0], must);
    report("exclusive, the second set", sets[1], must);
    close(accept(fd, 0, 0));
    report("exclusive, accepted", sets[0], MUST_NOT);
    close(client);
    close(fd);

    int s[2][2];
    pthread_t threads[2];
    void *result;
    long sum = 0;
    for (int i = 0; i < 2; i++) {
        pair(s[i]);
        add(sets[0], s[i][1], EPOLLIN | EPOLLONESHOT, i + 1);
        pthread_create(&threads[i], 0, wait_for_one, &sets[0]);
    }
    for (int i = 0; i < 2; i++) put(s[i][0], "x");
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], &result);
        sum += (intptr_t)result;
    }
    line("two threads wait for a set, each has an event of its own: %d", sum == 3);
    drop(s[1]);

    add(sets[1], s[0][0], EPOLLIN, 1);
    pthread_create(threads, 0, wait_in_vain, &sets[1]);
    usleep(MUST_NOT * 1000);
    int closed = s[0][0];
    close(closed);
    pthread_join(threads[0], &result);
    line("closed while a thread waits for the set: %d", (int)(intptr_t)result);
    drop((int[2]){s[0][1], sets[0]});
    close(sets[1]);

    /* On a busy machine the thread may not read yet: one of twenty has to. */
    result = (void *)-1;
    for (int tries = 0; tries < 20 && (intptr_t)result < 0; tries++) {
        pair(s[0]);
        closed = s[0][1];
        pthread_create(threads, 0, read_one, &closed);
        usleep(MUST_NOT * 1000);
        close(closed);
        put(s[0][0], "x");
        pthread_join(threads[0], &result);
        close(s[0][0]);
    }
    line("closed while a thread reads it: %d", (int)(intptr_t)result);
}

static void kernel_cases(void) {
    int s[2], set = epoll_create1(0), value;
    uint64_t count = 0;
    struct signalfd_siginfo info = {0};
    struct itimerspec soon = {.it_value = {0, 10000000}};
    sigset_t user, before;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_BLOCK, &user, &before);
    pair(s);
    add(set, s[1], EPOLLIN, 1);
    int clock = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), signals = signalfd(-1, &user, SFD_NONBLOCK);
    add(set, clock, EPOLLIN, 2);
    add(set, signals, EPOLLIN, 3);
    report("no signal, no time", set, MUST_NOT);
    timerfd_settime(clock, 0, &soon, 0);
    report("timerfd", set, must);
    value = read(clock, &count, sizeof count);
    line("read: %d %d", value, (int)count);
    kill(getpid(), SIGUSR1);
    report("signalfd", set, must);
    value = read(signals, &info, sizeof info);
    line("read: %d %d", value == sizeof info, info.ssi_signo == SIGUSR1);
    put(s[0], "x");
    report("and the socket", set, must);
    sigprocmask(SIG_SETMASK, &before, 0);
    drop(s);
    drop((int[2]){clock, signals});
    close(set);
}

static void copy_cases(void) {
    int s[2];
    char one;
    pair(s);
    int low = fcntl(s[0], F_DUPFD, 90), closing = fcntl(s[0], F_DUPFD_CLOEXEC, 90), third = dup3(s[0], 99, O_CLOEXEC);
    line("F_DUPFD: %d %d, dup3: %d", low, closing, third);
    line("CLOEXEC: %d %d %d", fcntl(low, F_GETFD), fcntl(closing, F_GETFD), fcntl(third, F_GETFD));
    line("dup3 to itself: %s", error(dup3(s[0], s[0], 0)));
    line("F_DUPFD of none: %s", error(fcntl(1000, F_DUPFD, 0)));
    close(s[0]);
    put(low, "a");
    put(closing, "b");
    put(third, "c");
    take(s[1], 3);
    drop((int[2]){low, closing});
    line("not the last copy: %s", error(recv(s[1], &one, 1, MSG_DONTWAIT)));
    close(third);
    line("the last copy: %d", (int)read(s[1], &one, 1));
    close(s[1]);
}

/* Connects to a port over IPv6 or IPv4; returns the error. */
static const char *reach(int family, int at) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(at), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in four = local(at);
    int fd = socket(family, SOCK_STREAM, 0);
    long result = family == AF_INET ? connect(fd, (void *)&four, sizeof four) : connect(fd, (void *)&six, sizeof six);
    const char *text = error(result);
    close(fd);
    return text;
}

static void port_cases(void) {
    enum { CLIENTS = 8 };
    int fds[2], clients[CLIENTS], one = 1, accepted = 0;
    struct sockaddr_in a = local(0);
    socklen_t len = sizeof a;
    for (int i = 0; i < 2; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        setsockopt(fds[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
        line("REUSEPORT: %s", error(bind(fds[i], (void *)&a, sizeof a)));
        line("listen: %s", error(listen(fds[i], CLIENTS)));
        getsockname(fds[i], (void *)&a, &len);
    }
    struct pollfd both[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
    poll(both, 2, 0);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(clients[i], (void *)&a, sizeof a)) abort();
    }
    while (accepted < CLIENTS && poll(both, 2, must) > 0)
        for (int i = 0; i < 2; i++)
            for (int fd; (fd = accept(fds[i], 0, 0)) >= 0; accepted++) close(fd);
    line("accepted by two listeners of a port: %d", accepted);
    for (int i = 0; i < CLIENTS; i++) close(clients[i]);
    drop(fds);
    for (int only = 0; only < 2; only++) {
        struct sockaddr_in6 all = {.sin6_family = AF_INET6};
        int value = -1, fd = socket(AF_INET6, SOCK_STREAM, 0);
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
        socklen_t size = sizeof value;
        getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &value, &size);
        size = sizeof all;
        if (fd < 0 || bind(fd, (void *)&all, sizeof all) || listen(fd, 16) || getsockname(fd, (void *)&all, &size)) {
            line("no IPv6 here: %s", error(-1));
            close(fd);
            break;
        }
        poll(&(struct pollfd){fd, POLLIN, 0}, 1, 0);
        line("V6ONLY %d: IPv6 %s", value, reach(AF_INET6, ntohs(all.sin6_port)));
        line("V6ONLY %d: IPv4 %s", value, reach(AF_INET, ntohs(all.sin6_port)));
        close(fd);
    }
    int s[2];
    pair(s);
    put(s[0], "x");
    take(s[1], 1);
    struct tcp_info info = {0};
    len = sizeof info;
    line("TCP_INFO: %s", error(getsockopt(s[0], IPPROTO_TCP, TCP_INFO, &info, &len)));
    line("TCP_INFO: rtt %d, window %d, segment %d, time-out %d", info.tcpi_rtt > 0, info.tcpi_snd_cwnd > 0,
         info.tcpi_snd_mss > 0, info.tcpi_rto > 0);
    drop(s);
}

/* Each wait ends by the handler. */
static void interrupted_cases(void) {
    static char data[1 << 20];
    int s[2];
    long n;
    sem_t never;
    struct timespec until;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, 0);
    pair(s);
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(s[1], &reads);
    every(30);
    line("a handler ends select: %s", error(select(s[1] + 1, &reads, 0, 0, 0)));
    while ((n = send(s[0], data, sizeof data, 0)) > 0) {}
    line("a handler ends send: %s", error(n));
    sem_init(&never, 0, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += must / 1000;
    line("a handler ends sem_timedwait: %s", error(sem_timedwait(&never, &until)));
    every(0);
    drop(s);
}

/* A child that sends a signal when it is told to. 1: it is to; 2: it has. */
static volatile int *turn;

static pid_t start_sender(void) {
    pid_t parent = getpid();
    turn = mmap(0, sizeof *turn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (; getppid() == parent; usleep(100))
        if (*turn == 1) {
            kill(parent, SIGALRM);
            *turn = 2;
        }
    _exit(0);
}

/* Has the child send a signal while this thread is on a lent core. */
static void have_sent(const int *s) {
    signals = 0;
    put(s[0], "x");
    take(s[1], 1);
    *turn = 1;
    while (*turn != 2) {}
    /* Linux runs the handler at the end of a system call. */
    getppid();
}

static void wait_somehow(int how, int fd, int set) {
    struct pollfd one = {fd, POLLIN, 0};
    struct epoll_event event;
    sem_t shared;
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(fd, &reads);
    sem_init(&shared, 1, 0);
    if (how == 0) poll(&one, 1, -1);
    if (how == 1) ppoll(&one, 1, 0, 0);
    if (how == 2) select(fd + 1, &reads, 0, 0, 0);
    if (how == 3) epoll_wait(set, &event, 1, -1);
    if (how == 4) read(fd, &event, 1);
    if (how == 5) pause();
    if (how == 6) sleep(1000);
    if (how == 7) waitpid(-1, 0, 0);
    if (how == 8) sem_wait(&shared);
}

/* Programs look at a flag before they wait, which a handler sets. A handler that has not run then ends
 * the wait, though its signal came before. */
static void early_signal_cases(const int *s, int fd, int set) {
    static const char *const names[] = {"poll", "ppoll",  "select",  "epoll_wait",        "read",
                                        "pause", "sleep", "waitpid", "sem_wait, shared"};
    for (int how = 0; how < 9; how++) {
        have_sent(s);
        if (!signals) wait_somehow(how, fd, set);
        line("a signal before %s, handlers: %d", names[how], (int)signals);
    }
}

/* Calls that wait for `fd`, no longer than `ms`: result, or the error's number, negative. One that
 * fails leaves its sets. */
static long look_somehow(int how, int fd, int set, int ms) {
    struct pollfd one = {fd, POLLIN, 0};
    struct epoll_event event;
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    sigset_t none;
    fd_set reads;
    long result = 0;
    FD_ZERO(&reads);
    FD_SET(fd, &reads);
    sigemptyset(&none);
    if (how == 0) result = poll(&one, 1, ms);
    if (how == 1) result = ppoll(&one, 1, &time, 0);
    if (how == 2) result = ppoll(&one, 1, &time, &none);
    if (how == 3) result = pselect(fd + 1, &reads, 0, 0, &time, 0);
    if (how == 4) result = pselect(fd + 1, &reads, 0, 0, &time, &none);
    if (how == 5) result = epoll_wait(set, &event, 1, ms);
    if (how == 6) result = epoll_pwait(set, &event, 1, ms, &none);
    if ((how == 3 || how == 4) && result < 0 && !FD_ISSET(fd, &reads)) abort();
    return result < 0 ? -errno : result;
}

/* Such a signal ends nothing but a wait: not a call that has something to return, nor one that is not
 * to wait. A descriptor of Linux alone, and a served one. */
static void ready_cases(const int *s, int pipe_in, int pipe_out) {
    int served[2];
    pair(served);
    for (int kind = 0; kind < 2; kind++) {
        int in = kind ? served[1] : pipe_in, out = kind ? served[0] : pipe_out, set = epoll_create1(0);
        add(set, in, EPOLLIN, 1);
        for (int has = 0; has < 2; has++) {
            if (has) put(out, "y");
            for (int how = 0; how < 7; how++) {
                have_sent(s);
                long found = look_somehow(how, in, set, has ? must : 0);
                /* The handler has run then. */
                sigprocmask(SIG_BLOCK, 0, 0);
                line("a signal before look %d of %s, %s: %d %d", how, kind ? "a socket" : "a pipe",
                     has ? "data" : "no time", (int)found, (int)signals);
            }
        }
        have_sent(s);
        take(in, 1);
        sigprocmask(SIG_BLOCK, 0, 0);
        close(set);
    }
    drop(served);
}

/* The same of other calls, which would wait otherwise. */
static void progress_cases(const int *s) {
    uint64_t one = 1;
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "\0tailwater-cases-"};
    sigset_t user, before;
    siginfo_t info;
    int event = eventfd(0, 0), unix_listener = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "tailwater-cases-%d", getpid());
    if (bind(unix_listener, (void *)&a, sizeof a) || listen(unix_listener, 1)) abort();
    have_sent(s);
    line("a signal before write: %d", (int)write(event, &one, sizeof one));
    have_sent(s);
    line("a signal before read: %d", (int)read(event, &one, sizeof one));
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    have_sent(s);
    line("a signal before connect: %s", error(connect(client, (void *)&a, sizeof a)));
    have_sent(s);
    int accepted = accept(unix_listener, 0, 0);
    line("a signal before accept: %d", accepted >= 0);
    drop((int[2]){client, accepted});
    drop((int[2]){event, unix_listener});
    for (int how = 0; how < 2; how++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        waitid(P_PID, child, &info, WEXITED | WNOWAIT);
        have_sent(s);
        if (how == 0) line("a signal before waitpid: %d", waitpid(child, 0, 0) == child);
        if (how == 1) line("a signal before waitid: %d", waitid(P_PID, child, &info, WEXITED) == 0 && info.si_pid == child);
    }
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_BLOCK, &user, &before);
    kill(getpid(), SIGUSR1);
    have_sent(s);
    line("a signal before sigwaitinfo: %d", sigwaitinfo(&user, &info) == SIGUSR1);
    have_sent(s);
    struct timespec none = {0, 0};
    line("a signal before sigtimedwait, no time: %s", error(sigtimedwait(&user, &info, &none)));
    sigprocmask(SIG_SETMASK, &before, 0);
}

/* Computes for a time in which the library notices, as a rule, that a handler has run. */
static void compute(long milliseconds) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < milliseconds);
}

/* A handler that has run while its thread computed ends no later wait. The thread that notices it may
 * be without a core for longer than the computation: one wait of twenty has to last. */
static void late_wait_cases(const int *s, int fd) {
    struct timespec until;
    sem_t never;
    sem_init(&never, 0, 0);
    for (int how = 0; how < 2; how++) {
        int result = EINTR;
        for (int tries = 0; tries < 20 && result == EINTR; tries++) {
            have_sent(s);
            while (!signals) {}
            compute(4 * MUST_NOT);
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += (until.tv_nsec + MUST_NOT * 1000000) / 1000000000;
            until.tv_nsec = (until.tv_nsec + MUST_NOT * 1000000) % 1000000000;
            result = 0;
            if (how == 0 && poll(&(struct pollfd){fd, POLLIN, 0}, 1, MUST_NOT) < 0) result = errno;
            if (how == 1 && sem_timedwait(&never, &until) < 0) result = errno;
        }
        line("a handler before %s: %d", how ? "sem_timedwait" : "poll", result);
    }
}

/* A mask for a wait opens a signal that comes at any time around the beginning of the wait, which
 * ends by it. */
static void opened_cases(int fd, int set) {
    enum { TIMES = 500 };
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, &before);
    for (int how = 2; how <= 6; how += 2) {
        int ended = 0;
        for (int i = 0; i < TIMES && ended == i; i++) {
            signals = 0;
            *turn = 1;
            ended += look_somehow(how, fd, set, must) == -EINTR && signals == 1;
            while (*turn != 2) {}
        }
        line("a signal that look %d opens ends it: %d", how, ended);
    }
    sigprocmask(SIG_SETMASK, &before, 0);
}

static void *wait_opened(void *argument) {
    return (void *)(intptr_t)look_somehow(6, 0, *(int *)argument, must);
}

/* The same of the second of two threads that wait for a set: the signal is for that thread. */
static void opened_of_two_cases(const int *s, int set) {
    pthread_t threads[2];
    void *result;
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, &before);
    signals = 0;
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[i], 0, i ? wait_opened : wait_for_one, &set);
        usleep(MUST_NOT * 1000);
    }
    pthread_kill(threads[1], SIGALRM);
    pthread_join(threads[1], &result);
    line("a signal for the second thread that waits for a set: %d %d", (intptr_t)result == -EINTR, (int)signals);
    put(s[0], "x");
    pthread_join(threads[0], &result);
    line("and data for the first: %d", (int)(intptr_t)result);
    take(s[1], 1);
    sigprocmask(SIG_SETMASK, &before, 0);
}

/* A signal that is pending when a wait opens it. The wait has no time, or it has data, or it has
 * data of Linux's side of the set alone. */
static void pending_cases(const int *s, const int *pipes, int set) {
    static const char *const has_names[] = {"no time", "data", "data of Linux"};
    char one;
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    for (int how = 2; how <= 6; how += 2)
        for (int has = 0; has < (how == 6 ? 3 : 2); has++) {
            sigprocmask(SIG_BLOCK, &alarm, &before);
            signals = 0;
            if (has) {
                put(has == 1 ? s[0] : pipes[1], "x");
                settle(has == 1 ? s[1] : pipes[0], POLLIN);
            }
            raise(SIGALRM);
            long found = look_somehow(how, s[1], set, has ? must : 0);
            line("a pending signal and look %d, %s: %ld %d", how, has_names[has], found, (int)signals);
            sigprocmask(SIG_SETMASK, &before, 0);
            line("then: %d", (int)signals);
            if (has == 1) take(s[1], 1);
            if (has == 2 && read(pipes[0], &one, 1) != 1) abort();
        }
}

/* Keeps the core that runs the sockets, in a system call that waits: a child has the lock. */
static void *keep_core(void *argument) {
    int own = open("/proc/self/exe", O_RDONLY);
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, 0);
    call_served();
    *turn = 1;
    flock(own, LOCK_EX);
    close(own);
    return argument;
}

/* Returns whether a process waits for a lock of a file. */
static int waits_for_lock(pid_t process) {
    char wanted[64], text[200];
    int found = 0;
    FILE *locks = fopen("/proc/locks", "r");
    snprintf(wanted, sizeof wanted, "-> FLOCK  ADVISORY  WRITE %d ", process);
    if (!locks) abort();
    while (fgets(text, sizeof text, locks)) found |= strstr(text, wanted) != 0;
    fclose(locks);
    return found;
}

/* A handler ends a wait also if the thread gets no core when the signal comes, and for longer than
 * the library waits for it. The thread may be without any core as well, and not wait yet when the
 * signal comes: one wait of twenty has to end. */
static void busy_core_cases(const int *s) {
    enum { LIMIT = 40 * MUST_NOT };
    struct timespec until;
    sem_t never;
    pthread_t thread;
    int tries = 0;
    sem_init(&never, 0, 0);
    waits.served = s[0];
    for (int how = 0; how < 2; how++) {
        pid_t parent = getpid(), child;
        long result = 0;
        *turn = 0;
        if ((child = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            flock(open("/proc/self/exe", O_RDONLY), LOCK_EX);
            for (*turn = 3; (*turn != 1 || !waits_for_lock(parent)) && getppid() == parent;) usleep(100);
            usleep(MUST_NOT * 1000);
            kill(parent, SIGALRM);
            usleep(6 * MUST_NOT * 1000);
            _exit(0);
        }
        while (*turn != 3) usleep(100);
        signals = 0;
        pthread_create(&thread, 0, keep_core, 0);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += LIMIT / 1000;
        int is_early = signals;
        if (!is_early && how == 0) result = poll(&(struct pollfd){s[1], POLLIN, 0}, 1, LIMIT);
        if (!is_early && how == 1) result = sem_timedwait(&never, &until);
        const char *ended = error(result);
        pthread_join(thread, 0);
        waitpid(child, 0, 0);
        if (signals && strcmp(ended, "EINTR") && ++tries < 20)
            how--;
        else
            line("a handler ends a wait without a core, %s: %s %d", how ? "sem_timedwait" : "poll", ended, (int)signals);
    }
}

static void sent_signal_cases(void) {
    struct sigaction action = {.sa_handler = on_signal};
    int s[2], pipes[2], set = epoll_create1(0);
    pid_t child = start_sender();
    sigaction(SIGALRM, &action, 0);
    pair(s);
    if (pipe(pipes)) abort();
    add(set, pipes[0], EPOLLIN, 1);
    early_signal_cases(s, pipes[0], set);
    late_wait_cases(s, pipes[0]);
    ready_cases(s, pipes[0], pipes[1]);
    progress_cases(s);
    add(set, s[1], EPOLLIN, 2);
    opened_cases(s[1], set);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    opened_of_two_cases(s, set);
    pending_cases(s, pipes, set);
    busy_core_cases(s);
    drop(s);
    close(set);
    drop(pipes);
}

/* Becomes the program anew, which has the listener, and no connection. */
static void become(const char *milliseconds) {
    char number[20];
    int s[2];
    pair(s);
    snprintf(number, sizeof number, "%d", listener);
    execl("/proc/self/exe", "cases", milliseconds, "again", number, (char *)0);
    abort();
}

static void again_cases(int inherited) {
    int s[2];
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    listener = inherited;
    if (getsockname(listener, (void *)&a, &len)) abort();
    port = ntohs(a.sin_port);
    poll(&(struct pollfd){listener, POLLIN, 0}, 1, 0);
    /* The connection of before was never accepted. */
    fcntl(listener, F_SETFL, O_NONBLOCK);
    while (accept(listener, 0, 0) >= 0) {}
    fcntl(listener, F_SETFL, 0);
    pair(s);
    put(s[0], "x");
    take(s[1], 1);
    line("after exec the listener serves");
    drop(s);
}

/* What Linux does and the library does not, as the guide's table of calls says. */
static void refusals(void) {
    int s[2], pipes[2], unix_pair[2];
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    pair(s);
    if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, unix_pair)) abort();
    memcpy(CMSG_DATA(control), &s[0], sizeof(int));
    put(pipes[1], "x");
    line("splice: %s", error(splice(pipes[0], 0, s[0], 0, 1, 0)));
    line("MSG_OOB: %s", error(send(s[0], "x", 1, MSG_OOB)));
    line("SCM_RIGHTS: %s", error(sendmsg(unix_pair[0], &message, 0)));
    char one;
    int status;
    put(s[1], "xx");
    settle(s[0], POLLIN);
    line("a system call of the program's own: %s", error(syscall(SYS_recvfrom, s[0], &one, 1, MSG_DONTWAIT, 0, 0)));
    pid_t child = fork();
    if (child == 0) _exit(recv(s[0], &one, 1, MSG_DONTWAIT) < 0 ? errno : 0);
    waitpid(child, &status, 0);
    line("a child's read: %s", WEXITSTATUS(status) ? strerrorname_np(WEXITSTATUS(status)) : "ok");
}
