//! Operations of Tokio: tasks for threads, and `Notify` for the condition variable, which Tokio
//! lacks.
//!
//! On one core the runtime is the current-thread one. On more it has a worker for each core, and
//! operations across cores start on the ordinary thread that owns the runtime: a worker keeps a
//! task that it starts in a slot without stealing.

use std::future::poll_fn;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Instant;

use tailwater_shm::Clock;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{Mutex, Notify, RwLock, Semaphore};
use tokio::task::{spawn, yield_now};

use super::samples::{self, Samples};
use crate::bench::threads::operation::{BATCH, FAN, LIVE, Operation};
use crate::bench::threads::protocol::{Answer, read_order, serve};

const SOUND: &str = "the operations do not panic";

/// Serves until standard input ends.
///
/// # Errors
/// If the runtime does not start, or standard input or output fails.
pub fn serve_tasks(kthreads: u16, clock: Clock) -> anyhow::Result<()> {
    let runtime = match kthreads {
        1 => Builder::new_current_thread().build()?,
        _ => Builder::new_multi_thread().worker_threads(kthreads.into()).build()?,
    };
    serve(read_order, |op, n| match op {
        Operation::CreateRemote => create_remote(&runtime, n, clock),
        Operation::NotifyRemote => notify_remote(&runtime, n, clock),
        _ => runtime.block_on(async move {
            // In a task: Tokio polls the outermost future in another way.
            spawn(perform(op, n, kthreads, clock)).await.expect(SOUND)
        }),
    })
}

async fn perform(op: Operation, n: u64, kthreads: u16, clock: Clock) -> Option<Answer> {
    let n = if op == Operation::FanOut { n.next_multiple_of(FAN) } else { n };
    let start = Instant::now();
    match op {
        Operation::Mutex => mutex(n).await,
        Operation::Yield => yields(n).await,
        Operation::Condvar => hops(n).await,
        Operation::Channel => channel(n).await,
        Operation::ChannelHop => channel_hops(n).await,
        Operation::Select => select(n).await,
        Operation::RwlockRead => rwlock_read(n).await,
        Operation::RwlockWrite => rwlock_write(n).await,
        Operation::SpawnJoin => spawn_join(n).await,
        Operation::FanOut => fan_out(n).await,
        Operation::NullYield => null_yields(n).await,
        Operation::Throughput => chains(n, 3 * u64::from(kthreads)).await,
        Operation::Dispatch => dispatch(n, LIVE * u64::from(kthreads), clock).await,
        Operation::ExitTurnaround => return exit_turnaround(n, clock).await,
        Operation::Idle => return Some(idle(n).await),
        _ => return None,
    }
    Some(Answer::ns(start.elapsed().as_nanos() as f64 / n as f64))
}

async fn mutex(n: u64) {
    let counter = Mutex::new(0u64);
    for _ in 0..n {
        *black_box(&counter).lock().await += 1;
    }
}

async fn null_yields(n: u64) {
    for _ in 0..n {
        yield_now().await;
    }
}

async fn yields(n: u64) {
    let tasks = [spawn(null_yields(n / 2)), spawn(null_yields(n / 2))];
    for task in tasks {
        task.await.expect(SOUND);
    }
}

async fn hops(n: u64) {
    let sides = Arc::new([Notify::new(), Notify::new()]);
    let tasks = [0, 1].map(|me| {
        let sides = Arc::clone(&sides);
        spawn(async move {
            for _ in 0..n / 2 {
                sides[me].notified().await;
                sides[1 - me].notify_one();
            }
        })
    });
    sides[0].notify_one();
    for task in tasks {
        task.await.expect(SOUND);
    }
}

async fn channel(n: u64) {
    let (sender, mut receiver) = unbounded_channel();
    for i in 0..n {
        sender.send(black_box(i)).expect(SOUND);
        black_box(receiver.recv().await.expect(SOUND));
    }
}

async fn channel_hops(n: u64) {
    let (there, from_there) = unbounded_channel();
    let (back, from_back) = unbounded_channel();
    there.send(0).expect(SOUND);
    let tasks = [(back, from_there), (there, from_back)].map(|(sender, mut receiver)| {
        spawn(async move {
            for _ in 0..n / 2 {
                let turn: u64 = receiver.recv().await.expect(SOUND);
                // The last message has no receiver.
                let _ = sender.send(turn + 1);
            }
        })
    });
    for task in tasks {
        task.await.expect(SOUND);
    }
}

async fn select(n: u64) {
    let (sender, mut receiver) = unbounded_channel();
    let (_other, mut never) = unbounded_channel::<u64>();
    for i in 0..n {
        sender.send(black_box(i)).expect(SOUND);
        // As `tokio::select!` in its biased order, without the random choice of the first branch.
        let message = poll_fn(|context| match never.poll_recv(context) {
            Poll::Ready(message) => Poll::Ready(message),
            Poll::Pending => receiver.poll_recv(context),
        })
        .await;
        black_box(message.expect(SOUND));
    }
}

async fn rwlock_read(n: u64) {
    let value = RwLock::new(1u64);
    for _ in 0..n {
        black_box(*black_box(&value).read().await);
    }
}

async fn rwlock_write(n: u64) {
    let value = RwLock::new(0u64);
    for _ in 0..n {
        *black_box(&value).write().await += 1;
    }
}

async fn spawn_join(n: u64) {
    for i in 0..n {
        black_box(spawn(async move { black_box(i) }).await.expect(SOUND));
    }
}

async fn fan_out(n: u64) {
    let mut tasks = Vec::with_capacity(FAN as usize);
    for _ in 0..n / FAN {
        tasks.extend((0..FAN).map(|i| spawn(async move { black_box(i) })));
        for task in tasks.drain(..) {
            task.await.expect(SOUND);
        }
    }
}

async fn exit_turnaround(n: u64, clock: Clock) -> Option<Answer> {
    let mut cycles = Vec::with_capacity(n as usize);
    for _ in 0..n / BATCH as u64 {
        let tasks: Vec<_> = (0..BATCH).map(|i| spawn(async move { samples::live(i) })).collect();
        for task in tasks {
            task.await.expect(SOUND);
        }
        samples::add_turnarounds(&mut cycles);
    }
    samples::turnaround(cycles, clock)
}

async fn chains(n: u64, chains: u64) {
    let ended = Arc::new(Semaphore::new(0));
    for _ in 0..chains {
        chain(n / chains, Arc::clone(&ended));
    }
    ended.acquire_many(chains as u32).await.expect("the semaphore is never closed").forget();
}

/// Each task starts the next and ends (Arachne figure 2b).
fn chain(left: u64, ended: Arc<Semaphore>) {
    if left > 0 {
        drop(spawn(async move { chain(left - 1, ended) }));
    } else {
        ended.add_permits(1);
    }
}

/// Starts `n` tasks that compute, in batches of `live` (Arachne figure 2a).
async fn dispatch(n: u64, live: u64, clock: Clock) {
    let mut left = n;
    while left > 0 {
        let size = left.min(live);
        let batch = Arc::new((AtomicU64::new(size), Notify::new()));
        for _ in 0..size {
            let batch = Arc::clone(&batch);
            drop(spawn(async move {
                if samples::child(clock, &batch.0) {
                    batch.1.notify_one();
                }
            }));
        }
        batch.1.notified().await;
        left -= size;
    }
}

/// Measures idle tasks. A second run of the same size reuses the memory of the first.
async fn idle(n: u64) -> Answer {
    static BEFORE: OnceLock<f64> = OnceLock::new();
    let before = *BEFORE.get_or_init(samples::resident_kib);
    let gate = Arc::new(Notify::new());
    let waiting = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..n)
        .map(|_| {
            let (gate, waiting) = (Arc::clone(&gate), Arc::clone(&waiting));
            spawn(async move {
                // Relaxed: a counter.
                waiting.fetch_add(1, Ordering::Relaxed);
                gate.notified().await;
            })
        })
        .collect();
    while waiting.load(Ordering::Relaxed) < n {
        yield_now().await;
    }
    let ns = start.elapsed().as_nanos() as f64 / n as f64;
    let kib = (samples::resident_kib() - before) / n as f64;
    gate.notify_waiters();
    for task in tasks {
        task.await.expect(SOUND);
    }
    Answer { ns, kib: Some(kib) }
}

fn create_remote(runtime: &Runtime, n: u64, clock: Clock) -> Option<Answer> {
    let mut samples = Samples::default();
    for _ in 0..n {
        let (task, go_on) = samples.time(clock, || runtime.spawn(async { samples::stamp() }));
        runtime.block_on(task).expect(SOUND);
        if !go_on {
            break;
        }
    }
    samples.answer(clock)
}

fn notify_remote(runtime: &Runtime, n: u64, clock: Clock) -> Option<Answer> {
    samples::announce(0);
    let shared = Arc::new((Notify::new(), AtomicBool::new(false)));
    let waiter = runtime.spawn({
        let shared = Arc::clone(&shared);
        async move {
            let mut turn = 1;
            // Acquire pairs with the store that ends this task, below.
            while !shared.1.load(Ordering::Acquire) {
                samples::announce(turn);
                shared.0.notified().await;
                samples::stamp();
                turn += 1;
            }
        }
    });
    let mut samples = Samples::default();
    for turn in 1..=n {
        // The pause of `Samples` covers the few instructions until the task is on the list.
        while !samples::waits(turn) {
            std::thread::yield_now();
        }
        if !samples.time(clock, || shared.0.notify_one()).1 {
            break;
        }
    }
    shared.1.store(true, Ordering::Release);
    shared.0.notify_one();
    runtime.block_on(waiter).expect(SOUND);
    samples.answer(clock)
}
