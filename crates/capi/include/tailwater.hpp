/// @file
/// Tailwater for C++20: threads, locks, channels, sockets and event loops with the names of the
/// standard library where it has one, over tailwater.h. All of it is inline; there is no ABI beside
/// that of C.
//
// What fails throws tw::error, which is a std::system_error. An exception that leaves a thread ends
// the process by std::terminate, as one that leaves a std::thread.
//
// thread_local, errno, exceptions and everything else that belongs to a thread belong to the user
// thread. std::mutex, std::condition_variable and std::this_thread::sleep_for work and hold the
// core while they wait: use those of this header.

#ifndef TAILWATER_HPP
#define TAILWATER_HPP

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>
#include <version>
#ifdef __cpp_lib_format
#include <format>
#endif

#include "tailwater.h"

/// All of this header.
namespace tw {

/// What failed, and why: "connect: Connection refused".
class error : public std::system_error {
public:
    /// Of a positive error number, and what failed.
    error(int number, const std::string &what) : std::system_error(number, std::generic_category(), what) {}
};

/// Returns the text of an error.
inline std::string to_string(const error &failure) { return failure.what(); }

namespace detail {

/// Throws if a function of C has returned a negative error number.
inline void check(int status, const char *what) {
    if (status < 0) throw error(-status, what);
}

/// Throws if a function of POSIX's shape has returned -1; returns its result.
template <class T> T check_errno(T result, const char *what) {
    if (result < 0) throw error(errno, what);
    return result;
}

/// Returns nanoseconds for a function of C: 0 for a time that has passed.
template <class Rep, class Period> std::uint64_t nanoseconds(std::chrono::duration<Rep, Period> time) {
    using namespace std::chrono;
    if (time <= time.zero()) return 0;
    if (duration<double>(time) > duration<double>(nanoseconds::max())) return TW_FOREVER;
    return static_cast<std::uint64_t>(ceil<std::chrono::nanoseconds>(time).count());
}

/// A call that a function of C makes on this or another thread, while this one waits. Its exception
/// is thrown here.
template <class F> class call {
public:
    explicit call(F &function) : function_(function) {}
    using result = std::invoke_result_t<F &>;

    static void *run(void *self) noexcept {
        auto &me = *static_cast<call *>(self);
        try {
            if constexpr (std::is_void_v<result>) me.function_();
            else me.result_.emplace(me.function_());
        } catch (...) {
            me.exception_ = std::current_exception();
        }
        return nullptr;
    }
    static void run_procedure(void *self) noexcept { run(self); }

    result finish() {
        if (exception_) std::rethrow_exception(exception_);
        if constexpr (!std::is_void_v<result>) return std::move(*result_);
    }

private:
    struct nothing {};
    F &function_;
    std::optional<std::conditional_t<std::is_void_v<result>, nothing, result>> result_;
    std::exception_ptr exception_;
};

} // namespace detail

/// Runs `function` as the first user thread of the runtime, and returns its result. `config` may be
/// null: the environment configures it then.
template <class F> auto run(const tw_config *config, F &&function) {
    detail::call<std::remove_reference_t<F>> call(function);
    char reason[512] = "";
    tw_config own = config ? *config : TW_CONFIG_INIT;
    own.error = reason;
    own.error_size = sizeof reason;
    if (int status = tw_run(&own, &decltype(call)::run_procedure, &call); status < 0) throw error(-status, reason);
    return call.finish();
}

/// Gives the core up if that is asked for: for long loops.
inline void poll() noexcept { tw_poll(); }

/// Calls `function` without giving the core up in between; it may not wait.
template <class F> auto no_preempt(F &&function) {
    detail::call<std::remove_reference_t<F>> call(function);
    tw_no_preempt(&decltype(call)::run_procedure, &call);
    return call.finish();
}

/// Calls `function` on an ordinary thread, and waits for it without a core.
template <class F> auto blocking(F &&function) {
    detail::call<std::remove_reference_t<F>> call(function);
    tw_blocking(&decltype(call)::run, &call);
    return call.finish();
}

/// As std::this_thread.
namespace this_thread {

/// Lets other runnable threads run first.
inline void yield() noexcept { tw_yield(); }

/// Sleeps for so long.
template <class Rep, class Period> void sleep_for(std::chrono::duration<Rep, Period> time) {
    tw_sleep_ns(detail::nanoseconds(time));
}

/// Sleeps up to this time.
template <class Clock, class Duration> void sleep_until(std::chrono::time_point<Clock, Duration> time) {
    sleep_for(time - Clock::now());
}

} // namespace this_thread

/// A user thread, with the interface of std::jthread: joined by its destructor, after a request to
/// stop.
class jthread {
public:
    jthread() noexcept : source_(std::nostopstate) {}

    /// Starts a thread that calls `function` with the arguments, and with a stop token before them
    /// if it takes one.
    template <class F, class... Args>
        requires(!std::is_same_v<std::remove_cvref_t<F>, jthread> && !std::is_convertible_v<F, const tw_thread_options *>)
    explicit jthread(F &&function, Args &&...args)
        : jthread(nullptr, std::forward<F>(function), std::forward<Args>(args)...) {}

    /// Starts a thread with options: a name, a stack size, a class.
    template <class F, class... Args>
    explicit jthread(const tw_thread_options *options, F &&function, Args &&...args) {
        using Cell = cell<std::decay_t<F>, std::decay_t<Args>...>;
        auto owned = std::make_unique<Cell>(
            source_.get_token(), std::forward<F>(function),
            std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...));
        detail::check(tw_thread_spawn(&handle_, options, &Cell::run, owned.get()), "start a thread");
        owned.release();
    }

    /// Takes the thread of another object.
    jthread(jthread &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), source_(std::move(other.source_)) {}

    /// Stops and joins the own thread, and takes that of another object.
    jthread &operator=(jthread &&other) noexcept {
        if (this != &other) {
            stop_and_join();
            handle_ = std::exchange(other.handle_, nullptr);
            source_ = std::move(other.source_);
        }
        return *this;
    }

    ~jthread() { stop_and_join(); }

    /// Returns whether there is a thread to join.
    [[nodiscard]] bool joinable() const noexcept { return handle_ != nullptr; }

    /// Waits for the end of the thread.
    void join() {
        require_joinable();
        tw_thread_join(std::exchange(handle_, nullptr), nullptr);
    }

    /// Lets the thread go on by itself.
    void detach() {
        require_joinable();
        tw_thread_detach(std::exchange(handle_, nullptr));
    }

    /// As std::jthread's.
    [[nodiscard]] std::stop_source get_stop_source() noexcept { return source_; }
    /// As std::jthread's.
    [[nodiscard]] std::stop_token get_stop_token() const noexcept { return source_.get_token(); }
    /// Asks the thread to stop, by its token.
    bool request_stop() noexcept { return source_.request_stop(); }
    /// For functions of C.
    [[nodiscard]] tw_thread *native_handle() const noexcept { return handle_; }

    /// Exchanges the threads.
    void swap(jthread &other) noexcept {
        std::swap(handle_, other.handle_);
        source_.swap(other.source_);
    }

    /// Number of threads that run at once.
    [[nodiscard]] static unsigned hardware_concurrency() noexcept { return static_cast<unsigned>(tw_parallelism()); }

private:
    template <class F, class... Args> struct cell {
        std::stop_token token;
        F function;
        std::tuple<Args...> args;

        // An exception that leaves the function finds no handler, as tw_thread_spawn has none.
        static void *run(void *self) {
            std::unique_ptr<cell> me(static_cast<cell *>(self));
            if constexpr (std::is_invocable_v<F, std::stop_token, Args...>) {
                std::apply([&](auto &&...a) { std::invoke(std::move(me->function), me->token, std::move(a)...); }, me->args);
            } else {
                std::apply([&](auto &&...a) { std::invoke(std::move(me->function), std::move(a)...); }, me->args);
            }
            return nullptr;
        }
        cell(std::stop_token t, F f, std::tuple<Args...> a)
            : token(std::move(t)), function(std::move(f)), args(std::move(a)) {}
    };

    void require_joinable() const {
        if (!joinable()) throw error(EINVAL, "the thread is not joinable");
    }

    void stop_and_join() {
        if (joinable()) {
            request_stop();
            join();
        }
    }

    tw_thread *handle_ = nullptr;
    std::stop_source source_;
};

/// A mutex for std::lock_guard, std::unique_lock and std::scoped_lock.
class mutex {
public:
    constexpr mutex() noexcept = default;
    mutex(const mutex &) = delete;
    mutex &operator=(const mutex &) = delete;

    /// Waits until the mutex is free, and takes it.
    void lock() noexcept { tw_mutex_lock(&native_); }
    /// Takes the mutex if it is free; returns whether it was.
    bool try_lock() noexcept { return tw_mutex_trylock(&native_) == 0; }
    /// Frees the mutex.
    void unlock() noexcept { tw_mutex_unlock(&native_); }
    /// For functions of C.
    [[nodiscard]] tw_mutex *native_handle() noexcept { return &native_; }

private:
    tw_mutex native_ = TW_MUTEX_INIT;
};

/// Many readers or one writer, for std::shared_lock and std::unique_lock.
class shared_mutex {
public:
    constexpr shared_mutex() noexcept = default;
    shared_mutex(const shared_mutex &) = delete;
    shared_mutex &operator=(const shared_mutex &) = delete;

    /// Waits for the only place, that of a writer.
    void lock() noexcept { tw_rwlock_write(&native_); }
    /// Takes the place of a writer if it is free; returns whether it was.
    bool try_lock() noexcept { return tw_rwlock_trywrite(&native_) == 0; }
    /// Ends writing.
    void unlock() noexcept { tw_rwlock_write_unlock(&native_); }
    /// Waits for a place as a reader.
    void lock_shared() noexcept { tw_rwlock_read(&native_); }
    /// Takes a place as a reader if there is no writer; returns whether it did.
    bool try_lock_shared() noexcept { return tw_rwlock_tryread(&native_) == 0; }
    /// Ends reading.
    void unlock_shared() noexcept { tw_rwlock_read_unlock(&native_); }

private:
    tw_rwlock native_ = TW_RWLOCK_INIT;
};

/// As std::cv_status.
enum class cv_status {
    no_timeout, ///< Woken before the time had passed.
    timeout,    ///< The time has passed.
};

/// A condition variable for std::unique_lock<tw::mutex>.
class condition_variable {
public:
    constexpr condition_variable() noexcept = default;
    condition_variable(const condition_variable &) = delete;
    condition_variable &operator=(const condition_variable &) = delete;

    /// Wakes one waiting thread, if there is one.
    void notify_one() noexcept { tw_cond_signal(&native_); }
    /// Wakes all waiting threads.
    void notify_all() noexcept { tw_cond_broadcast(&native_); }

    /// Waits for a notification; may return without one.
    void wait(std::unique_lock<mutex> &lock) noexcept { tw_cond_wait(&native_, lock.mutex()->native_handle()); }

    /// Waits until `holds` returns true.
    template <class Predicate> void wait(std::unique_lock<mutex> &lock, Predicate holds) {
        while (!holds()) wait(lock);
    }

    /// As `wait`, for so long at most.
    template <class Rep, class Period>
    cv_status wait_for(std::unique_lock<mutex> &lock, std::chrono::duration<Rep, Period> time) {
        int status = tw_cond_wait_for(&native_, lock.mutex()->native_handle(), detail::nanoseconds(time));
        return status == 0 ? cv_status::no_timeout : cv_status::timeout;
    }

    /// Waits until `holds` returns true, for so long at most; returns whether it does.
    template <class Rep, class Period, class Predicate>
    bool wait_for(std::unique_lock<mutex> &lock, std::chrono::duration<Rep, Period> time, Predicate holds) {
        return wait_until(lock, std::chrono::steady_clock::now() + time, std::move(holds));
    }

    /// As `wait`, up to this time.
    template <class Clock, class Duration>
    cv_status wait_until(std::unique_lock<mutex> &lock, std::chrono::time_point<Clock, Duration> time) {
        return wait_for(lock, time - Clock::now());
    }

    /// Waits until `holds` returns true, up to this time; returns whether it does.
    template <class Clock, class Duration, class Predicate>
    bool wait_until(std::unique_lock<mutex> &lock, std::chrono::time_point<Clock, Duration> time, Predicate holds) {
        while (!holds()) {
            if (wait_until(lock, time) == cv_status::timeout) return holds();
        }
        return true;
    }

private:
    tw_cond native_ = TW_COND_INIT;
};

/// A condition variable for any lock, such as std::shared_lock<tw::shared_mutex>.
class condition_variable_any {
public:
    /// Wakes one waiting thread, if there is one.
    void notify_one() noexcept {
        std::lock_guard held(state_->lock);
        state_->changed.notify_one();
    }

    /// Wakes all waiting threads.
    void notify_all() noexcept {
        std::lock_guard held(state_->lock);
        state_->changed.notify_all();
    }

    /// Waits for a notification; may return without one.
    template <class Lock> void wait(Lock &lock) {
        // Kept by the waiter, which may be woken by the last notification before the end.
        auto state = state_;
        std::unique_lock own(state->lock);
        lock.unlock();
        state->changed.wait(own);
        own.unlock();
        lock.lock();
    }

    /// Waits until `holds` returns true.
    template <class Lock, class Predicate> void wait(Lock &lock, Predicate holds) {
        while (!holds()) wait(lock);
    }

private:
    struct state {
        mutex lock;
        condition_variable changed;
    };
    std::shared_ptr<state> state_ = std::make_shared<state>();
};

/// A channel of any type, for any number of threads. Each message is on the heap while it waits.
template <class T> class channel {
public:
    /// For `capacity` messages that wait; with 0 a sender waits for a receiver.
    explicit channel(std::size_t capacity = TW_UNBOUNDED) : native_(tw_channel_new(capacity)) {}
    channel(const channel &) = delete;
    channel &operator=(const channel &) = delete;
    ~channel() {
        close();
        while (try_receive()) {}
        tw_channel_free(native_);
    }

    /// Waits for room, and sends; false if the channel is closed.
    bool send(T message) {
        auto owned = std::make_unique<T>(std::move(message));
        if (tw_channel_send(native_, owned.get(), TW_FOREVER) < 0) return false;
        owned.release();
        return true;
    }

    /// Waits for a message; nothing if the channel is closed and empty.
    [[nodiscard]] std::optional<T> receive() { return take(TW_FOREVER); }
    /// Returns a message, if there is one now.
    std::optional<T> try_receive() { return take(0); }

    /// Ends sending: receivers get the messages that are there, and nothing after them.
    void close() noexcept { tw_channel_close(native_); }
    /// Number of messages that wait.
    [[nodiscard]] std::size_t size() const noexcept { return tw_channel_len(native_); }
    /// For functions of C.
    [[nodiscard]] tw_channel *native_handle() const noexcept { return native_; }

    /// Takes over a message that `tw_select` or `tw_channel_receive` has received.
    [[nodiscard]] static T unwrap(void *message) { return std::move(*std::unique_ptr<T>(static_cast<T *>(message))); }

private:
    std::optional<T> take(std::uint64_t timeout_ns) {
        void *message;
        if (tw_channel_receive(native_, &message, timeout_ns) < 0) return std::nullopt;
        return unwrap(message);
    }

    tw_channel *native_;
};

/// Waits for the first message of several channels, and calls that one's function with it: with
/// nothing if the channel is closed and empty. Arguments are channels and functions in turns.
template <class... Channels, class... Functions>
void select(std::pair<channel<Channels> &, Functions>... cases) {
    tw_operation all[] = {{cases.first.native_handle(), TW_RECEIVE, 0, nullptr}...};
    const int chosen = tw_select(all, sizeof...(cases), TW_FOREVER);
    detail::check(chosen, "select");
    const tw_operation &done = all[chosen];
    auto call = [&]<class T, class F>(std::pair<channel<T> &, F> &it) {
        if (done.status == 0) it.second(std::optional<T>(channel<T>::unwrap(done.message)));
        else it.second(std::optional<T>());
    };
    int index = 0;
    ((index++ == chosen ? call(cases) : void()), ...);
}

/// A case of `select`: a channel, and what is called with its message.
template <class T, class F> std::pair<channel<T> &, F> on(channel<T> &from, F function) {
    return {from, std::move(function)};
}

/// An IPv4 or IPv6 address and a port.
class address {
public:
    /// "10.77.0.2" or "::1", without brackets.
    address(const char *ip, std::uint16_t port) {
        auto *v4 = reinterpret_cast<sockaddr_in *>(&storage_);
        auto *v6 = reinterpret_cast<sockaddr_in6 *>(&storage_);
        if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
            v4->sin_family = AF_INET;
            v4->sin_port = htons(port);
            length_ = sizeof *v4;
        } else if (inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1) {
            v6->sin6_family = AF_INET6;
            v6->sin6_port = htons(port);
            length_ = sizeof *v6;
        } else {
            throw error(EINVAL, std::string(ip) + " is no IP address");
        }
    }

    address() noexcept = default;
    /// `AF_INET` or `AF_INET6`; `AF_UNSPEC` if there is no address.
    [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
    /// The port in the byte order of the processor.
    [[nodiscard]] std::uint16_t port() const noexcept {
        // At the same place in both families.
        return ntohs(reinterpret_cast<const sockaddr_in *>(&storage_)->sin_port);
    }
    /// For functions of C.
    [[nodiscard]] const sockaddr *data() const noexcept { return reinterpret_cast<const sockaddr *>(&storage_); }
    /// For functions that store an address.
    [[nodiscard]] sockaddr *data() noexcept { return reinterpret_cast<sockaddr *>(&storage_); }
    /// Length of the address in bytes.
    [[nodiscard]] socklen_t size() const noexcept { return length_; }
    /// For functions that store an address.
    [[nodiscard]] socklen_t *room() noexcept {
        length_ = sizeof storage_;
        return &length_;
    }

private:
    sockaddr_storage storage_{};
    socklen_t length_ = 0;
};

/// A descriptor, closed at its end.
class descriptor {
public:
    /// Takes a descriptor over; -1 is none.
    explicit descriptor(int fd = -1) noexcept : fd_(fd) {}
    /// Takes the descriptor of another object.
    descriptor(descriptor &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    /// Exchanges the descriptors.
    descriptor &operator=(descriptor &&other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~descriptor() {
        if (fd_ >= 0) tw_close(fd_);
    }

    /// For functions of C.
    [[nodiscard]] int native_handle() const noexcept { return fd_; }
    /// Sets whether calls fail with `EAGAIN` where they would wait.
    void set_nonblocking(bool on) { detail::check_errno(tw_set_nonblocking(fd_, on), "set_nonblocking"); }
    /// The address of this side.
    [[nodiscard]] address local_address() const {
        address own;
        detail::check_errno(tw_getsockname(fd_, own.data(), own.room()), "local_address");
        return own;
    }

protected:
    /// The descriptor, or -1.
    int fd_;
};

/// A TCP connection.
class tcp_stream : public descriptor {
public:
    /// Takes a descriptor over.
    using descriptor::descriptor;

    /// Connects to a listener.
    static tcp_stream connect(const address &peer) {
        tcp_stream stream(detail::check_errno(tw_socket(peer.family(), SOCK_STREAM, 0), "socket"));
        detail::check_errno(tw_connect(stream.fd_, peer.data(), peer.size()), "connect");
        return stream;
    }

    /// Returns the number of bytes that were read; 0 at the end of the stream.
    std::size_t read(std::span<std::byte> to) {
        return static_cast<std::size_t>(detail::check_errno(tw_read(fd_, to.data(), to.size()), "read"));
    }
    /// As the other `read`.
    std::size_t read(std::span<char> to) { return read(std::as_writable_bytes(to)); }

    /// Writes all bytes.
    void write(std::span<const std::byte> from) {
        while (!from.empty()) {
            ssize_t taken = detail::check_errno(tw_write(fd_, from.data(), from.size()), "write");
            from = from.subspan(static_cast<std::size_t>(taken));
        }
    }
    /// As the other `write`.
    void write(std::span<const char> from) { write(std::as_bytes(from)); }

    /// Sets whether small segments are sent at once.
    void set_nodelay(bool on) {
        int value = on;
        detail::check_errno(tw_setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value), "set_nodelay");
    }
    /// Ends one direction or both.
    void shutdown(int how = SHUT_RDWR) { detail::check_errno(tw_shutdown(fd_, how), "shutdown"); }
};

/// A socket that listens for TCP connections.
class tcp_listener : public descriptor {
public:
    /// Listens at an address; port 0 is any free one.
    explicit tcp_listener(const address &own, int backlog = 1024)
        : descriptor(detail::check_errno(tw_socket(own.family(), SOCK_STREAM, 0), "socket")) {
        detail::check_errno(tw_bind(fd_, own.data(), own.size()), "bind");
        detail::check_errno(tw_listen(fd_, backlog), "listen");
    }

    /// Waits for a client.
    tcp_stream accept() { return tcp_stream(detail::check_errno(tw_accept(fd_, nullptr, nullptr, 0), "accept")); }
};

/// A UDP socket.
class udp_socket : public descriptor {
public:
    /// Opens a socket at an address; port 0 is any free one.
    explicit udp_socket(const address &own)
        : descriptor(detail::check_errno(tw_socket(own.family(), SOCK_DGRAM, 0), "socket")) {
        detail::check_errno(tw_bind(fd_, own.data(), own.size()), "bind");
    }

    /// Waits for a datagram; returns its length. What does not fit is cut off.
    std::size_t receive_from(std::span<char> to, address &from) {
        ssize_t len = tw_recvfrom(fd_, to.data(), to.size(), 0, from.data(), from.room());
        return static_cast<std::size_t>(detail::check_errno(len, "receive"));
    }

    /// Sends a datagram.
    void send_to(std::span<const char> data, const address &to) {
        detail::check_errno(tw_sendto(fd_, data.data(), data.size(), 0, to.data(), to.size()), "send");
    }
};

/// A loop over any number of sockets, for one thread: conditions in batches, handled to completion.
/// The functions are those of tailwater.h, which says when data on loan ends.
class event_loop {
public:
    event_loop() : native_(tw_loop_new()) {}
    event_loop(const event_loop &) = delete;
    event_loop &operator=(const event_loop &) = delete;
    ~event_loop() { tw_loop_free(native_); }

    /// Adds a listener, a connection or a UDP socket, which the loop keeps.
    tw_handle add(const descriptor &socket, std::uint64_t token) {
        tw_handle handle;
        detail::check(tw_loop_add(native_, socket.native_handle(), token, &handle), "add a socket to a loop");
        return handle;
    }
    /// Begins a connection.
    tw_handle connect(const address &peer, std::uint64_t token) {
        tw_handle handle;
        detail::check(tw_loop_connect(native_, peer.data(), peer.size(), token, &handle), "connect");
        return handle;
    }

    /// Ends the round, and waits for the next conditions, for ever.
    std::span<const tw_condition> poll(std::span<tw_condition> room) { return poll_for(room, TW_FOREVER); }
    /// As `poll`, for so long at most; the result is empty if there were none.
    template <class Rep, class Period>
    std::span<const tw_condition> poll_for(std::span<tw_condition> room, std::chrono::duration<Rep, Period> time) {
        return poll_for(room, detail::nanoseconds(time));
    }

    /// Calls `handler` with each condition until it returns false. What waits in it ends the
    /// process. An exception ends the loop, and is thrown here.
    template <class F> void run(F &&handler) {
        handling<std::remove_reference_t<F>> state{handler, nullptr};
        detail::check(tw_loop_run(native_, &decltype(state)::handle, &state), "run a loop");
        if (state.exception) std::rethrow_exception(state.exception);
    }

    // The functions below return a negative error number of tailwater.h if they fail, mostly because
    // the connection is over, which a condition reports as well.

    /// Accepts a connection that waits to be accepted, and names it.
    int accept(tw_handle handle, std::uint64_t token) noexcept { return tw_loop_accept(native_, handle, token); }
    /// Sends as many bytes as there is room for; returns their number.
    ssize_t send(tw_handle handle, std::span<const char> data) noexcept {
        return tw_loop_send(native_, handle, data.data(), data.size());
    }
    /// Sends a datagram at once.
    int send_to(tw_handle handle, std::span<const char> data, const address &to) noexcept {
        return tw_loop_sendto(native_, handle, data.data(), data.size(), to.data(), to.size());
    }
    /// Ends the loan of the first bytes of a connection's data.
    int consume(tw_handle handle, std::size_t bytes) noexcept { return tw_loop_consume(native_, handle, bytes); }
    /// Ends this side's stream behind what was sent.
    int shutdown(tw_handle handle) noexcept { return tw_loop_shutdown(native_, handle); }
    /// Closes a socket, or rejects a connection that waits to be accepted.
    int close(tw_handle handle) noexcept { return tw_loop_close(native_, handle); }
    /// Returns whether the end of the peer's stream was reported.
    [[nodiscard]] bool is_eof(tw_handle handle) noexcept { return tw_loop_is_eof(native_, handle) == 1; }

    /// Returns the data of a connection that is on loan.
    [[nodiscard]] std::span<const char> data(tw_handle handle) noexcept {
        const void *data = nullptr;
        const ssize_t len = tw_loop_data(native_, handle, &data);
        return {static_cast<const char *>(data), static_cast<std::size_t>(len < 0 ? 0 : len)};
    }
    /// Returns the data of a condition.
    [[nodiscard]] static std::span<const char> data(const tw_condition &of) noexcept {
        return {static_cast<const char *>(of.data), of.len};
    }

    /// Makes the loop report `TW_WOKEN`; for any thread.
    void wake() const noexcept { tw_loop_wake(native_); }
    /// For functions of C.
    [[nodiscard]] tw_loop *native_handle() const noexcept { return native_; }

private:
    std::span<const tw_condition> poll_for(std::span<tw_condition> room, std::uint64_t timeout_ns) {
        const int count = tw_loop_poll(native_, room.data(), room.size(), timeout_ns);
        detail::check(count, "poll a loop");
        return room.first(static_cast<std::size_t>(count));
    }

    template <class F> struct handling {
        F &function;
        std::exception_ptr exception;

        static int handle(void *self, tw_loop *, const tw_condition *condition) noexcept {
            auto &me = *static_cast<handling *>(self);
            try {
                return me.function(*condition) ? 0 : 1;
            } catch (...) {
                me.exception = std::current_exception();
                return 1;
            }
        }
    };

    tw_loop *native_;
};

} // namespace tw

#ifdef __cpp_lib_format
template <> struct std::formatter<tw::error> : std::formatter<std::string> {
    auto format(const tw::error &failure, std::format_context &context) const {
        return std::formatter<std::string>::format(tw::to_string(failure), context);
    }
};
#endif

#endif
