//! An IOKernel in its own process, for tests that kill it: `iokernel SOCKET` serves at that socket,
//! with one core to lend, until it is killed. Prints `ready` when programs can register.

use std::io::Write;
use std::sync::atomic::AtomicBool;
use tailwater_iokernel::IoKernel;

fn main() {
    let socket = std::env::args().nth(1).expect("a control socket");
    let iokernel =
        IoKernel::new(tailwater_tests::config(socket), vec![]).unwrap_or_else(|e| panic!("IOKernel: {e}"));
    let mut out = std::io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush()).expect("the test reads our output");
    iokernel.run(&AtomicBool::new(false)).expect("the IOKernel runs");
}
