//! An IOKernel in its own process, for tests that kill it: `iokernel SOCKET [SETTING...]` serves at
//! that socket, with one core to lend, until it is killed. Prints `ready` when programs can
//! register.
//!
//! | setting | the IOKernel |
//! |---|---|
//! | `arbiter` | divides cores by request |
//! | `core=N` | lends this one |
//! | `shared` | leaves other programs their share of the cores |

use std::io::Write;
use std::sync::atomic::AtomicBool;
use tailwater_iokernel::config::PolicyName;
use tailwater_iokernel::{Config, IoKernel};

fn main() {
    let mut words = std::env::args().skip(1);
    let mut config = tailwater_tests::config(words.next().expect("a control socket"));
    for word in words {
        match word.split_once('=') {
            None if word == "arbiter" => config.policy = PolicyName::Arbiter,
            None if word == "shared" => config.neighbour_share = Config::default().neighbour_share,
            Some(("core", number)) => config.managed_cores = Some(vec![number.parse().expect("a number")]),
            _ => panic!("unknown setting {word}"),
        }
    }
    let iokernel = IoKernel::new(config, vec![]).unwrap_or_else(|e| panic!("IOKernel: {e}"));
    let mut out = std::io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush()).expect("the test reads our output");
    iokernel.run(&AtomicBool::new(false)).expect("the IOKernel runs");
}
