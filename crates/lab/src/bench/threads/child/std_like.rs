//! Operations of libraries with the interface of `std`: `std` itself, Tailwater and `may`.
//!
//! A macro expands them for each library, so all three run the same lines.

/// Expands to a module with `perform` for one library.
macro_rules! operations {
    ($(#[$doc:meta])* $name:ident, $thread:path, $sync:path) => {
        $(#[$doc])*
        pub mod $name {
            use std::hint::black_box;
            use std::sync::Arc;
            use std::sync::OnceLock;
            use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
            use std::time::Instant;

            use tailwater_shm::Clock;
            use $sync::{Condvar, Mutex, RwLock, mpsc};
            use $thread as thread;

            use crate::bench::threads::child::samples::{self, Samples, mean};
            use crate::bench::threads::operation::{BATCH, CROWDS, FAN, LIVE, Operation};
            use crate::bench::threads::protocol::Answer;

            const SOUND: &str = "the operations do not panic";

            /// Performs `op` `n` times on the calling thread and others; `None` if the library
            /// cannot.
            pub fn perform(op: Operation, n: u64, kthreads: u16, clock: Clock) -> Option<Answer> {
                match op {
                    Operation::Mutex => mean(n, mutex),
                    Operation::Yield => mean(n, yields),
                    Operation::Condvar => mean(n, condvar),
                    Operation::Channel => mean(n, channel),
                    Operation::ChannelHop => mean(n, channel_hops),
                    Operation::RwlockRead => mean(n, rwlock_read),
                    Operation::RwlockWrite => mean(n, rwlock_write),
                    Operation::SpawnJoin => mean(n, spawn_join),
                    Operation::FanOut => mean(n.next_multiple_of(FAN), fan_out),
                    Operation::NullYield => mean(n, |n| (0..n).for_each(|_| thread::yield_now())),
                    Operation::ExitTurnaround => exit_turnaround(n, clock),
                    Operation::CreateRemote => create_remote(n, clock),
                    Operation::NotifyRemote => notify_remote(n, clock),
                    Operation::UnparkRemote => unpark_remote(n, clock),
                    Operation::UnparkAmong(crowd) => {
                        unpark_among(n, CROWDS[usize::from(crowd)].0, clock)
                    }
                    Operation::Throughput => mean(n, |n| chains(n, 3 * u64::from(kthreads))),
                    Operation::Dispatch => {
                        let start = |batch: Arc<Batch>| {
                            drop(thread::spawn(move || batch.run(clock)));
                        };
                        mean(n, |n| dispatch(n, LIVE * u64::from(kthreads), start))
                    }
                    Operation::Idle => Some(idle(n)),
                    Operation::DispatchPlaced
                    | Operation::ChannelMany
                    | Operation::Select
                    | Operation::RcuRead
                    | Operation::RcuReplace
                    | Operation::Line
                    | Operation::CasPair
                    | Operation::Rdtsc => None,
                }
            }

            fn mutex(n: u64) {
                let counter = Mutex::new(0u64);
                for _ in 0..n {
                    *black_box(&counter).lock().expect(SOUND) += 1;
                }
            }

            fn yields(n: u64) {
                let threads = [(); 2].map(|()| {
                    thread::spawn(move || (0..n / 2).for_each(|_| thread::yield_now()))
                });
                threads.into_iter().for_each(|t| t.join().expect(SOUND));
            }

            fn condvar(n: u64) {
                let table = Arc::new((Mutex::new(0u64), Condvar::new()));
                let threads = [0, 1].map(|me| {
                    let table = Arc::clone(&table);
                    thread::spawn(move || {
                        for _ in 0..n / 2 {
                            let mut turn = table.0.lock().expect(SOUND);
                            while *turn % 2 != me {
                                turn = table.1.wait(turn).expect(SOUND);
                            }
                            *turn += 1;
                            table.1.notify_one();
                        }
                    })
                });
                threads.into_iter().for_each(|t| t.join().expect(SOUND));
            }

            fn channel(n: u64) {
                let (sender, receiver) = mpsc::channel();
                for i in 0..n {
                    sender.send(black_box(i)).expect(SOUND);
                    black_box(receiver.recv().expect(SOUND));
                }
            }

            fn channel_hops(n: u64) {
                let (there, from_there) = mpsc::channel();
                let (back, from_back) = mpsc::channel();
                there.send(0).expect(SOUND);
                let threads = [(back, from_there), (there, from_back)].map(|(sender, receiver)| {
                    thread::spawn(move || {
                        for _ in 0..n / 2 {
                            let turn: u64 = receiver.recv().expect(SOUND);
                            // The last message has no receiver.
                            let _ = sender.send(turn + 1);
                        }
                    })
                });
                threads.into_iter().for_each(|t| t.join().expect(SOUND));
            }

            fn rwlock_read(n: u64) {
                let value = RwLock::new(1u64);
                for _ in 0..n {
                    black_box(*black_box(&value).read().expect(SOUND));
                }
            }

            fn rwlock_write(n: u64) {
                let value = RwLock::new(0u64);
                for _ in 0..n {
                    *black_box(&value).write().expect(SOUND) += 1;
                }
            }

            fn spawn_join(n: u64) {
                for i in 0..n {
                    black_box(thread::spawn(move || black_box(i)).join().expect(SOUND));
                }
            }

            fn fan_out(n: u64) {
                let mut threads = Vec::with_capacity(FAN as usize);
                for _ in 0..n / FAN {
                    threads.extend((0..FAN).map(|i| thread::spawn(move || black_box(i))));
                    for thread in threads.drain(..) {
                        black_box(thread.join().expect(SOUND));
                    }
                }
            }

            fn exit_turnaround(n: u64, clock: Clock) -> Option<Answer> {
                let mut cycles = Vec::with_capacity(n as usize);
                for _ in 0..n / BATCH as u64 {
                    let threads: Vec<_> =
                        (0..BATCH).map(|i| thread::spawn(move || samples::live(i))).collect();
                    threads.into_iter().for_each(|t| t.join().expect(SOUND));
                    samples::add_turnarounds(&mut cycles);
                }
                samples::turnaround(cycles, clock)
            }

            fn create_remote(n: u64, clock: Clock) -> Option<Answer> {
                let mut samples = Samples::default();
                for _ in 0..n {
                    let (thread, go_on) = samples.time(clock, || thread::spawn(samples::stamp));
                    thread.join().expect(SOUND);
                    if !go_on {
                        break;
                    }
                }
                samples.answer(clock)
            }

            fn notify_remote(n: u64, clock: Clock) -> Option<Answer> {
                samples::announce(0);
                // The current turn; MAX ends the waiting thread.
                let table = Arc::new((Mutex::new(0u64), Condvar::new()));
                let waiter = thread::spawn({
                    let table = Arc::clone(&table);
                    move || {
                        let mut called = table.0.lock().expect(SOUND);
                        let mut turn = 1;
                        while *called != u64::MAX {
                            samples::announce(turn);
                            while *called < turn {
                                called = table.1.wait(called).expect(SOUND);
                                samples::stamp();
                            }
                            turn += 1;
                        }
                    }
                });
                let mut samples = Samples::default();
                for turn in 1..=n {
                    while !samples::waits(turn) {
                        thread::yield_now();
                    }
                    // The waiting thread frees the lock when it is on the list.
                    *table.0.lock().expect(SOUND) = turn;
                    if !samples.time(clock, || table.1.notify_one()).1 {
                        break;
                    }
                }
                *table.0.lock().expect(SOUND) = u64::MAX;
                table.1.notify_one();
                waiter.join().expect(SOUND);
                samples.answer(clock)
            }

            fn unpark_remote(n: u64, clock: Clock) -> Option<Answer> {
                samples::announce(0);
                // The current turn; MAX ends the waiting thread.
                let called = Arc::new(AtomicU64::new(0));
                let (sender, handle) = mpsc::channel();
                let waiter = thread::spawn({
                    let called = Arc::clone(&called);
                    move || {
                        sender.send(thread::current()).expect(SOUND);
                        let mut turn = 1;
                        while called.load(Ordering::Acquire) != u64::MAX {
                            samples::announce(turn);
                            while called.load(Ordering::Acquire) < turn {
                                thread::park();
                                samples::stamp();
                            }
                            turn += 1;
                        }
                    }
                });
                let handle = handle.recv().expect(SOUND);
                let mut samples = Samples::default();
                for turn in 1..=n {
                    // It parks a moment later, before the time is taken.
                    while !samples::waits(turn) {
                        thread::yield_now();
                    }
                    called.store(turn, Ordering::Release);
                    if !samples.time(clock, || handle.unpark()).1 {
                        break;
                    }
                }
                called.store(u64::MAX, Ordering::Release);
                handle.unpark();
                waiter.join().expect(SOUND);
                samples.answer(clock)
            }

            /// As `unpark_remote`, while `others` more threads are parked.
            fn unpark_among(n: u64, others: u64, clock: Clock) -> Option<Answer> {
                let ended = Arc::new(AtomicBool::new(false));
                let parked = Arc::new(AtomicU64::new(0));
                let (sender, handles) = mpsc::channel();
                let threads: Vec<_> = (0..others)
                    .map(|_| {
                        let (ended, parked) = (Arc::clone(&ended), Arc::clone(&parked));
                        let sender = sender.clone();
                        thread::spawn(move || {
                            sender.send(thread::current()).expect(SOUND);
                            // Relaxed: a counter. It parks a moment later.
                            parked.fetch_add(1, Ordering::Relaxed);
                            while !ended.load(Ordering::Acquire) {
                                thread::park();
                            }
                        })
                    })
                    .collect();
                while parked.load(Ordering::Relaxed) < others {
                    thread::yield_now();
                }
                let answer = unpark_remote(n, clock);
                // Release: pairs with the Acquire of those that are woken.
                ended.store(true, Ordering::Release);
                drop(sender);
                while let Ok(thread) = handles.recv() {
                    thread.unpark();
                }
                threads.into_iter().for_each(|t| t.join().expect(SOUND));
                answer
            }

            /// Threads that are started together.
            pub struct Batch {
                left: AtomicU64,
                ended: Mutex<bool>,
                last: Condvar,
            }

            impl Batch {
                /// The body of each of them.
                pub fn run(&self, clock: Clock) {
                    if samples::child(clock, &self.left) {
                        *self.ended.lock().expect(SOUND) = true;
                        self.last.notify_one();
                    }
                }
            }

            /// Has `start` start `n` threads in batches of `live`, each of which begins when all
            /// threads of the one before have ended (Arachne figure 2a).
            pub fn dispatch(n: u64, live: u64, start: impl Fn(Arc<Batch>)) {
                let mut left = n;
                while left > 0 {
                    let size = left.min(live);
                    let (ended, last) = (Mutex::new(false), Condvar::new());
                    let batch = Arc::new(Batch { left: AtomicU64::new(size), ended, last });
                    (0..size).for_each(|_| start(Arc::clone(&batch)));
                    let mut ended = batch.ended.lock().expect(SOUND);
                    while !*ended {
                        ended = batch.last.wait(ended).expect(SOUND);
                    }
                    left -= size;
                }
            }

            /// Number of chains that have ended.
            type Ended = Arc<(Mutex<u64>, Condvar)>;

            fn chains(n: u64, chains: u64) {
                let ended: Ended = Arc::new((Mutex::new(0), Condvar::new()));
                for _ in 0..chains {
                    chain(n / chains, Arc::clone(&ended));
                }
                let mut count = ended.0.lock().expect(SOUND);
                while *count < chains {
                    count = ended.1.wait(count).expect(SOUND);
                }
            }

            /// Each thread starts the next and ends (Arachne figure 2b).
            fn chain(left: u64, ended: Ended) {
                if left > 0 {
                    drop(thread::spawn(move || chain(left - 1, ended)));
                } else {
                    *ended.0.lock().expect(SOUND) += 1;
                    ended.1.notify_one();
                }
            }

            /// The place where idle threads wait.
            #[derive(Default)]
            struct Hall {
                state: Mutex<HallState>,
                /// Notified when all threads wait.
                full: Condvar,
                /// Notified to end the threads. Each notifies the next: waking a million in one
                /// call would hold up the core.
                gate: Condvar,
            }

            #[derive(Default)]
            struct HallState {
                waiting: u64,
                open: bool,
            }

            /// Measures idle threads. A second run of the same size reuses the stacks of the first.
            fn idle(n: u64) -> Answer {
                static BEFORE: OnceLock<f64> = OnceLock::new();
                let before = *BEFORE.get_or_init(samples::resident_kib);
                let hall = Arc::new(Hall::default());
                let start = Instant::now();
                let threads: Vec<_> = (0..n)
                    .map(|_| {
                        let hall = Arc::clone(&hall);
                        thread::spawn(move || {
                            let mut state = hall.state.lock().expect(SOUND);
                            state.waiting += 1;
                            if state.waiting == n {
                                hall.full.notify_one();
                            }
                            while !state.open {
                                state = hall.gate.wait(state).expect(SOUND);
                            }
                            hall.gate.notify_one();
                        })
                    })
                    .collect();
                let mut state = hall.state.lock().expect(SOUND);
                while state.waiting < n {
                    state = hall.full.wait(state).expect(SOUND);
                }
                let ns = start.elapsed().as_nanos() as f64 / n as f64;
                let kib = (samples::resident_kib() - before) / n as f64;
                state.open = true;
                drop(state);
                hall.gate.notify_one();
                threads.into_iter().for_each(|t| t.join().expect(SOUND));
                Answer { ns, kib: Some(kib) }
            }
        }
    };
}

operations!(
    /// Tailwater.
    user,
    tailwater::thread,
    tailwater::sync
);
operations!(
    /// `std`.
    os,
    std::thread,
    std::sync
);
operations!(
    /// `may`.
    coroutines,
    super::may_thread,
    may::sync
);

/// Names of `std` for functions of `may` with other names.
mod may_thread {
    pub use may::coroutine::{JoinHandle, current, park, yield_now};

    /// Starts a coroutine. As `may` requires, the operations use neither thread-local storage nor
    /// much stack.
    pub fn spawn<F, T>(main: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        may::go!(main)
    }
}
