//! The thread that looks at a job's processes.
//!
//! Owns when they are looked at, and at whose expense. Looks at a job of 530 threads took 22 ms of
//! each second in ordinary rank, in turns with the polling thread (*EPYC*, busy). So this thread
//! has the rank and the cores of the job, whose time it takes. Where other programs use these cores
//! fully it gets as little as the job, and what has left the job's cores is found late.
//!
//! What it finds out goes to the supervisor by a channel: that waits for none of its looks.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::conditions::apply_to;
use crate::keep::Keeper;
use crate::usage::{Account, Usage};

/// Time between two looks.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// The looks at a job's processes. They end when this is dropped.
pub(crate) struct Looks {
    usages: Receiver<Usage>,
    last: Usage,
    /// Never sends: its end is that of the looks.
    _goes_on: Sender<Infallible>,
}

impl Looks {
    /// Begins to look at the descendants of process `root`, which are kept on these cores.
    ///
    /// # Errors
    /// Linux's, if it refuses a thread.
    pub(crate) fn at_descendants(root: i32, cores: &[usize]) -> io::Result<Self> {
        let keeper = Keeper::of_descendants(root, cores);
        Self::begin(Some(keeper), Account::of_descendants(root), cores)
    }

    /// Begins to look at a group, whose account this is.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn at_group(account: Account, cores: &[usize]) -> io::Result<Self> {
        Self::begin(None, account, cores)
    }

    fn begin(mut keeper: Option<Keeper>, mut account: Account, cores: &[usize]) -> io::Result<Self> {
        let cores = cores.to_vec();
        let (found, usages) = channel();
        let (goes_on, ended) = channel::<Infallible>();
        let look = move || {
            // An ordinary thread does the same, at the expense of others.
            let _ = apply_to(0, &cores);
            loop {
                if let Some(keeper) = &mut keeper {
                    keeper.look();
                }
                let is_heard = found.send(account.usage().clone()).is_ok();
                let waited = ended.recv_timeout(keeper.as_ref().map_or(PERIOD, Keeper::remaining));
                if !is_heard || waited == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        };
        Builder::new().name("tailwater-looks".to_owned()).spawn(look)?;
        Ok(Self { usages, last: Usage::default(), _goes_on: goes_on })
    }

    /// Returns what the processes had got at the last look.
    pub(crate) fn usage(&mut self) -> &Usage {
        if let Some(usage) = self.usages.try_iter().last() {
            self.last = usage;
        }
        &self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::{Stat, threads};
    use rustix::process::Pid;
    use rustix::thread::sched_getaffinity;
    use tailwater_testkit::{eventually, until};

    #[test]
    fn the_thread_that_looks_has_the_jobs_rank_and_cores_and_ends_with_the_looks() {
        let own = std::process::id().cast_signed();
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..1_024).find(|&core| allowed.is_set(core)).unwrap();
        let mut looks = Looks::at_descendants(own, &[core]).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let looker = || {
            let named =
                |tid: &i32| Stat::of_thread(own, *tid).is_some_and(|stat| stat.name == "tailwater-looks");
            threads(own).into_iter().find(named)
        };
        let tid = eventually("a thread looks", looker);
        until("it has found the child", || looks.usage().processes > 0);
        let stat = Stat::of_thread(own, tid).unwrap();
        let cores = sched_getaffinity(Pid::from_raw(tid)).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        drop(looks);
        until("it ends", || looker().is_none());
        assert!(stat.is_idle_class && cores.count() == 1 && cores.is_set(core));
    }
}
