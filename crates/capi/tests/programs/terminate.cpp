// An exception that leaves a function which the library has called ends the process by
// std::terminate, with the frames that threw it still there: terminate WAY, where WAY says which
// function throws.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <tailwater.hpp>

struct destroyed {
    ~destroyed() { std::puts("the stack was unwound"); }
};

static void *throws(void *) {
    destroyed local;
    throw std::runtime_error("left the function");
}

static void procedure(void *argument) { throws(argument); }

static void in_thread(void *(*function)(void *), void *argument) {
    tw_thread *thread;
    tw_thread_spawn(&thread, nullptr, function, argument);
    tw_thread_join(thread, nullptr);
}

static void in_key() {
    static tw_key key;
    tw_key_create(&key, procedure);
    in_thread([](void *value) -> void * { return tw_key_set(key, value), nullptr; }, &key);
}

static void in_rcu() {
    tw_rcu *cell = tw_rcu_new(nullptr);
    tw_rcu_read(cell, [](void *, void *argument) { throws(argument); }, nullptr);
}

static void in_loop() {
    tw_loop *events = tw_loop_new();
    tw_loop_wake(events);
    tw_loop_run(events, [](void *argument, tw_loop *, const tw_condition *) { return throws(argument) ? 1 : 0; }, nullptr);
}

static void in_server(bool classify) {
    tw::udp_socket socket(tw::address("127.0.0.1", 0));
    tw_service service = TW_SERVICE_INIT;
    service.handle = [](void *argument, const void *, std::size_t, tw_reply *) { throws(argument); };
    if (classify) service.classify = [](void *argument, const void *, std::size_t) { return throws(argument) ? 1ul : 0ul; };
    tw_serve(socket.native_handle(), &service, nullptr);
    tw::udp_socket client(tw::address("127.0.0.1", 0));
    client.send_to(std::string_view("request"), socket.local_address());
    tw::this_thread::sleep_for(std::chrono::minutes(15));
}

int main(int argc, char **argv) {
    std::set_terminate([] {
        std::puts("terminate was called");
        std::fflush(stdout);
        std::_Exit(70);
    });
    const std::string_view way = argc > 1 ? argv[1] : "";
    if (way == "main") tw_run(nullptr, procedure, nullptr);
    tw::run(nullptr, [&] {
        tw_once once = TW_ONCE_INIT;
        if (way == "thread") in_thread(throws, nullptr);
        else if (way == "jthread") tw::jthread([] { throws(nullptr); }).join();
        else if (way == "key") in_key();
        else if (way == "once") tw_once_call(&once, procedure, nullptr);
        else if (way == "no_preempt") tw_no_preempt(procedure, nullptr);
        else if (way == "blocking") tw_blocking(throws, nullptr);
        else if (way == "rcu") in_rcu();
        else if (way == "loop") in_loop();
        else if (way == "classify" || way == "handle") in_server(way == "classify");
    });
    std::puts("the program went on");
}
