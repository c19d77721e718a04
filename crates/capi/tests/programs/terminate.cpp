// An exception that leaves a function of a thread ends the process by std::terminate, with the
// frames that threw it still there; `terminate c` throws through the C interface, `terminate` from a
// jthread.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <tailwater.hpp>

struct destroyed {
    ~destroyed() { std::puts("the stack was unwound"); }
};

static void *throws(void *) {
    destroyed local;
    throw std::runtime_error("left the thread");
}

int main(int argc, char **argv) {
    std::set_terminate([] {
        std::puts("terminate was called");
        std::fflush(stdout);
        std::_Exit(70);
    });
    tw::run(nullptr, [&] {
        if (argc > 1 && argv[1][0] == 'c') {
            tw_thread *thread;
            tw_thread_spawn(&thread, nullptr, throws, nullptr);
            tw_thread_join(thread, nullptr);
        } else {
            tw::jthread([] { throws(nullptr); }).join();
        }
    });
    std::puts("the program went on");
}
