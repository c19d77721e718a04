//! The child's side of `bench threads`: one system, which serves the line protocol.
//!
//! Owns the start of each system. The operations of libraries with the interface of `std` are in
//! `std_like`, those of futures in `tasks`.

use clap::Args;
use tailwater_shm::Clock;

use super::operation::Operation;
use super::protocol::{read_order, serve};
use super::system::System;

mod floor;
mod own;
pub mod samples;
mod std_like;
mod tasks;

/// Serve one system of threads to `bench threads`
#[derive(Debug, Args)]
pub struct ChildArgs {
    /// The system
    #[arg(value_parser = System::of_name)]
    system: System,
    /// Number of cores to use
    kthreads: u16,
    /// Frequency of the time-stamp counter
    tsc_hz: u64,
}

/// Serves until standard input ends.
///
/// # Errors
/// If the system does not start, or standard input or output fails.
pub fn run(args: &ChildArgs) -> anyhow::Result<()> {
    let clock = Clock::from_hz(args.tsc_hz);
    let kthreads = args.kthreads;
    match args.system {
        System::Tailwater => serve_user_threads(tailwater::RuntimeBuilder::new(), kthreads, clock),
        System::TailwaterSharedTls => serve_user_threads(sharing_builder(), kthreads, clock),
        System::Std => serve(read_order, |op, n| std_like::os::perform(op, n, kthreads, clock)),
        System::May => serve_coroutines(kthreads, clock),
        System::Tokio => tasks::serve_tasks(kthreads, clock),
        System::Machine => serve(read_order, |op, n| floor::perform(op, n, clock)),
        System::Go => anyhow::bail!("goroutines run in the Go program"),
    }
}

/// Serves on user threads. An ordinary thread reads the orders, so the kthreads can sleep
/// meanwhile.
fn serve_user_threads(builder: tailwater::RuntimeBuilder, kthreads: u16, clock: Clock) -> anyhow::Result<()> {
    builder.kthreads(kthreads).run(move || {
        let perform = |op, n| {
            own::perform(op, n, kthreads, clock).or_else(|| std_like::user::perform(op, n, kthreads, clock))
        };
        serve(|| tailwater::blocking(read_order), perform)
    })?
}

#[expect(
    unsafe_code,
    reason = "the promise that sharing asks for can only be made where the threads are known"
)]
fn sharing_builder() -> tailwater::RuntimeBuilder {
    // SAFETY: the threads of this process are those of `std_like` and the one that serves. None
    // uses a thread-local across a call that may switch (standard output's is used within one
    // `println!`), and none unwinds.
    unsafe { tailwater::RuntimeBuilder::new().shared_tls() }
}

/// Serves on coroutines. `may` distributes new coroutines over its workers in turn, the starting
/// worker included, so operations across cores start on an ordinary thread.
fn serve_coroutines(kthreads: u16, clock: Clock) -> anyhow::Result<()> {
    may::config().set_workers(kthreads.into()).set_worker_pin(false);
    serve(read_order, |op, n| match op {
        Operation::CreateRemote
        | Operation::NotifyRemote
        | Operation::UnparkRemote
        | Operation::UnparkAmong(_) => std_like::coroutines::perform(op, n, kthreads, clock),
        _ => may::go!(move || std_like::coroutines::perform(op, n, kthreads, clock))
            .join()
            .expect("the operations do not panic"),
    })
}
