//! Operations that Tailwater has and `std` lacks: channels with many receivers, select,
//! read-copy-update, threads with a placement.

use std::hint::black_box;
use std::sync::Arc;

use tailwater::sync::Rcu;
use tailwater::sync::channel::{self, Select};
use tailwater::thread::{Builder, Placement};
use tailwater_shm::Clock;

use super::samples::mean;
use super::std_like::user;
use crate::bench::threads::operation::{LIVE, Operation};
use crate::bench::threads::protocol::Answer;

const SOUND: &str = "both ends are held";

/// Performs `op` `n` times on the calling thread; `None` for operations in `std_like`.
pub fn perform(op: Operation, n: u64, kthreads: u16, clock: Clock) -> Option<Answer> {
    match op {
        Operation::DispatchPlaced => mean(n, |n| {
            let start = |batch: Arc<user::Batch>| {
                let builder = Builder::new().placement(Placement::LeastLoaded(2));
                drop(builder.spawn(move || batch.run(clock)).expect("a stack"));
            };
            user::dispatch(n, LIVE * u64::from(kthreads), start);
        }),
        Operation::ChannelMany => mean(n, channel_many),
        Operation::Select => mean(n, select),
        Operation::RcuRead => mean(n, rcu_read),
        Operation::RcuReplace => mean(n, rcu_replace),
        _ => None,
    }
}

fn channel_many(n: u64) {
    let (sender, receiver) = channel::unbounded();
    for i in 0..n {
        sender.send(black_box(i)).expect(SOUND);
        black_box(receiver.recv().expect(SOUND));
    }
}

fn select(n: u64) {
    let (sender, receiver) = channel::unbounded();
    let (_other, never) = channel::unbounded::<u64>();
    for i in 0..n {
        sender.send(black_box(i)).expect(SOUND);
        black_box(Select::new().recv(&never, |m| m).recv(&receiver, |m| m).wait().expect(SOUND));
    }
}

fn rcu_read(n: u64) {
    let value = Rcu::new(1u64);
    for _ in 0..n {
        black_box(black_box(&value).with(|value| *value));
    }
}

fn rcu_replace(n: u64) {
    let value = Rcu::new(0u64);
    for i in 0..n {
        drop(black_box(&value).replace(i));
    }
}
