// What C++ keeps per thread stays with its user thread under preemption and migration: exceptions,
// thread_local objects and their destructors, strings, maps, locks, stop tokens.

#include "storm.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <tailwater.hpp>
#include <vector>

namespace {

std::atomic<unsigned long> sessions, destroyed, caught;
std::atomic<bool> stop;

double compute(unsigned long seed) {
    double sum = static_cast<double>(seed % 97);
    for (int i = 0; i < 4000; i++) sum = std::sqrt(sum * 1.0001 + i % 7);
    return sum;
}

struct counted {
    unsigned long id = 0;
    std::vector<unsigned long> notes;
    ~counted() {
        compute(id);
        if (std::all_of(notes.begin(), notes.end(), [this](unsigned long note) { return note == id; })) destroyed++;
    }
};

thread_local counted mine;

struct unwinding {
    unsigned long id;
    ~unwinding() {
        compute(id);
        CHECK(std::uncaught_exceptions() == 1);
        try {
            throw std::out_of_range(std::to_string(id));
        } catch (const std::out_of_range &inner) {
            compute(id);
            CHECK(inner.what() == std::to_string(id) && std::uncaught_exceptions() == 1);
        }
    }
};

void thrower(unsigned long id, int depth) {
    unwinding local{id};
    compute(id);
    if (depth == 0) throw std::runtime_error(std::to_string(id));
    compute(id + static_cast<unsigned long>(depth));
    throw std::runtime_error(std::to_string(id));
}

void check_exceptions(unsigned long id) {
    CHECK(std::uncaught_exceptions() == 0);
    try {
        thrower(id, static_cast<int>(id % 3));
        CHECK(false);
    } catch (const std::runtime_error &failure) {
        compute(id);
        tw::this_thread::yield(); // a switch with an exception that is being handled
        CHECK(failure.what() == std::to_string(id));
        try {
            throw;
        } catch (const std::exception &again) {
            compute(id);
            CHECK(again.what() == std::to_string(id));
            caught++;
        }
    }
    CHECK(!std::current_exception());
    std::exception_ptr kept;
    try {
        throw id;
    } catch (...) {
        kept = std::current_exception();
        tw::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    try {
        std::rethrow_exception(kept);
    } catch (unsigned long value) {
        CHECK(value == id);
    }
}

tw::mutex lock;
tw::shared_mutex table_lock;
std::map<unsigned long, std::string> table;

void check_objects(unsigned long id) {
    std::map<std::string, unsigned long> map;
    for (unsigned long i = 0; i < 50; i++) map[std::to_string(id * 1000 + i)] = i;
    std::ostringstream out;
    out << id << ' ' << 1.5;
    compute(id);
    CHECK(out.str() == std::to_string(id) + " 1.5" && map.size() == 50);
    {
        std::scoped_lock both(lock, table_lock);
        table[id % 64] = std::to_string(id);
    }
    std::shared_lock reader(table_lock);
    compute(id);
    for (auto &[key, text] : table) CHECK(std::stoul(text) % 64 == key);
}

void session(std::stop_token token, unsigned long id) {
    sessions++;
    CHECK(mine.id == 0 && mine.notes.empty());
    mine.id = id;
    for (int round = 0; round < 4 && !token.stop_requested(); round++) {
        mine.notes.push_back(id);
        errno = static_cast<int>(id % 1000);
        check_exceptions(id);
        check_objects(id);
        mine.notes.push_back(mine.id);
    }
}

} // namespace

int main(int argc, char **argv) {
    tw_config config = TW_CONFIG_INIT;
    config.kthreads = 3;
    config.quantum_ns = STORM_US * 1000;
    config.stall_timeout_ns = TW_FOREVER;
    const auto least = std::chrono::milliseconds(argc > 1 ? std::atol(argv[1]) : 1000);
    storm_start();
    tw::run(&config, [&] {
        std::vector<tw::jthread> drivers;
        for (unsigned long driver = 0; driver < 24; driver++)
            drivers.emplace_back([driver] {
                for (unsigned long id = 1 + driver; !stop; id += 24) tw::jthread(session, id).join();
            });
        tw_counters counters{};
        auto begin = std::chrono::steady_clock::now();
        auto untested = [&] {
            tw_count(&counters);
            return (counters.preemptions == 0 || counters.stolen_threads == 0) &&
                   std::chrono::steady_clock::now() - begin < least + std::chrono::minutes(1);
        };
        do tw::this_thread::sleep_for(std::chrono::milliseconds(10));
        while (std::chrono::steady_clock::now() - begin < least || untested());
        stop = true;
        drivers.clear();
        CHECK(sessions > 0 && sessions == destroyed && caught >= sessions);
        CHECK(counters.preemptions > 0 && counters.stolen_threads > 0);
        std::printf("%lu sessions, %lu exceptions, %lu preemptions\n", sessions.load(), caught.load(),
                    static_cast<unsigned long>(counters.preemptions));
    });
}
