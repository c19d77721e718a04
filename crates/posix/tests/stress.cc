// What belongs to a thread stays with it while it waits on kthreads and moves between them: all at
// once, for the seconds that the argument says. Each thread has a connection to itself, and checks
// at each turn what it has left there: thread-local variables, errno, keys, exceptions, its stack.
// Meanwhile each gets signals that are for it alone. The program ends with status 1 and a line about
// the first thing that is not as it was.
#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

namespace {

constexpr int THREADS = 6;
constexpr int ROUNDS_AT_LEAST = 20;
// Bytes for the frame of a signal, with the widest registers, and its handler.
constexpr size_t ROOM_LEFT = 8192;

std::atomic<bool> over;
std::atomic<long> destroyed, unwound, rounds[THREADS + 1];
std::atomic<long> handled[THREADS + 1];
std::atomic<size_t> small_left;
thread_local long own = -1;
thread_local std::string name;
pthread_key_t key;
pthread_spinlock_t spin;
long spun[2];
std::mutex mutex;
std::condition_variable changed;
int listener;
sockaddr_in address;

[[noreturn]] void fail(const char *what) {
    std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
    std::_Exit(1);
}

void check(bool holds, const char *what) {
    if (!holds) fail(what);
}

// A connection of the program to itself.
struct Connection {
    int out, in;

    Connection() : out(socket(AF_INET, SOCK_STREAM, 0)) {
        static std::mutex one_at_a_time;
        std::lock_guard<std::mutex> guard(one_at_a_time);
        check(connect(out, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0, "connect");
        in = accept(listener, nullptr, nullptr);
        check(in >= 0, "accept");
    }

    ~Connection() {
        close(out);
        close(in);
    }

    // Sends a number to itself, which makes the thread wait.
    void pass(long number) const {
        long back = 0;
        check(write(out, &number, sizeof number) == sizeof number, "write");
        pollfd ready = {in, POLLIN, 0};
        while (poll(&ready, 1, -1) != 1) check(errno == EINTR, "poll");
        check(recv(in, &back, sizeof back, MSG_WAITALL) == sizeof back && back == number, "another thread's data");
    }
};

// Has a destructor that counts, for unwinding through a frame that has waited.
struct Guard {
    const Connection &connection;
    ~Guard() {
        connection.pass(own);
        unwound++;
    }
};

[[gnu::noinline]] void wait_and_throw(const Connection &connection, int depth, long round) {
    Guard guard{connection};
    if (depth == 0) throw std::runtime_error(std::to_string(round));
    wait_and_throw(connection, depth - 1, round);
}

void exceptions(const Connection &connection, long round) {
    try {
        wait_and_throw(connection, 3, round);
        fail("nothing was thrown");
    } catch (const std::exception &error) {
        connection.pass(round);
        check(error.what() == std::to_string(round), "another thread's exception");
    }
}

void error_numbers(const Connection &connection, int number) {
    errno = 1000 + number;
    connection.pass(number);
    // Successful calls may change it (errno(3)), so a failed one is what has to stay.
    char none;
    check(recv(connection.in, &none, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "errno of this thread");
    errno = 1000 + number;
    for (volatile int i = 0; i < 20000; i = i + 1) {}
    check(errno == 1000 + number, "errno after a computation");
}

// With one kthread the thread that spins has to give way to the one that has the lock, which is
// preempted if it computes for some milliseconds.
void spin_locks(bool for_long) {
    pthread_spin_lock(&spin);
    spun[0]++;
    for (volatile int i = 0; i < (for_long ? 10'000'000 : 20'000); i = i + 1) {}
    spun[1]++;
    check(spun[0] == spun[1], "two threads have the spin lock");
    pthread_spin_unlock(&spin);
}

void wait_for_others() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.notify_all();
    changed.wait_for(lock, std::chrono::microseconds(200));
}

void load() {
    void *library = dlopen("libm.so.6", RTLD_NOW);
    check(library && dlsym(library, "cos"), "dlopen");
    dlclose(library);
}

void destroy(void *value) {
    std::unique_ptr<long> number(static_cast<long *>(value));
    check(*number == own, "another thread's key");
    destroyed++;
}

void work(int number) {
    Connection connection;
    own = number;
    name = "thread " + std::to_string(number);
    pthread_setspecific(key, new long(number));
    while (!over) {
        connection.pass(rounds[number]);
        exceptions(connection, rounds[number]);
        error_numbers(connection, number);
        spin_locks(number == 0 && rounds[number] % 16 == 0);
        wait_for_others();
        if (rounds[number] % 8 == number) load();
        check(own == number && name == "thread " + std::to_string(number), "another thread's variables");
        check(*static_cast<long *>(pthread_getspecific(key)) == number, "another thread's key");
        rounds[number]++;
    }
}

// The part of the calling thread's stack that it does not use, filled with a byte that tells what was
// used since.
class UnusedStack {
    static constexpr unsigned char FILL = 0xa5;
    static constexpr size_t OWN = 1024;
    unsigned char *low;
    size_t size;

  public:
    [[gnu::noinline]] UnusedStack() {
        pthread_attr_t attributes;
        void *start;
        check(pthread_getattr_np(pthread_self(), &attributes) == 0, "pthread_getattr_np");
        check(pthread_attr_getstack(&attributes, &start, &size) == 0, "pthread_attr_getstack");
        pthread_attr_destroy(&attributes);
        low = static_cast<unsigned char *>(start);
        size = static_cast<unsigned char *>(__builtin_frame_address(0)) - OWN - low;
        std::memset(low, FILL, size);
    }

    size_t left() const { return std::find_if(low, low + size, [](unsigned char byte) { return byte != FILL; }) - low; }
};

// A thread with the smallest stack that there is: all that the library does has to fit on it, with
// room for a signal.
void small(int number) {
    UnusedStack stack;
    {
        Connection connection;
        own = number;
        while (!over) {
            connection.pass(rounds[number]);
            for (volatile int i = 0; i < 20000; i = i + 1) {}
            check(own == number, "a small thread's variable");
            rounds[number]++;
        }
    }
    small_left = stack.left();
    check(small_left >= ROOM_LEFT, "a small thread's stack is nearly full");
}

void *begin(void *argument) {
    int number = static_cast<int>(reinterpret_cast<intptr_t>(argument));
    number == THREADS ? small(number) : work(number);
    return argument;
}

// A handler of a thread that does not wait for 50 ms runs beside it, with thread-local variables that
// no thread has used: those are not counted.
void on_signal(int, siginfo_t *info, void *) {
    int before = errno, number = info->si_value.sival_int;
    if (own != number && own != -1) {
        static const char what[] = "a handler for another thread\n";
        (void)!write(2, what, sizeof what - 1);
        _exit(1);
    }
    handled[number] += own == number;
    errno = before;
}

bool all_have_worked() {
    for (int i = 0; i <= THREADS; i++)
        if (rounds[i] < ROUNDS_AT_LEAST || handled[i] < ROUNDS_AT_LEAST) return false;
    return true;
}

} // namespace

int main(int count, char **arguments) {
    check(count == 2, "usage: stress SECONDS");
    auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(arguments[1]));
    socklen_t len = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, reinterpret_cast<sockaddr *>(&address), len) == 0 && listen(listener, 16) == 0, "listen");
    getsockname(listener, reinterpret_cast<sockaddr *>(&address), &len);
    pollfd first = {listener, POLLIN, 0};
    poll(&first, 1, 0);
    pthread_key_create(&key, destroy);
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    pthread_t threads[THREADS + 1];
    pthread_attr_t least;
    pthread_attr_init(&least);
    check(pthread_attr_setstacksize(&least, PTHREAD_STACK_MIN) == 0, "the smallest stack");
    for (intptr_t i = 0; i <= THREADS; i++) {
        errno = pthread_create(&threads[i], i == THREADS ? &least : nullptr, begin, reinterpret_cast<void *>(i));
        check(errno == 0, "pthread_create");
    }
    while (std::chrono::steady_clock::now() < end || !all_have_worked()) {
        for (int i = 0; i <= THREADS; i++) {
            sigval number = {};
            number.sival_int = i;
            // Full queues of signals are emptied (EAGAIN).
            errno = pthread_sigqueue(threads[i], SIGUSR1, number);
            check(errno == 0 || errno == EAGAIN, "pthread_sigqueue");
        }
        usleep(5000);
    }
    over = true;
    for (intptr_t i = 0; i <= THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        check(result == reinterpret_cast<void *>(i), "another thread's result");
    }
    check(destroyed == THREADS, "destructors of keys");
    long worked = 0;
    for (int i = 0; i < THREADS; i++) worked += rounds[i];
    check(unwound == 4 * worked, "destructors in frames that were unwound");
    std::printf("%ld rounds, %ld by the small thread, which left %zu bytes of its stack\n", worked, rounds[THREADS].load(),
                small_left.load());
}
