// tailwater.hpp with the standard library's own templates. Prints "ok".

#include "check.h"

#include <memory>
#include <shared_mutex>
#include <string_view>
#include <tailwater.hpp>
#include <vector>

using namespace std::chrono_literals;

static void threads() {
    int sum = 0;
    tw::jthread([&](int a, std::unique_ptr<int> b) { sum = a + *b; }, 40, std::make_unique<int>(2)).join();
    CHECK(sum == 42);
    bool stopped = false;
    {
        tw::jthread waits([&](std::stop_token token) {
            while (!token.stop_requested()) tw::this_thread::yield();
            stopped = true;
        });
        CHECK(waits.joinable());
        tw::jthread moved = std::move(waits);
        CHECK(!waits.joinable() && moved.joinable());
    }
    CHECK(stopped);
    tw_thread_options options = TW_THREAD_OPTIONS_INIT;
    options.name = "named";
    options.stack_size = 1 << 20;
    tw::jthread(&options, [] {}).detach();
    options.stack_size = 1;
    try {
        tw::jthread refused(&options, [] {});
        CHECK(false);
    } catch (const tw::error &failure) {
        CHECK(failure.code() == std::errc::invalid_argument && tw::to_string(failure).find("start a thread") == 0);
    }
    CHECK(tw::blocking([] { return 6 * 7; }) == 42 && tw::no_preempt([] { return std::string("kept"); }) == "kept");
    try {
        tw::blocking([] { throw std::string("through"); });
        CHECK(false);
    } catch (const std::string &text) {
        CHECK(text == "through");
    }
}

static void locks() {
    tw::mutex first, second;
    tw::shared_mutex shared;
    tw::condition_variable changed;
    tw::condition_variable_any any;
    long count = 0;
    bool ready = false, read = false;
    {
        std::vector<tw::jthread> adders;
        for (int i = 0; i < 4; i++)
            adders.emplace_back([&, i] {
                for (int turn = 0; turn < 1000; turn++) {
                    tw::mutex &one = i % 2 ? first : second, &other = i % 2 ? second : first;
                    std::scoped_lock both(one, other);
                    count++;
                }
            });
    }
    CHECK(count == 4000);
    tw::jthread sets([&] {
        tw::this_thread::sleep_for(1ms);
        { std::lock_guard held(first); ready = true; }
        changed.notify_all();
        { std::unique_lock held(shared); read = true; }
        any.notify_one();
    });
    std::unique_lock held(first);
    changed.wait(held, [&] { return ready; });
    CHECK(changed.wait_for(held, 1ms) == tw::cv_status::timeout || ready);
    CHECK(!changed.wait_for(held, 1ms, [] { return false; }));
    CHECK(changed.wait_until(held, std::chrono::steady_clock::now() + 1h, [&] { return ready; }));
    CHECK(!first.try_lock());
    std::shared_lock reader(shared);
    any.wait(reader, [&] { return read; });
    CHECK(!shared.try_lock() && shared.try_lock_shared());
    shared.unlock_shared();
}

static void sockets() {
    tw::tcp_listener listener(tw::address("127.0.0.1", 0));
    tw::jthread server([&] {
        tw::tcp_stream stream = listener.accept();
        char data[100];
        while (std::size_t len = stream.read(data)) stream.write(std::span<const char>(data, len));
    });
    tw::tcp_stream client = tw::tcp_stream::connect(tw::address("127.0.0.1", listener.local_address().port()));
    client.set_nodelay(true);
    client.write(std::string_view("hello"));
    std::string back;
    char data[100];
    while (back.size() < 5) back.append(data, client.read(data));
    CHECK(back == "hello");
    client.shutdown(SHUT_WR);
    CHECK(client.read(data) == 0);
    server.join();
    tw::udp_socket one(tw::address("127.0.0.1", 0)), other(tw::address("127.0.0.1", 0));
    one.send_to(std::string_view("datagram"), other.local_address());
    tw::address from;
    CHECK(other.receive_from(data, from) == 8 && from.port() == one.local_address().port());
    try {
        tw::tcp_stream::connect(tw::address("127.0.0.1", 1));
        CHECK(false);
    } catch (const tw::error &failure) {
        CHECK(failure.code() == std::errc::connection_refused);
#ifdef __cpp_lib_format
        CHECK(std::format("{}", failure) == failure.what());
#endif
    }
}

static void channels() {
    tw::channel<std::unique_ptr<int>> numbers(1);
    tw::channel<std::string> words(0);
    tw::jthread sender([&] {
        CHECK(words.send("word") && numbers.send(std::make_unique<int>(7)));
        words.close();
    });
    int seen = 0, ends = 0;
    while (ends == 0 || seen < 2) {
        tw::select(
            tw::on(numbers, [&](std::optional<std::unique_ptr<int>> number) { seen += number && **number == 7; }),
            tw::on(words, [&](std::optional<std::string> word) { word ? seen += *word == "word" : ends++; }));
    }
    CHECK(seen == 2 && !words.receive() && !words.send("late"));
    // What is left is freed with the channel.
    CHECK(numbers.send(std::make_unique<int>(8)) && numbers.size() == 1);
}

static void events() {
    tw::event_loop events;
    tw::tcp_listener listener(tw::address("127.0.0.1", 0));
    events.add(listener, 1);
    tw_handle client = events.connect(tw::address("127.0.0.1", listener.local_address().port()), 2);
    CHECK(events.send(client, std::string_view("echo")) == 4);
    std::string back;
    events.run([&](const tw_condition &it) {
        if (it.kind == TW_INCOMING) events.accept(it.handle, 3);
        if (it.kind != TW_RECEIVED) return true;
        auto data = tw::event_loop::data(it);
        if (it.token == 3) events.send(it.handle, data);
        else back.append(data.data(), data.size());
        events.consume(it.handle, data.size());
        return back.size() < 4;
    });
    CHECK(back == "echo");
    try {
        events.wake();
        events.run([](const tw_condition &) -> bool { throw std::string("thrown"); });
        CHECK(false);
    } catch (const std::string &thrown) {
        CHECK(thrown == "thrown");
    }
    tw_condition room[4];
    events.wake();
    CHECK(events.poll(room).front().kind == TW_WOKEN && events.poll_for(room, 1ms).empty());
}

int main() {
    tw_config config = TW_CONFIG_INIT;
    config.kthreads = 0x10000;
    try {
        tw::run(&config, [] {});
        CHECK(false);
    } catch (const tw::error &failure) {
        CHECK(tw::to_string(failure).find("kthreads") != std::string::npos);
    }
    config.kthreads = 2;
    CHECK(tw::run(&config, [] {
        threads();
        locks();
        sockets();
        channels();
        events();
        return 7;
    }) == 7);
    std::puts("ok");
}
