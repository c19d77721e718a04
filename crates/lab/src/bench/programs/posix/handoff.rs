//! Hand-offs between threads of Rust's standard library: `handoff TURNS`. Four threads take turns
//! by a mutex and a condition variable each. Each looks for a client of a listener first, so that
//! under `tailwater run --posix` it runs on a lent core. Prints nanoseconds a hand-off.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Barrier, Condvar, Mutex};
use std::time::Instant;

const THREADS: usize = 4;

fn main() {
    let turns = std::env::args().nth(1).and_then(|word| word.parse::<usize>().ok());
    let turns = turns.filter(|&turns| turns > 0).expect("usage: handoff TURNS");
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let (turn, turn_of) = (Mutex::new(0_usize), [const { Condvar::new() }; THREADS]);
    let start = Barrier::new(THREADS + 1);
    let took = std::thread::scope(|scope| {
        let all: Vec<_> = (0..THREADS)
            .map(|me| {
                let (listener, turn, turn_of, start) = (&listener, &turn, &turn_of, &start);
                scope.spawn(move || {
                    // There is none.
                    let _ = listener.accept();
                    start.wait();
                    let mut turn = turn.lock().expect("no thread panics");
                    while *turn < turns {
                        if *turn % THREADS == me {
                            *turn += 1;
                            turn_of[*turn % THREADS].notify_one();
                        } else {
                            turn = turn_of[me].wait(turn).expect("no thread panics");
                        }
                    }
                    turn_of.iter().for_each(Condvar::notify_one);
                })
            })
            .collect();
        let began = Instant::now();
        start.wait();
        all.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        began.elapsed()
    });
    println!("{:.1}", took.as_nanos() as f64 / turns as f64);
}
