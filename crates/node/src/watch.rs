//! The statistics of the IOKernel, asked for once a second.
//!
//! Owns the state that plugins serve. An IOKernel that does not answer is told from one that lends
//! no core; it is given a few looks' time, since pods that have been placed on the node fail when
//! its devices are unhealthy.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tailwater_shm::control::{ClientMessage, ServerMessage, dial_within, receive, send};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::Settings;
use crate::cores::{Look, Window};

/// Time between two looks. The kubelet starts a pod within seconds.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Longest wait for an answer, which comes within a millisecond unless the IOKernel is stopped.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks in a row without an answer after which no IOKernel answers. A takeover and a restart take
/// less.
const MOST_FAILURES: u32 = 5;

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
    folder: PathBuf,
    window: Window,
    /// Looks in a row without an answer.
    failures: u32,
    states: watch::Sender<Option<State>>,
}

/// Returns what asks the IOKernel, and what it publishes.
#[must_use]
pub fn channel(settings: &Settings) -> (Watch, States) {
    let (states, receiver) = watch::channel(None);
    let looks = usize::try_from(settings.window.as_secs()).unwrap_or(usize::MAX);
    let (socket, folder) = (settings.iokernel.clone(), settings.folder());
    (Watch { socket, folder, window: Window::new(looks), failures: 0, states }, receiver)
}

impl Watch {
    /// Publishes what changes, until the folder of the socket is deleted.
    pub async fn run(mut self) -> anyhow::Error {
        let mut ticks = interval(BETWEEN_LOOKS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = None;
        loop {
            ticks.tick().await;
            if is_deleted(&self.folder) {
                let folder = self.folder.display();
                return anyhow::anyhow!("{folder} has been deleted, where the IOKernel listens; start again");
            }
            let socket = self.socket.display().to_string();
            let asked = tokio::task::spawn_blocking(move || look(&socket)).await;
            let look = asked.map_err(anyhow::Error::from).flatten();
            let error = look.as_ref().err().map(|error| format!("{error:#}"));
            self.publish(look.ok());
            if error.is_some() && self.failures < MOST_FAILURES {
                continue;
            }
            if error != reported {
                match &error {
                    Some(error) => eprintln!("tailwater-node: the lent cores are unhealthy: {error}"),
                    None if reported.is_some() => eprintln!("tailwater-node: the IOKernel answers again"),
                    None => {}
                }
                reported = error;
            }
        }
    }

    /// Publishes a look; `None`: it had no answer.
    fn publish(&mut self, look: Option<Look>) {
        self.failures = if look.is_some() { 0 } else { self.failures.saturating_add(1) };
        if (1..MOST_FAILURES).contains(&self.failures) {
            return;
        }
        let state = look.map(|look| State { left_over: self.window.enter(&look), look });
        self.states.send_if_modified(|before| {
            let differs = *before != state;
            *before = state;
            differs
        });
    }
}

/// Returns whether a folder is held by a mount only. One that does not exist may be made yet.
fn is_deleted(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|found| found.nlink() == 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iokernel_is_gone_after_five_looks_without_an_answer() {
        let (plugins, iokernel) = (PathBuf::from("/p"), PathBuf::from("/run/tailwater/socket"));
        let (mut watch, states) =
            channel(&Settings { iokernel, plugins, nri: None, window: Duration::from_secs(4) });
        let look = |managed: &[u64], held| Look { managed: managed.to_vec(), guaranteed_outside: 0, held };
        let left_over = || states.borrow().as_ref().map(|state| state.left_over);
        watch.publish(Some(look(&[1, 2], 2)));
        assert_eq!(left_over(), Some(0));
        for _ in 1..MOST_FAILURES {
            watch.publish(None);
            assert_eq!(left_over(), Some(0));
        }
        watch.publish(Some(look(&[1, 2], 0)));
        assert_eq!(left_over(), Some(1), "what was seen before counts");
        for _ in 0..MOST_FAILURES {
            watch.publish(None);
        }
        assert_eq!(left_over(), None);
        watch.publish(Some(look(&[1, 2, 3], 0)));
        assert_eq!(left_over(), Some(3), "another IOKernel's looks");
    }

    #[test]
    fn a_folder_that_a_mount_holds_is_told_from_one_that_is_not_made_yet() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let held = std::fs::File::open(folder.path()).unwrap();
        let path = folder.path().to_owned();
        assert!(!is_deleted(&path));
        folder.close().unwrap();
        assert!(!is_deleted(&path));
        assert!(is_deleted(Path::new(&format!("/proc/self/fd/{}", held.as_raw_fd()))));
    }
}
