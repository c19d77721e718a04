//! The rate of the job has one mode: it does not depend on how the trials are divided, nor on what
//! else runs on the core.

use std::cell::RefCell;

use tailwater_testkit::speed::{Neighbour, Ways, take_the_same_time};

use super::*;
use crate::portfolio::Portfolio;

/// Blocks of one run, about 120 us.
const BLOCKS: u64 = 4;
/// Blocks of a run in which other threads of the core get turns, whose length is some milliseconds.
const MANY_BLOCKS: u64 = 100;

/// Prices one swaption again and again, with the same draws.
struct Bench {
    pricer: Pricer,
    scratch: RefCell<Scratch>,
}

impl Bench {
    fn new() -> Self {
        let portfolio = Portfolio::generate(1, 3).unwrap();
        let pricer = Pricer::new(&portfolio.swaptions()[0]).unwrap();
        let scratch = RefCell::new(Scratch::new(std::slice::from_ref(&pricer)));
        Self { pricer, scratch }
    }

    /// Prices blocks one by one, or as many trials at once, with the poll point of user threads.
    fn price(&self, blocks: u64, at_once: bool) {
        let mut prng = block_prng(1, 0, 0);
        let mut sums = Sums::default();
        let (runs, trials) = if at_once { (1, blocks * BLOCK_TRIALS) } else { (blocks, BLOCK_TRIALS) };
        for _ in 0..runs {
            let mut scratch = self.scratch.borrow_mut();
            sums.add(&self.pricer.run(trials, &mut prng, &mut scratch, &mut tailwater::poll));
        }
        std::hint::black_box(sums);
    }

    fn divided(&self) -> Ways<'_> {
        Ways {
            what: "trials in blocks over trials at once".to_owned(),
            first: Box::new(|| self.price(BLOCKS, true)),
            other: Box::new(|| self.price(BLOCKS, false)),
            turns: 51,
        }
    }
}

#[test]
fn trials_take_the_same_time_in_blocks_and_at_once_alone_and_beside_another_process() {
    let bench = Bench::new();
    take_the_same_time("alone", &mut [bench.divided()]);
    let process = Neighbour::start();
    take_the_same_time("beside a process on the core", &mut [bench.divided()]);
    let with_process = |paused: bool| {
        process.pause(paused);
        bench.price(MANY_BLOCKS, false);
    };
    let beside = Ways {
        what: "trials beside a process over trials alone".to_owned(),
        first: Box::new(|| with_process(true)),
        other: Box::new(|| with_process(false)),
        turns: 9,
    };
    take_the_same_time("on one core", &mut [beside]);
}
