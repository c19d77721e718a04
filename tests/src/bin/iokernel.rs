//! An IOKernel in its own process, for tests that kill it: `iokernel SOCKET [SETTING...]` serves at
//! that socket until it is killed, with one core to lend unless settings name them. Prints `ready`
//! when programs can register.
//!
//! | setting | the IOKernel |
//! |---|---|
//! | `arbiter` | divides cores by request |
//! | `core=N` | lends this one, and those of further such settings |
//! | `node=N` | lends the cores of this NUMA node |
//! | `keep-off=GROUP` | keeps threads of this control group off requested cores |
//! | `state-file=FILE` | keeps former cpusets in this file |
//! | `shared` | leaves other programs their share of the cores |

use std::io::Write;
use std::sync::atomic::AtomicBool;
use tailwater_iokernel::config::PolicyName;
use tailwater_iokernel::{Config, IoKernel};

fn main() {
    let mut words = std::env::args().skip(1);
    let mut config = tailwater_tests::config(words.next().expect("a control socket"));
    let mut lent = Vec::new();
    for word in words {
        match word.split_once('=') {
            None if word == "arbiter" => config.policy = PolicyName::Arbiter,
            None if word == "shared" => config.neighbour_share = Config::default().neighbour_share,
            Some(("core", number)) => lent.push(number.parse().expect("a number")),
            Some(("node", number)) => {
                config.managed_cores = None;
                config.node = Some(number.parse().expect("a number"));
            }
            Some(("keep-off", group)) => config.reserve.keep_off.push(group.to_owned()),
            Some(("state-file", path)) => config.reserve.state_file = path.into(),
            _ => panic!("unknown setting {word}"),
        }
    }
    if !lent.is_empty() {
        config.managed_cores = Some(lent);
    }
    let iokernel = IoKernel::new(config, vec![]).unwrap_or_else(|e| panic!("IOKernel: {e}"));
    let mut out = std::io::stdout();
    writeln!(out, "ready").and_then(|()| out.flush()).expect("the test reads our output");
    iokernel.run(&AtomicBool::new(false)).expect("the IOKernel runs");
}
