//! The processes of the measurement: an IOKernel that can be killed, and the client.

use std::io::{Write, stdout};
use std::net::SocketAddrV4;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, Subcommand};
use tailwater_iokernel::{Config, IoKernel};
use tailwater_shm::Clock;

use super::super::fallback::run_rounds;
use super::{CALIBRATION_MS, client};

/// Play a part in `bench hostile`
#[derive(Debug, Args)]
pub struct ChildArgs {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Run an IOKernel without ports until it is killed or taken over from; it prints `ready`
    Iokernel {
        /// Its control socket
        socket: String,
        /// The core on which it polls
        polling: u16,
        /// The cores that it lends
        #[arg(value_delimiter = ',')]
        managed: Vec<u16>,
        /// Take the place of the one at the same socket
        #[arg(long)]
        takeover: bool,
    },
    /// Keep connections to two services busy
    Client {
        /// A TCP echo service
        tcp: SocketAddrV4,
        /// A UDP echo service
        udp: SocketAddrV4,
        /// Frequency of the time-stamp counter
        tsc_hz: u64,
    },
    /// Do rounds for ever, and print how long they took for each line of input
    Rounds {
        /// Sleep of each round in microseconds
        nap_us: u64,
    },
}

/// Plays a role.
///
/// # Errors
/// The IOKernel's or the runtime's.
pub fn run(args: &ChildArgs) -> anyhow::Result<()> {
    match &args.role {
        Role::Iokernel { socket, polling, managed, takeover } => {
            let config = Config {
                socket: socket.clone(),
                iokernel_core: Some(*polling),
                managed_cores: Some(managed.clone()),
                ..Config::default()
            };
            serve(config, *takeover)
        }
        &Role::Rounds { nap_us } => {
            let (nap, clock) = (Duration::from_micros(nap_us), Clock::calibrate(CALIBRATION_MS));
            tailwater::RuntimeBuilder::new().run(move || run_rounds(nap, clock))?
        }
        &Role::Client { tcp, udp, tsc_hz } => {
            tailwater::RuntimeBuilder::new().run(move || client::run(tcp, udp, Clock::from_hz(tsc_hz)))?
        }
    }
}

fn serve(config: Config, takeover: bool) -> anyhow::Result<()> {
    let stop = AtomicBool::new(false);
    let iokernel = match takeover {
        false => IoKernel::new(config, Vec::new())?,
        true => IoKernel::take_over(config, Vec::new(), &stop, |_| ())?,
    };
    let mut out = stdout();
    writeln!(out, "ready").and_then(|()| out.flush())?;
    Ok(iokernel.run(&stop)?)
}
