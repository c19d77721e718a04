//! The statistics of the IOKernel, asked for once a second.
//!
//! Owns the state that plugins serve. An IOKernel that does not answer is told from one that lends
//! no core.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tailwater_shm::control::{ClientMessage, ServerMessage, dial_within, receive, send};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::cores::{Look, Window};

/// Time between two looks. The kubelet starts a pod within seconds.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Longest wait for an answer, which comes within a millisecond unless the IOKernel is stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an IOKernel has for pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The last look.
    pub look: Look,
    /// Cores that services left over.
    pub left_over: u64,
}

/// What is known; `None`: no IOKernel answers.
pub type States = watch::Receiver<Option<State>>;

/// Asks for the statistics.
#[derive(Debug)]
pub struct Watch {
    socket: PathBuf,
    window: Window,
    states: watch::Sender<Option<State>>,
}

/// Returns what asks the IOKernel at `socket`, and what it publishes.
#[must_use]
pub fn channel(socket: PathBuf, window: Duration) -> (Watch, States) {
    let (states, receiver) = watch::channel(None);
    let looks = usize::try_from(window.as_secs()).unwrap_or(usize::MAX);
    (Watch { socket, window: Window::new(looks), states }, receiver)
}

impl Watch {
    /// Publishes what changes, for ever.
    pub async fn run(mut self) {
        let mut ticks = interval(BETWEEN_LOOKS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = None;
        loop {
            ticks.tick().await;
            let socket = self.socket.display().to_string();
            let asked = tokio::task::spawn_blocking(move || look(&socket)).await;
            let look = asked.map_err(anyhow::Error::from).flatten();
            let error = look.as_ref().err().map(|error| format!("{error:#}"));
            let state = look.ok().map(|look| State { left_over: self.window.enter(&look), look });
            if state.is_none() {
                self.window.clear();
            }
            self.states.send_if_modified(|before| {
                let differs = *before != state;
                *before = state;
                differs
            });
            if error != reported {
                match &error {
                    Some(error) => eprintln!("tailwater-node: its cores are unhealthy: {error}"),
                    None if reported.is_some() => eprintln!("tailwater-node: the IOKernel answers again"),
                    None => {}
                }
                reported = error;
            }
        }
    }
}

/// Asks the IOKernel at `socket`.
fn look(socket: &str) -> anyhow::Result<Look> {
    let connection = dial_within(socket, PATIENCE).map_err(|error| anyhow::anyhow!("{error}"))?;
    set_socket_timeout(&connection, Timeout::Recv, Some(PATIENCE))
        .context("cannot limit the wait for an answer")?;
    send(&connection, &ClientMessage::Stats, &[])?;
    let look = match receive(&connection)?.0 {
        ServerMessage::Stats(statistics) => Look::of(&statistics),
        _ => None,
    };
    look.context("the IOKernel answers in another form; use the same version of both")
}
