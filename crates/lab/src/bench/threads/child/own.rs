//! Operations that Tailwater has and `std` lacks: channels with many receivers, select,
//! read-copy-update.

use std::hint::black_box;

use tailwater::sync::Rcu;
use tailwater::sync::channel::{self, Select};

use super::samples::mean;
use crate::bench::threads::operation::Operation;
use crate::bench::threads::protocol::Answer;

const SOUND: &str = "both ends are held";

/// Performs `op` `n` times on the calling thread; `None` for operations in `std_like`.
pub fn perform(op: Operation, n: u64) -> Option<Answer> {
    match op {
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
