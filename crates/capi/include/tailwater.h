/** @file
 * libtailwater: user threads, synchronisation, timers and sockets for services that share a machine
 * with batch work. The guide is docs/src/guide/c.md; tailwater.hpp is for C++.
 *
 * Functions return 0 or a negative error number, unless their comment says otherwise; those of
 * sockets return -1 and set errno, as POSIX's. Times are nanoseconds. All functions may be called
 * on user threads and on ordinary threads. A function that "switches threads" is a poll point: the
 * caller may continue on another OS thread, with its own thread-locals and errno. No function may be
 * called in a signal handler, or in a forked child.
 *
 * Objects such as `tw_mutex` are in storage of the program, which stays in place and is not given to
 * other use before the last call on it has returned; they need no destruction. What a function with
 * `new` in its name makes is freed by the one with `free`. Pointers are not NULL unless a comment
 * allows it.
 *
 * Made by cbindgen from crates/capi; do not edit. */

#ifndef TAILWATER_H
#define TAILWATER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

/// The value of a time in nanoseconds that never comes.
#define TW_FOREVER UINT64_MAX

/// A class that the environment decides.
#define TW_CLASS_UNSET 0

/// A service, which takes cores from batch jobs at once.
#define TW_CLASS_LATENCY_CRITICAL 1

/// A batch job, which has the cores that are left.
#define TW_CLASS_BEST_EFFORT 2

/// Flag of `tw_config`: the program has an allocator of its own, or allocates on user threads
/// within `tw_no_preempt` only. Without this flag `tw_run` fails where `malloc` is not Tailwater's.
#define TW_FOREIGN_MALLOC 1

/// Flag of `tw_config`: a kthread handles the packets of its own flow groups only.
#define TW_NO_PACKET_STEALING 2

/// A thread is of the class of the one that starts it.
#define TW_THREAD_INHERIT 0

/// An ordinary thread.
#define TW_THREAD_NORMAL 1

/// A thread that runs while no ordinary one wants a core.
#define TW_THREAD_BACKGROUND 2

/// A thread that has a kthread, and with it a core, of its own.
#define TW_THREAD_EXCLUSIVE 3

/// The first descriptor. Programs with arrays by descriptor subtract it.
#define TW_FD_BASE (1 << 30)

/// A read, an accept or a receive would not wait. As `EPOLLIN`.
#define TW_IN 1

/// A write or a send would not wait. As `EPOLLOUT`.
#define TW_OUT 4

/// The socket has failed. Always reported. As `EPOLLERR`.
#define TW_ERR 8

/// Accepted, as epoll does; what ends or fails is reported as `TW_RDHUP` or `TW_ERR`. As
/// `EPOLLHUP`.
#define TW_HUP 16

/// The peer has ended its stream. As `EPOLLRDHUP`.
#define TW_RDHUP 8192

/// Reported when it changes, not for as long as it is ready. As `EPOLLET`.
#define TW_ET 2147483648

/// Reported once, until it is modified. As `EPOLLONESHOT`.
#define TW_ONESHOT 1073741824

/// What `tw_poller_wait` reports of a timer.
#define TW_TIMER 65536

/// Adds a descriptor. As `EPOLL_CTL_ADD`.
#define TW_CTL_ADD 1

/// Removes a descriptor. As `EPOLL_CTL_DEL`.
#define TW_CTL_DEL 2

/// Changes what is reported of a descriptor. As `EPOLL_CTL_MOD`.
#define TW_CTL_MOD 3

/// A client has connected to a listener, which has the token `token`; `address` is the client's.
/// Answer by `tw_loop_accept` or `tw_loop_close`; nothing else is reported of it before.
#define TW_INCOMING 1

/// A connection that `tw_loop_connect` began is established.
#define TW_CONNECTED 2

/// A connection has `count` new bytes.
#define TW_RECEIVED 3

/// A datagram has arrived; `address` is its sender's. Its data is on loan until the next round.
#define TW_DATAGRAM 4

/// A connection that did not take all bytes of a send has room for `count` bytes again; after
/// `tw_loop_report_acknowledged` also one whose peer has acknowledged something.
#define TW_WINDOW 5

/// The peer has ended its stream, and all its data was reported. This side may still send.
#define TW_EOF 6

/// An earlier datagram was not delivered, because of `error`. The socket goes on.
#define TW_UNDELIVERED 7

/// A connection is over: both sides have ended their streams, or it has failed with `error`. Its
/// data can be read in this round; its handle is invalid after that.
#define TW_CLOSED 8

/// `tw_loop_wake` was called, once or more.
#define TW_WOKEN 9

/// Conditions of a round at most.
#define TW_LOOP_BATCH 256

/// Receives from a channel.
#define TW_RECEIVE 0

/// Sends to a channel.
#define TW_SEND 1

/// Operations of a `tw_select` at most.
#define TW_SELECT_MAX 64

/// A channel whose messages are addresses, for any number of threads.
typedef struct tw_channel tw_channel;

/// Waits for changes of the cores that the program holds, for one thread.
typedef struct tw_core_changes tw_core_changes;

/// A loop over any number of sockets, for one thread: conditions in batches, handled to completion.
typedef struct tw_loop tw_loop;

/// Waits for many descriptors and timers; any number of threads may wait.
typedef struct tw_poller tw_poller;

/// An address that is read all the time and replaced now and then.
typedef struct tw_rcu tw_rcu;

/// Where a handler puts its reply.
typedef struct tw_reply tw_reply;

/// A running server, for statistics. Servers run until the process ends.
typedef struct tw_server tw_server;

/// Bytes that many connections send without a copy for each.
typedef struct tw_shared tw_shared;

/// A handle to a user thread, which is joined or detached once.
typedef struct tw_thread tw_thread;

/// Settings of the runtime. A field that is 0 or NULL leaves the setting to the environment
/// (`TAILWATER_*`), then to the file that `TAILWATER_CONFIG` names, then to the default.
///
/// Initialise it by `TW_CONFIG_INIT`: later versions add fields at the end.
typedef struct tw_config {
  /// Size of this structure in bytes.
  size_t size;
  /// Address of an IOKernel's control socket; without one the program runs standalone.
  const char *iokernel;
  /// Name in the IOKernel's statistics.
  const char *name;
  /// IPv4 address to request from the IOKernel, in text form.
  const char *ip;
  /// Usable bytes of each user thread's stack; 256 KiB by default.
  size_t stack_size;
  /// Maximum number of cores that the program uses at once; the number of CPUs by default.
  uint32_t kthreads;
  /// Number of cores that the IOKernel never takes away while they are in use.
  uint32_t guaranteed;
  /// `TW_CLASS_...`.
  uint32_t allocation_class;
  /// `TW_FOREIGN_MALLOC`, `TW_NO_PACKET_STEALING`.
  uint32_t flags;
  /// Time slice of a thread while others wait, in nanoseconds; none by default.
  uint64_t quantum_ns;
  /// How long an idle kthread polls before it sleeps; `TW_FOREVER` never sleeps.
  uint64_t idle_timeout_ns;
  /// How long a thread may reach no poll point before that is reported; `TW_FOREVER` reports
  /// nothing.
  uint64_t stall_timeout_ns;
  /// Maximum number of ordinary threads that run `tw_blocking` calls.
  uint32_t blocking_threads;
  /// Maximum number of open TCP connections.
  uint32_t tcp_connections;
  /// Size of each packet ring in bytes.
  uint32_t ring_bytes;
  /// Must be 0.
  uint32_t reserved;
  /// Where `tw_run` writes the reason if the runtime cannot start, with a final NUL byte; NULL
  /// for standard error.
  char *error;
  /// Bytes at `error`.
  size_t error_size;
} tw_config;

/// Options of a new thread. Initialise it by `TW_THREAD_OPTIONS_INIT`.
typedef struct tw_thread_options {
  /// Size of this structure in bytes.
  size_t size;
  /// Name for messages and dumps; NULL for none. Copied.
  const char *name;
  /// Usable bytes of the stack, 16 KiB to 128 GiB; 0 for the runtime's setting.
  size_t stack_size;
  /// `TW_THREAD_...`.
  uint32_t thread_class;
  /// 0: queued where it costs least. Otherwise: with the least loaded of so many kthreads.
  uint32_t least_loaded_of;
} tw_thread_options;

/// A key. Values of a deleted key are not found by a key that is made later.
typedef struct tw_key {
  /// The library's.
  uint32_t slot;
  /// The library's.
  uint32_t generation;
} tw_key;

/// What the runtime has done since its start.
typedef struct tw_counters {
  /// Threads that were preempted by a signal, because they reached no poll point.
  uint64_t preemptions;
  /// Threads that a kthread has taken from another one.
  uint64_t stolen_threads;
} tw_counters;

/// Mutual exclusion between user threads, and ordinary ones. Initialise it by `TW_MUTEX_INIT`.
typedef struct tw_mutex {
  /// The library's.
  uint64_t opaque[6];
} tw_mutex;

/// Many readers or one writer. Initialise it by `TW_RWLOCK_INIT`.
typedef struct tw_rwlock {
  /// The library's.
  uint64_t opaque[8];
} tw_rwlock;

/// A condition variable. Initialise it by `TW_COND_INIT`.
typedef struct tw_cond {
  /// The library's.
  uint64_t opaque[6];
} tw_cond;

/// Runs a function once. Initialise it by `TW_ONCE_INIT`.
typedef struct tw_once {
  /// The library's.
  uint64_t opaque[6];
} tw_once;

/// A counting semaphore, served first come, first served. Initialise it by `tw_sem_init`, or for 0
/// permits by `TW_SEM_INIT`.
typedef struct tw_sem {
  /// The library's.
  uint64_t opaque[8];
} tw_sem;

/// Waits for a changing number of tasks. Initialise it by `TW_WAITGROUP_INIT`.
typedef struct tw_waitgroup {
  /// The library's.
  uint64_t opaque[12];
} tw_waitgroup;

/// Lets a number of threads wait for one another. Initialise it by `tw_barrier_init`.
typedef struct tw_barrier {
  /// The library's.
  uint64_t opaque[12];
} tw_barrier;

/// The ticks of a period, without drift. Initialise it by `tw_interval_init`.
typedef struct tw_interval {
  /// When the next tick is due, by the clock of `tw_now_ns`.
  uint64_t next_ns;
  /// Time between two ticks.
  uint64_t period_ns;
} tw_interval;

/// What is reported, and the program's name for it.
typedef struct tw_event {
  /// `TW_IN` and the others.
  uint32_t events;
  /// The program's.
  uint64_t data;
} tw_event;

/// A loop's name for a socket, unique in the process. That of a closed socket stays invalid.
typedef struct tw_handle {
  /// The library's.
  uint64_t opaque[2];
} tw_handle;

/// What has happened to a socket.
typedef struct tw_condition {
  /// `TW_INCOMING`, `TW_RECEIVED` and the others.
  uint32_t kind;
  /// Number of the error for `TW_CLOSED` and `TW_UNDELIVERED`, positive; 0 for none.
  int error;
  /// The program's name for the socket; for `TW_INCOMING` that of the listener.
  uint64_t token;
  /// The loop's name for the socket; for `TW_INCOMING` that of the new connection.
  struct tw_handle handle;
  /// Data on loan: all that a connection has received and `tw_loop_consume` has not returned,
  /// oldest first, or a datagram. Valid until the next round, or until the socket is closed.
  const void *data;
  /// Bytes at `data`.
  size_t len;
  /// New bytes at the end of `data` for `TW_RECEIVED`, room for `TW_WINDOW`.
  size_t count;
  /// Of the peer, for `TW_INCOMING` and `TW_DATAGRAM`; undefined for others.
  struct sockaddr_storage address;
  /// Bytes of `address`; 0 if it is undefined.
  socklen_t address_len;
  /// For `TW_WINDOW`, bytes sent that the peer has acknowledged since the last such condition.
  size_t acknowledged;
} tw_condition;

/// A class of requests.
typedef struct tw_class {
  /// Name in statistics; NULL for its number.
  const char *name;
  /// Target for the 99th percentile of the latency in nanoseconds; 0 for 1 ms.
  uint64_t slo_ns;
} tw_class;

/// What a server does with requests. Initialise it by `TW_SERVICE_INIT`. The functions run on user
/// threads, several at a time; `argument` is passed to each.
typedef struct tw_service {
  /// Size of this structure in bytes.
  size_t size;
  /// Returns the number of a request's class. Short; NULL: all are of class 0.
  size_t (*classify)(void *argument, const void *request, size_t len);
  /// Executes a request, and puts the reply together by `tw_reply_write`; without one, none is
  /// sent. A poll point in it (`tw_poll`) is where it may be preempted.
  void (*handle)(void *argument, const void *request, size_t len, struct tw_reply *reply);
  /// Called once by each lane's first thread, with the lane's number; may be NULL.
  void (*init_per_core)(void *argument, size_t lane);
  /// For TCP: returns the length of the request that the bytes begin with, 0 if more are needed,
  /// a negative number to close the connection. It has been given the first `seen` of
  /// them before.
  ptrdiff_t (*frame)(void *argument, const void *bytes, size_t len, size_t seen);
  /// The program's.
  void *argument;
  /// The policy, as in `tailwater-lab sim`: "mq:5us", "sq:5us", "c-fcfs", "srpt", ...; NULL for
  /// "mq:5us".
  const char *policy;
  /// The classes; NULL for one.
  const struct tw_class *classes;
  /// Number of classes, at most 64.
  size_t n_classes;
  /// Requests that may wait at most; 0 for 4,096.
  size_t queue;
  /// Dispatchers with a core of their own; 0: each worker schedules itself.
  size_t dispatchers;
  /// Usable bytes of the stack of a request; 0 for the runtime's setting.
  size_t stack_size;
} tw_service;

/// What became of the requests of a class.
typedef struct tw_class_stats {
  /// Requests that were taken.
  uint64_t accepted;
  /// Requests that found no place.
  uint64_t dropped;
  /// Requests that have ended.
  uint64_t finished;
  /// Times that a request was preempted.
  uint64_t preemptions;
  /// Requests whose latency was above the SLO.
  uint64_t late;
  /// Median of the latency in the server, in nanoseconds.
  uint64_t latency_p50_ns;
  /// 99th percentile of the same.
  uint64_t latency_p99_ns;
} tw_class_stats;

/// One of the operations of `tw_select`.
typedef struct tw_operation {
  /// The channel.
  struct tw_channel *channel;
  /// `TW_RECEIVE` or `TW_SEND`.
  uint32_t kind;
  /// Set if this is the one that was completed: 0, or `-EPIPE` if the channel is closed and, for
  /// a receive, empty.
  int status;
  /// The message to send; set to the message that was received.
  void *message;
} tw_operation;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Starts the runtime of this process, and runs `main(argument)` as its first user thread. Returns
/// when `main` has returned; other user threads then end with the process. Called on an ordinary
/// thread, which waits in the kernel.
///
/// `config` may be NULL: all settings are then the environment's. A process has one runtime.
///
/// Returns 0, or a negative error number: `-EINVAL` for a setting, `-EBUSY` if there was a runtime
/// before, `-ENOTSUP` if the machine or the program is not suitable, `-ECONNREFUSED` or another one
/// if the IOKernel is not reached or refuses. The reason in words goes to `config->error`, or to
/// standard error.
int tw_run(const struct tw_config *config, void (*main)(void *argument), void *argument);

/// Starts the runtime as the environment (`TAILWATER_*`) configures it, runs `program(argc, argv)`
/// as its first user thread, and returns its result: the exit status. A program's `main` is
/// `return tw_main(argc, argv, program);`. If the runtime cannot start, writes the reason to
/// standard error and returns 1. Called on an ordinary thread, which waits in the kernel.
int tw_main(int argc, char **argv, int (*program)(int argc, char **argv));

/// Returns the version of the library, such as "0.1.0". Never switches threads.
const char *tw_version(void);

/// Returns the text of an error number, positive or negative, such as "Resource temporarily
/// unavailable". The text lives as long as the process. Never switches threads.
const char *tw_strerror(int error);

/// Starts a user thread that runs `function(argument)`, and stores its handle in `*thread`, which
/// has to be joined or detached. `thread` may be NULL: the new thread is detached. `options` may be
/// NULL. May be called from ordinary threads, too. A poll point: may switch threads.
///
/// Returns 0, or `-EINVAL` for an option, `-ENOMEM` if there is no memory for the stack, `-ENXIO`
/// if there is no runtime; for an exclusive thread `-EBUSY` if no kthread is left for one, and
/// `-ENOTSUP` if the IOKernel grants no requested cores.
int tw_thread_spawn(struct tw_thread **thread,
                    const struct tw_thread_options *options,
                    void *(*function)(void *argument),
                    void *argument);

/// Waits for the end of a thread, stores what its function returned in `*result` (which may be
/// NULL), and gives the handle up. Switches threads while it waits. May be called from ordinary
/// threads.
///
/// Returns 0.
int tw_thread_join(struct tw_thread *thread, void **result);

/// Gives the handle up; the thread goes on, and its result is dropped. Never switches threads.
void tw_thread_detach(struct tw_thread *thread);

/// Returns whether the thread has ended, so that joining it does not wait. Never switches threads.
bool tw_thread_is_finished(const struct tw_thread *thread);

/// Returns whether the caller is a user thread, and not an ordinary one. Never switches threads.
bool tw_thread_is_user(void);

/// Returns the maximum number of user threads that run at once: the number of kthreads. Without a
/// runtime, the number of CPUs. Never switches threads.
size_t tw_parallelism(void);

/// Lets other runnable threads run first: switches threads.
void tw_yield(void);

/// Waits until the calling thread has a token, and takes it. May return without one. Switches
/// threads while it waits.
void tw_park(void);

/// Gives a thread its token: `tw_park` returns in it, now or at its next call. Never switches
/// threads.
void tw_unpark(const struct tw_thread *thread);

/// Makes a key, whose value is NULL in every thread. At the end of a thread `destructor`, which may
/// be NULL, is called with its value, unless that is NULL; it finds no values of keys, and sets
/// none. Never switches threads.
///
/// Returns 0, or `-EAGAIN` if there are 1024 keys.
int tw_key_create(struct tw_key *key, void (*destructor)(void *value));

/// Deletes a key; destructors of its values are not called. Never switches threads.
///
/// Returns 0, or `-EINVAL` if there is no such key.
int tw_key_delete(struct tw_key key);

/// Sets the calling thread's value. Never switches threads.
///
/// Returns 0, or `-EINVAL` if there is no such key, or in a destructor.
int tw_key_set(struct tw_key key, void *value);

/// Returns the calling thread's value; NULL if it has none. Never switches threads.
void *tw_key_get(struct tw_key key);

/// Gives the core up if the IOKernel reclaims it, or if the thread's time slice is over: a poll
/// point. For long loops, every microsecond or so. Costs a nanosecond or two otherwise: where the
/// compiler is gcc or clang, `tw_poll()` is also a macro that calls `tw_poll_keeping_registers`.
void tw_poll(void);

/// As `tw_poll`, for the macro of that name and for compilers that insert poll points: keeps all
/// general registers and needs no alignment of the stack. Not for calls in C, which would not save
/// the vector registers that it may change.
void tw_poll_keeping_registers(void);

/// Calls `function(argument)` without giving the core up in between, neither at poll points nor by
/// a signal. A request that comes meanwhile is answered at the end: a poll point. For short calls
/// of libraries that are not prepared for a switch. If the function blocks, the process ends.
void tw_no_preempt(void (*function)(void *argument), void *argument);

/// Calls `function(argument)` on an ordinary thread, and waits for it without holding the core: for
/// files, name resolution and other calls that block in the kernel. Returns its result, and the
/// `errno` that it left. Thread-locals in the function are those of the other thread. Switches
/// threads. On an ordinary thread this simply calls the function.
void *tw_blocking(void *(*function)(void *argument), void *argument);

/// Stores the counters. Never switches threads.
void tw_count(struct tw_counters *counters);

/// Locks a mutex. Switches threads while another one holds it; served first come, first served. A
/// thread that holds it already waits for ever.
void tw_mutex_lock(struct tw_mutex *object);

/// Locks a mutex if it is free. Never switches threads.
///
/// Returns 0, or `-EBUSY` if it is held.
int tw_mutex_trylock(struct tw_mutex *object);

/// Unlocks a mutex, which the caller holds. Hands it to the thread that has waited longest. Never
/// switches threads.
void tw_mutex_unlock(struct tw_mutex *object);

/// Locks for reading. Switches threads while a writer holds the lock or waits for it.
void tw_rwlock_read(struct tw_rwlock *object);

/// Locks for reading if no writer holds the lock or waits for it. Never switches threads.
///
/// Returns 0, or `-EBUSY`.
int tw_rwlock_tryread(struct tw_rwlock *object);

/// Unlocks what `tw_rwlock_read` or `tw_rwlock_tryread` has locked. May switch threads.
void tw_rwlock_read_unlock(struct tw_rwlock *object);

/// Locks for writing. Switches threads while another one holds the lock.
void tw_rwlock_write(struct tw_rwlock *object);

/// Locks for writing if no thread holds the lock or waits for it. Never switches threads.
///
/// Returns 0, or `-EBUSY`.
int tw_rwlock_trywrite(struct tw_rwlock *object);

/// Unlocks what `tw_rwlock_write` or `tw_rwlock_trywrite` has locked. May switch threads.
void tw_rwlock_write_unlock(struct tw_rwlock *object);

/// Unlocks the mutex, which the caller holds, waits for a signal, and locks the mutex again.
/// Switches threads. May return without a signal: check the condition in a loop.
void tw_cond_wait(struct tw_cond *object, struct tw_mutex *locked);

/// As `tw_cond_wait`, for `timeout_ns` nanoseconds at most; `TW_FOREVER` waits for ever.
///
/// Returns 0, or `-ETIMEDOUT`. The mutex is locked again in both cases.
int tw_cond_wait_for(struct tw_cond *object, struct tw_mutex *locked, uint64_t timeout_ns);

/// Wakes the thread that has waited longest, if any waits. Never switches threads.
void tw_cond_signal(struct tw_cond *object);

/// Wakes all threads that wait. May switch threads.
void tw_cond_broadcast(struct tw_cond *object);

/// Calls `function(argument)` if no call with this object did before. Switches threads while
/// another one runs the function; when this returns, the function has returned.
void tw_once_call(struct tw_once *object, void (*function)(void *argument), void *argument);

/// Makes a semaphore with `permits` in `*object`. Never switches threads.
void tw_sem_init(struct tw_sem *object, size_t permits);

/// Takes `permits`. Switches threads while there are too few, or others wait.
void tw_sem_acquire(struct tw_sem *object, size_t permits);

/// Takes `permits` if they are there and no thread waits. Never switches threads.
///
/// Returns 0, or `-EAGAIN`.
int tw_sem_tryacquire(struct tw_sem *object, size_t permits);

/// As `tw_sem_acquire`, for `timeout_ns` nanoseconds at most; `TW_FOREVER` waits for ever.
///
/// Returns 0, or `-ETIMEDOUT`.
int tw_sem_acquire_for(struct tw_sem *object, size_t permits, uint64_t timeout_ns);

/// Returns `permits` to the semaphore, and gives them to threads that wait. May switch threads.
void tw_sem_release(struct tw_sem *object, size_t permits);

/// Adds `tasks` to those that `tw_waitgroup_wait` waits for. Never switches threads.
void tw_waitgroup_add(struct tw_waitgroup *object, uint32_t tasks);

/// Ends a task. May switch threads.
///
/// Returns 0, or `-EINVAL` if there is no task.
int tw_waitgroup_done(struct tw_waitgroup *object);

/// Waits until there are no tasks. Switches threads while there are. When all waiting threads have
/// returned, the storage may be given to other use: the `tw_waitgroup_done` that woke them, which
/// may not have returned yet, does not touch it any more.
void tw_waitgroup_wait(struct tw_waitgroup *object);

/// Makes a barrier for `threads` in `*object`. Never switches threads.
void tw_barrier_init(struct tw_barrier *object, size_t threads);

/// Waits until all threads of the barrier have called this; then it can be used again. Switches
/// threads.
///
/// Returns 1 in one of the threads, and 0 in the others.
int tw_barrier_wait(struct tw_barrier *object);

/// Returns the nanoseconds of `CLOCK_MONOTONIC`. Never switches threads, and makes no system call.
uint64_t tw_now_ns(void);

/// Sleeps for so many nanoseconds, with a resolution of 1 us; `TW_FOREVER` for ever. Switches
/// threads; 0 lets others run first.
void tw_sleep_ns(uint64_t duration_ns);

/// Sleeps until the clock of `tw_now_ns` has this value. Switches threads.
void tw_sleep_until_ns(uint64_t deadline_ns);

/// Begins an interval: its first tick is due now. Never switches threads.
///
/// Returns 0, or `-EINVAL` for a period of 0.
int tw_interval_init(struct tw_interval *interval, uint64_t period_ns);

/// Sleeps until the next tick, and returns when it was due. Ticks that are late follow one another
/// at once. Switches threads.
uint64_t tw_interval_tick(struct tw_interval *interval);

/// As `socket`, with `AF_INET` or `AF_INET6` and `SOCK_STREAM` or `SOCK_DGRAM`, also with
/// `SOCK_NONBLOCK`. Returns a descriptor, `TW_FD_BASE` or more, which only functions of Tailwater
/// know. Never switches threads.
///
/// Errors, as -1 and `errno`: `EAFNOSUPPORT`, `EINVAL`, `EPROTONOSUPPORT`, `EMFILE`; `ENXIO` if
/// there is no runtime.
int tw_socket(int domain, int kind, int protocol);

/// As `close`. A call that waits on the descriptor ends as if it had not been closed; the
/// connection is closed after it. Never switches threads.
///
/// Errors: `EBADF`.
int tw_close(int fd);

/// As `bind`. May switch threads.
///
/// Errors: `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL`, `EAFNOSUPPORT`, `EBADF`.
int tw_bind(int fd, const struct sockaddr *own, socklen_t len);

/// As `listen`. The address given to `tw_bind` is taken here, not there. May switch threads.
///
/// Errors: `EADDRINUSE`, `EADDRNOTAVAIL`, `EOPNOTSUPP`, `EINVAL`, `EBADF`.
int tw_listen(int fd, int backlog);

/// As `connect`. Switches threads until the connection is established. A TCP socket that was bound
/// cannot be connected: the runtime chooses the port.
///
/// Errors: `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETDOWN`, `EISCONN`, `EINVAL`, `EBADF`,
/// `EOPNOTSUPP` for a bound TCP socket; on a socket that does not block `EINPROGRESS` and
/// `EALREADY`.
int tw_connect(int fd, const struct sockaddr *peer, socklen_t len);

/// As `accept4`, with `SOCK_NONBLOCK` or 0 as flags. `peer` and `len` may be NULL. Switches threads
/// until there is a connection.
///
/// Errors: `EAGAIN` on a socket that does not block, `EINVAL` if it does not listen and for other
/// flags, `EMFILE`, `EBADF`, `ENETDOWN`.
int tw_accept(int fd, struct sockaddr *peer, socklen_t *len, int flags);

/// As `shutdown`. May switch threads.
///
/// Errors: `ENOTCONN`, `EINVAL`, `EBADF`.
int tw_shutdown(int fd, int how);

/// As `getsockname`. Never switches threads.
///
/// Errors: `EBADF`.
int tw_getsockname(int fd, struct sockaddr *own, socklen_t *len);

/// As `getpeername`. Never switches threads.
///
/// Errors: `ENOTCONN`, `EBADF`.
int tw_getpeername(int fd, struct sockaddr *peer, socklen_t *len);

/// As `read`, and as `recv` without flags: 0 is the end of a stream. Switches threads while there
/// is nothing to read.
///
/// Errors, as -1 and `errno`: `EAGAIN` on a socket that does not block and after `SO_RCVTIMEO`,
/// `ECONNRESET`, `ETIMEDOUT`, `ENOTCONN`, `ENETDOWN`, `EBADF`; for UDP also what became of an
/// earlier datagram, such as `ECONNREFUSED`.
ssize_t tw_read(int fd, void *data, size_t len);

/// As `write`: returns the number of bytes taken, which is `len` on a socket that blocks, unless an
/// error or `SO_SNDTIMEO` comes in between. Switches threads while there is no room.
///
/// Errors: `EAGAIN` on a socket that does not block and after `SO_SNDTIMEO`, `EPIPE` (without a
/// signal), `ECONNRESET`, `ETIMEDOUT`, `ENOTCONN`, `EDESTADDRREQ` or `EINVAL` for UDP without a
/// peer, `EMSGSIZE`, `ENETDOWN`, `EHOSTUNREACH`, `EBADF`.
ssize_t tw_write(int fd, const void *data, size_t len);

/// As `recv`, with `MSG_PEEK` or 0 as flags; otherwise as `tw_read`. Further error: `EOPNOTSUPP`
/// for other flags.
ssize_t tw_recv(int fd, void *data, size_t len, int flags);

/// As `send`, with `MSG_NOSIGNAL` (which is implied) or 0 as flags; otherwise as `tw_write`.
/// Further error: `EOPNOTSUPP` for other flags.
ssize_t tw_send(int fd, const void *data, size_t len, int flags);

/// As `recvfrom`, with `MSG_PEEK` or 0 as flags. `from` and `from_len` may be NULL. A datagram that
/// is longer than the buffer is cut off. Switches threads and fails as `tw_read`.
ssize_t tw_recvfrom(int fd,
                    void *data,
                    size_t len,
                    int flags,
                    struct sockaddr *from,
                    socklen_t *from_len);

/// As `sendto`, with `MSG_NOSIGNAL` or 0 as flags. A NULL address sends to the peer of
/// `tw_connect`. Switches threads and fails as `tw_write`.
ssize_t tw_sendto(int fd,
                  const void *data,
                  size_t len,
                  int flags,
                  const struct sockaddr *to,
                  socklen_t to_len);

/// As `writev`, for TCP: returns the number of bytes taken, which may be fewer than there are.
/// Switches threads and fails as `tw_write`; `EINVAL` for a negative count, `EOPNOTSUPP` for UDP.
ssize_t tw_writev(int fd, const struct iovec *pieces, int count);

/// As `setsockopt`, for `TCP_NODELAY`, `TCP_CORK`, `IP_TTL`, `IPV6_UNICAST_HOPS`, `SO_BROADCAST`,
/// `SO_RCVTIMEO`, `SO_SNDTIMEO`, `SO_RCVBUF`, `SO_SNDBUF`, `SO_LINGER`; `SO_REUSEADDR` has no
/// effect. May switch threads.
///
/// Errors: `ENOPROTOOPT` for another option, or one that the socket has not; `ENOTCONN` for
/// `TCP_CORK` and `SO_LINGER` before there is a connection; `EINVAL`, `EDOM`, `EBADF`.
int tw_setsockopt(int fd, int level, int name, const void *data, socklen_t len);

/// As `getsockopt`, for `SO_ERROR`, `SO_TYPE`, `SO_ACCEPTCONN`, `SO_RCVBUF`, `SO_SNDBUF`,
/// `TCP_NODELAY`: all of type `int`. Never switches threads.
///
/// Errors: `ENOPROTOOPT`, `EINVAL`, `EBADF`.
int tw_getsockopt(int fd, int level, int name, void *data, socklen_t *len);

/// Sets whether calls on a socket return `EAGAIN` instead of waiting, as `fcntl` does with
/// `O_NONBLOCK`. Never switches threads.
///
/// Errors: `EBADF`.
int tw_set_nonblocking(int fd, bool nonblocking);

/// Makes a poller. Free it by `tw_poller_free`. Never switches threads.
struct tw_poller *tw_poller_new(void);

/// Frees a poller that no thread uses. Never switches threads.
void tw_poller_free(struct tw_poller *poller);

/// As `epoll_ctl`, with `TW_CTL_...` and `TW_IN` and the others, which have the numbers of epoll.
/// `event` may be NULL for `TW_CTL_DEL`. A descriptor that is closed leaves the poller. May switch
/// threads.
///
/// Returns 0, or a negative error number: `-EEXIST`, `-ENOENT`, `-EINVAL`, `-EBADF`; `-ENOTCONN`
/// for a TCP socket that neither listens nor connects yet.
int tw_poller_ctl(struct tw_poller *poller, int operation, int fd, const struct tw_event *event);

/// Sets the timer that is reported with `data` and `TW_TIMER`, once, in `after_ns` nanoseconds; one
/// that was set before with the same `data` is moved. Never switches threads.
void tw_poller_set_timer(struct tw_poller *poller, uint64_t data, uint64_t after_ns);

/// Removes the timer with `data`. Never switches threads.
///
/// Returns 0, or `-ENOENT` if there is none.
int tw_poller_clear_timer(struct tw_poller *poller, uint64_t data);

/// Makes one `tw_poller_wait` return, now or later, maybe without events. Never switches threads.
void tw_poller_wake(struct tw_poller *poller);

/// As `epoll_wait`: waits for `timeout_ns` nanoseconds at most (`TW_FOREVER`: for ever), and stores
/// up to `capacity` events, at most 64. Switches threads while there are none.
///
/// Returns their number; 0 after the timeout and after `tw_poller_wake`. `-EINVAL` for a capacity
/// of 0.
int tw_poller_wait(struct tw_poller *poller,
                   struct tw_event *events,
                   size_t capacity,
                   uint64_t timeout_ns);

/// Makes a loop without sockets. Free it by `tw_loop_free`. Never switches threads.
struct tw_loop *tw_loop_new(void);

/// Frees a loop outside its handlers, and closes its sockets. Never switches threads.
void tw_loop_free(struct tw_loop *events);

/// Adds the socket of a descriptor, with the program's name for it: a UDP socket, a TCP socket that
/// listens, or a connection. Stores the loop's name for it in `*handle`, which may be NULL. The
/// loop keeps the socket also if the descriptor is closed; other uses of the descriptor take data
/// away. Several loops may have one listener: each client is reported by one of them. Never
/// switches threads.
///
/// Returns 0, `-EBADF`, `-EALREADY` for a connection that is not established yet, or `-ENOTCONN`
/// for a TCP socket that neither listens nor is connected.
int tw_loop_add(struct tw_loop *events, int fd, uint64_t token, struct tw_handle *handle);

/// Begins a TCP connection; `TW_CONNECTED` or `TW_CLOSED` reports what became of it. What is sent
/// before leaves when it is established. `handle` may be NULL. Never switches threads.
///
/// Returns 0, or a negative error number: `-EINVAL` or `-EAFNOSUPPORT` for the address,
/// `-ENETDOWN`, `-EADDRNOTAVAIL`, `-ENOBUFS`; `-ENXIO` if there is no runtime.
int tw_loop_connect(struct tw_loop *events,
                    const struct sockaddr *peer,
                    socklen_t len,
                    uint64_t token,
                    struct tw_handle *handle);

/// Accepts a connection that `TW_INCOMING` has reported, and names it. Never switches threads.
///
/// Returns 0, `-EBADF` for a handle of no socket, `-EISCONN` if it was accepted before.
int tw_loop_accept(struct tw_loop *events, struct tw_handle handle, uint64_t token);

/// Ends the round and begins the next: what was sent in it leaves, and data that it lent is taken
/// back. Waits for `timeout_ns` nanoseconds at most (`TW_FOREVER`: for ever), and stores up to
/// `capacity` conditions, at most `TW_LOOP_BATCH`. Returns as soon as there is one: a small
/// capacity lets the first reply of a round leave sooner under load. Switches threads.
///
/// A command on one socket may close another one of the same batch, whose conditions then have an
/// invalid handle.
///
/// Returns their number; 0 after the timeout. `-EINVAL` for a capacity of 0. Within a handler of
/// `tw_loop_run` it ends the process.
int tw_loop_poll(struct tw_loop *events,
                 struct tw_condition *conditions,
                 size_t capacity,
                 uint64_t timeout_ns);

/// Polls for ever, and calls `handler(argument, events, condition)` with each condition, in rounds
/// of up to 64, until it returns another number than 0, which is the result. Those of a socket that
/// a handler has closed are dropped; conditions that no handler has seen are the next round's. A
/// handler may be preempted, but not wait: on a user thread a call that would wait ends the
/// process, and so does one that frees the loop. Switches threads.
int tw_loop_run(struct tw_loop *events,
                int (*handler)(void *argument,
                               struct tw_loop *events,
                               const struct tw_condition *condition),
                void *argument);

/// Stores where the data of a connection that is on loan lies, oldest first, in one piece. It stays
/// there until the next round, or until the socket is closed. Never switches threads.
///
/// Returns its length, or `-EBADF` for a handle of no socket, `-EOPNOTSUPP` for one that is no
/// connection.
ssize_t tw_loop_data(struct tw_loop *events, struct tw_handle handle, const void **data);

/// Ends the loan of the first `bytes` of a connection's data: the peer may send as many more after
/// this round. Never switches threads.
///
/// Returns 0, `-EINVAL` if fewer are on loan, `-EBADF`, `-EOPNOTSUPP`.
int tw_loop_consume(struct tw_loop *events, struct tw_handle handle, size_t bytes);

/// Returns 1 if `TW_EOF` or `TW_CLOSED` was reported of a connection, 0 if not, `-EBADF` or
/// `-EOPNOTSUPP`. Never switches threads.
int tw_loop_is_eof(struct tw_loop *events, struct tw_handle handle);

/// Sends as many bytes as there is room for. They are copied, and leave at the end of the round. If
/// those are not all, `TW_WINDOW` reports when there is room. Never switches threads.
///
/// Returns the number of bytes taken, or a negative error number: `-EPIPE` after
/// `tw_loop_shutdown`, `-ESHUTDOWN` if the connection is over, `-ENOTCONN` if it waits to be
/// accepted, `-EBADF`, `-EOPNOTSUPP`.
ssize_t tw_loop_send(struct tw_loop *events, struct tw_handle handle, const void *data, size_t len);

/// As `tw_loop_send`, with several pieces; `-EINVAL` for a negative count.
ssize_t tw_loop_sendv(struct tw_loop *events,
                      struct tw_handle handle,
                      const struct iovec *pieces,
                      int count);

/// Makes bytes for `tw_loop_send_shared`, copied from `data`. Give them up by `tw_shared_free`.
/// Never switches threads.
struct tw_shared *tw_shared_new(const void *data, size_t len);

/// Gives bytes up; connections keep what they have taken until it is acknowledged. Never switches
/// threads.
void tw_shared_free(struct tw_shared *shared);

/// As `tw_loop_send`, for the bytes of `shared` from `offset` on, without a copy: the connection
/// keeps a reference until the peer has acknowledged them. Worth it from 2 KiB on; less is copied.
/// `-EINVAL` for an offset beyond the end.
ssize_t tw_loop_send_shared(struct tw_loop *events,
                            struct tw_handle handle,
                            const struct tw_shared *shared,
                            size_t offset);

/// Sets whether each acknowledgment of a connection is reported by `TW_WINDOW`, also while every
/// send has room: for programs that bound what is on the way to a peer. Several acknowledgments may
/// share a condition, and while more than three quarters of the send buffer are in use they wait.
/// Never switches threads.
///
/// Returns 0, `-EBADF` for a handle of no socket, `-EOPNOTSUPP` for one that is no connection.
int tw_loop_report_acknowledged(struct tw_loop *events, struct tw_handle handle, bool report);

/// Sends a datagram at once, to `to`, or to the socket's own peer if that is NULL. Never switches
/// threads.
///
/// Returns 0, or a negative error number: `-ENOBUFS` if the egress ring is full (send it in a later
/// round, or drop it), `-EINVAL` or `-EAFNOSUPPORT` for the address, `-EBADF`, `-EOPNOTSUPP`, and
/// those of `tw_sendto`.
int tw_loop_sendto(struct tw_loop *events,
                   struct tw_handle handle,
                   const void *data,
                   size_t len,
                   const struct sockaddr *to,
                   socklen_t to_len);

/// Ends this side's stream behind what was sent. When the peer has ended its own, `TW_CLOSED`
/// reports that. Never switches threads.
///
/// Returns 0, or a negative error number, as `tw_loop_send`.
int tw_loop_shutdown(struct tw_loop *events, struct tw_handle handle);

/// Closes a socket, or rejects one that waits to be accepted. Nothing more is reported of it,
/// except what the present batch has already. What was sent is delivered; if data that was received
/// is not consumed, the peer gets a reset instead. Never switches threads.
///
/// Returns 0, or `-EBADF` for a handle of no socket.
int tw_loop_close(struct tw_loop *events, struct tw_handle handle);

/// Has the loop report `TW_WOKEN`, in its next round. May be called by any thread. Never switches
/// threads.
void tw_loop_wake(const struct tw_loop *events);

/// Appends bytes to a reply. Never switches threads.
void tw_reply_write(struct tw_reply *reply, const void *data, size_t len);

/// Starts a server of classified requests behind `fd`, a bound UDP socket or a TCP socket that
/// listens, and returns; short requests do not wait behind long ones. The server keeps the socket
/// also if the descriptor is closed. `service` is copied, and what its `argument` points to has to
/// live as long as the process. `*server`, which may be NULL, is set to a handle for statistics.
/// May switch threads.
///
/// Returns 0, or a negative error number: `-EINVAL` for a field or a policy, `-ENOTCONN` for a TCP
/// socket that does not listen, `-ENOMEM`, `-EBADF`; `-EBUSY` or `-ENOTSUP` if there is no core for
/// a dispatcher of its own; `-ENXIO` if there is no runtime.
int tw_serve(int fd, const struct tw_service *service, struct tw_server **server);

/// Stores what became of the requests of each class, at most `capacity`, and returns the number of
/// classes. Never switches threads.
size_t tw_server_stats(const struct tw_server *server,
                       struct tw_class_stats *stats,
                       size_t capacity);

/// Stores the numbers of the cores that the program holds, at most `capacity`, in ascending order,
/// and returns how many it holds. Standalone that is none. Never switches threads.
size_t tw_cores_held(uint32_t *numbers, size_t capacity);

/// Requests cores: `counts[p]` at priority `p`, of which there are 8 and 0 is served first.
/// Replaces what was requested before; does not wait. Without an IOKernel there is nothing to
/// request. Never switches threads.
///
/// Returns 0, `-EINVAL` for more than 8 priorities, `-ENXIO` if there is no runtime.
int tw_cores_request(const uint32_t *counts, size_t priorities);

/// Returns how many cores are requested, at all priorities together. Never switches threads.
size_t tw_cores_requested(void);

/// Returns how many of the requested cores are granted. Never switches threads.
size_t tw_cores_granted(void);

/// Begins to look for changes, once in `period_ns` nanoseconds. The first change has gained the
/// cores held then. Free it by `tw_core_changes_free`. Never switches threads.
struct tw_core_changes *tw_core_changes_new(uint64_t period_ns);

/// Frees what `tw_core_changes_new` has made. Never switches threads.
void tw_core_changes_free(struct tw_core_changes *changes);

/// Waits for a change. Stores the cores that came, at most `capacity`, in `gained`, and those that
/// went in `lost`, and how many they are in `*n_gained` and `*n_lost`. Switches threads. Cores that
/// came and went between two looks are not reported. There has to be a runtime.
void tw_core_changes_next(struct tw_core_changes *changes,
                          uint32_t *gained,
                          size_t *n_gained,
                          uint32_t *lost,
                          size_t *n_lost,
                          size_t capacity);

/// Makes a channel for `capacity` messages that wait; with 0 a sender waits for a receiver, and
/// with `TW_UNBOUNDED` there is no limit. Free it by `tw_channel_free`. Never switches threads.
struct tw_channel *tw_channel_new(size_t capacity);

/// Frees a channel that no thread uses. Messages in it are dropped. Never switches threads.
void tw_channel_free(struct tw_channel *channel);

/// Ends sending: later calls of `tw_channel_send` fail, and receivers get the messages in the
/// channel and then `-EPIPE`. Never switches threads.
void tw_channel_close(struct tw_channel *channel);

/// Sends a message. Switches threads while the channel is full, for `timeout_ns` nanoseconds at
/// most; `TW_FOREVER` waits for ever, 0 never.
///
/// Returns 0, `-EAGAIN` if a wait of 0 finds the channel full, `-ETIMEDOUT` after a longer one,
/// `-EPIPE` if the channel is closed.
int tw_channel_send(struct tw_channel *channel, void *message, uint64_t timeout_ns);

/// Receives a message into `*message`. Switches threads while the channel is empty, for
/// `timeout_ns` nanoseconds at most; `TW_FOREVER` waits for ever, 0 never.
///
/// Returns 0, `-EAGAIN` if a wait of 0 finds no message, `-ETIMEDOUT` after a longer one, `-EPIPE`
/// if the channel is closed and empty.
int tw_channel_receive(struct tw_channel *channel, void **message, uint64_t timeout_ns);

/// Returns the number of messages in the channel. Never switches threads.
size_t tw_channel_len(const struct tw_channel *channel);

/// Waits for the first of several sends and receives, for `timeout_ns` nanoseconds at most
/// (`TW_FOREVER`: for ever, 0: not at all), and completes exactly that one: one at random if
/// several can be. Switches threads while none can be completed.
///
/// Returns its index, with `status` and, for a receive, `message` set in it; `-EAGAIN` if a wait of
/// 0 finds none, `-ETIMEDOUT` after a longer one, `-EINVAL` for no operation, more than
/// `TW_SELECT_MAX`, or another kind.
int tw_select(struct tw_operation *operations, size_t count, uint64_t timeout_ns);

/// Makes a cell with an address. Free it by `tw_rcu_free`. Never switches threads.
struct tw_rcu *tw_rcu_new(void *value);

/// Frees a cell that no thread uses, and returns its address, for the caller to free. Never
/// switches threads.
void *tw_rcu_free(struct tw_rcu *rcu);

/// Calls `read(value, argument)` with the address that is in the cell, which stays valid until
/// `read` returns. Costs no locked instruction. `read` is not preempted: it must be short, and may
/// not wait for anything, else the process ends. Never switches threads.
void tw_rcu_read(const struct tw_rcu *rcu,
                 void (*read)(void *value, void *argument),
                 void *argument);

/// Replaces the address, and returns the old one, once all readers of it have ended: the caller may
/// free what it points to. Switches threads while it waits.
void *tw_rcu_replace(struct tw_rcu *rcu, void *value);

/// As `malloc` of the C library, from whose heap the block comes; may be called on user threads.
/// Programs call `malloc`, which is this function in libtailwater-malloc. Never switches threads.
void *tw_malloc(size_t size);

/// As `calloc`: see `tw_malloc`. Never switches threads.
void *tw_calloc(size_t count, size_t size);

/// As `realloc`: see `tw_malloc`. Never switches threads.
void *tw_realloc(void *block, size_t size);

/// As `free`: see `tw_malloc`. Never switches threads.
void tw_free(void *block);

/// As `aligned_alloc`: see `tw_malloc`. Never switches threads.
void *tw_aligned_alloc(size_t align, size_t size);

/// As `posix_memalign`: see `tw_malloc`. Never switches threads.
int tw_posix_memalign(void **out, size_t align, size_t size);

/// Registers `destructor(object)` for the end of the calling thread, as `__cxa_thread_atexit_impl`,
/// which is this function in libtailwater-malloc. Never switches threads.
int tw_thread_atexit(void (*destructor)(void *object), void *object, void *dso);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TAILWATER_H */

#ifndef TAILWATER_H_INITIALISERS
#define TAILWATER_H_INITIALISERS

/// Capacity of a channel without a limit.
#define TW_UNBOUNDED SIZE_MAX

#if defined(__x86_64__) && defined(__GNUC__)
/// A poll point: tw_poll() without a call that the compiler sees, so that loops keep their variables
/// in registers. The function around it may have its red zone in use.
static inline void tw_poll_inline(void) {
    __asm__ volatile(
        "leaq -128(%%rsp), %%rsp\n\t"
        "call *tw_poll_keeping_registers@GOTPCREL(%%rip)\n\t"
        "leaq 128(%%rsp), %%rsp" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
              "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "st", "st(1)", "st(2)", "st(3)",
              "st(4)", "st(5)", "st(6)", "st(7)",
#ifdef __AVX512F__
              "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24",
              "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k0", "k1", "k2",
              "k3", "k4", "k5", "k6", "k7",
#endif
              "memory", "cc");
}
/// The same.
#define tw_poll() tw_poll_inline()
#endif

// Initialisers, also of static objects. An object of zero bytes is initialised as well.

/// Initialises a `tw_mutex`.
#define TW_MUTEX_INIT {{0}}
/// Initialises a `tw_rwlock`.
#define TW_RWLOCK_INIT {{0}}
/// Initialises a `tw_cond`.
#define TW_COND_INIT {{0}}
/// Initialises a `tw_once`.
#define TW_ONCE_INIT {{0}}
/// Initialises a `tw_sem` without permits.
#define TW_SEM_INIT {{0}}
/// Initialises a `tw_waitgroup`.
#define TW_WAITGROUP_INIT {{0}}
#ifdef __cplusplus
template <class T> constexpr T tw_sized() {
    T object{};
    object.size = sizeof(T);
    return object;
}
#define TW_CONFIG_INIT tw_sized<struct tw_config>()
#define TW_THREAD_OPTIONS_INIT tw_sized<struct tw_thread_options>()
#define TW_SERVICE_INIT tw_sized<struct tw_service>()
#else
/// Initialises a `tw_config` without settings.
#define TW_CONFIG_INIT {.size = sizeof(struct tw_config)}
/// Initialises `tw_thread_options` without options.
#define TW_THREAD_OPTIONS_INIT {.size = sizeof(struct tw_thread_options)}
/// Initialises a `tw_service`, of which `handle` has to be set.
#define TW_SERVICE_INIT {.size = sizeof(struct tw_service)}
#endif

#endif /* TAILWATER_H_INITIALISERS */
