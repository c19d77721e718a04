//! Progress of changes at each backup, and the threads that wait for it.
//!
//! Owns the state of each link and the waiting threads; never sockets or items. A change is
//! *settled* when it is at all backups that count: with [`OnLoss::Refuse`] all that are configured,
//! with [`OnLoss::Degrade`] those that are not lost.
//!
//! | link | begins when | takes changes | counts |
//! |---|---|---|---|
//! | lost | at first, and when the connection ends | no | `Refuse`: yes, so nothing is settled; `Degrade`: no |
//! | copying | the backup accepted this primary | all since | yes |
//! | in step | the backup says that its copy is complete | all since | yes |
//!
//! A copy replaces the former one, which may be complete. So that one is left if the primary dies
//! meanwhile, a link must *claim* its copy before it says so: while no backup is in step, only one
//! has a claim. Others wait for [`HELD`] after a copy that broke off; the one to its own backup,
//! which has lost the former copy as a rule, need not.
//!
//! A link that comes back counts as having all changes before: those are in the copy. Each
//! connection has a number, so that an acknowledgment of an ended one changes nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tailwater::sync::{Event, Mutex, MutexGuard};

use super::HANDSHAKE;
use super::primary::LAST_PAUSE;

/// Time for which other copies wait for one that broke off: that of another connection.
const HELD: Duration = LAST_PAUSE.saturating_add(HANDSHAKE);

/// What happens to writes while a backup is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnLoss {
    /// They are refused.
    Refuse,
    /// They go on with the backups that are left, even with none.
    Degrade,
}

/// The state of a link to a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// No connection.
    Lost,
    /// Being brought up to date.
    Copying,
    /// It has everything that is settled.
    InStep,
}

/// A change did not reach all backups that count: its client is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsettled;

/// A connection to a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Index of the backup.
    pub backup: usize,
    number: u64,
}

#[derive(Debug)]
struct Backup {
    link: Link,
    session: u64,
    /// Number of the last change that it has.
    has: u64,
    /// True while it is connected for a copy, and during the copy.
    claims: bool,
    /// Its last copy broke off; others wait until then.
    held_until: Option<Instant>,
}

#[derive(Debug)]
struct Waiter {
    settled: AtomicBool,
    decided: Event,
}

#[derive(Debug)]
struct State {
    backups: Vec<Backup>,
    /// By the change that a thread waits for, and a number of its own.
    waiting: BTreeMap<(u64, u64), Arc<Waiter>>,
    next_waiter: u64,
}

impl State {
    /// Returns whether a copy to this backup need not wait for one to another.
    fn is_free(&self, backup: usize, now: Instant) -> bool {
        let own = &self.backups[backup];
        let others = || self.backups.iter().enumerate().filter(|&(other, _)| other != backup);
        let holds = |other: &Backup| other.held_until.is_some_and(|until| now < until);
        others().any(|(_, other)| other.link == Link::InStep)
            || !others().any(|(_, other)| other.claims || own.held_until.is_none() && holds(other))
    }
}

/// The state of all links.
#[derive(Debug)]
pub struct Progress {
    on_loss: OnLoss,
    state: Mutex<State>,
    /// Number of the last settled change. Written under `state`; relaxed, because nothing but the
    /// number is read by a thread that may answer. It can fall when a backup comes back.
    settled: AtomicU64,
    /// True while changes are refused. Written under `state`; relaxed, because a change that is
    /// made all the same is not settled.
    refuses: AtomicBool,
}

impl Progress {
    /// Creates the state of `backups`, all of them lost.
    #[must_use]
    pub fn new(backups: usize, on_loss: OnLoss) -> Self {
        let new = || Backup { link: Link::Lost, session: 0, has: 0, claims: false, held_until: None };
        let state = State {
            backups: (0..backups).map(|_| new()).collect(),
            waiting: BTreeMap::new(),
            next_waiter: 0,
        };
        let progress = Self {
            on_loss,
            state: Mutex::new(state),
            settled: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
        };
        progress.update(&mut progress.lock());
        progress
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true while changes are refused.
    #[inline]
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.refuses.load(Relaxed)
    }

    /// Returns the link of each backup, and the number of the last change that it has.
    #[must_use]
    pub fn links(&self) -> Vec<(Link, u64)> {
        self.lock().backups.iter().map(|backup| (backup.link, backup.has)).collect()
    }

    /// Returns whether a copy to a backup need not wait for one to another.
    #[must_use]
    pub fn is_free(&self, backup: usize, now: Instant) -> bool {
        self.lock().is_free(backup, now)
    }

    /// Claims the copy to a backup, if it need not wait for another one. Returns whether it does.
    pub fn claim(&self, backup: usize, now: Instant) -> bool {
        let mut state = self.lock();
        let is_free = state.is_free(backup, now);
        state.backups[backup].claims = is_free;
        is_free
    }

    /// Gives a claim up: the backup did not accept this primary.
    pub fn release(&self, backup: usize) {
        self.lock().backups[backup].claims = false;
    }

    /// Records that a backup takes all changes after `last`, and a copy of everything before.
    pub fn begin(&self, backup: usize, last: u64) -> Session {
        let mut state = self.lock();
        let entry = &mut state.backups[backup];
        entry.session += 1;
        (entry.link, entry.has) = (Link::Copying, last);
        let session = Session { backup, number: entry.session };
        self.update(&mut state);
        session
    }

    /// Records an acknowledgment. Returns true if the copy has just become complete.
    pub fn acknowledge(&self, session: Session, number: u64, in_step: bool) -> bool {
        let mut state = self.lock();
        let entry = &mut state.backups[session.backup];
        if entry.session != session.number || entry.link == Link::Lost {
            return false;
        }
        entry.has = entry.has.max(number);
        let completes = in_step && entry.link == Link::Copying;
        if completes {
            entry.link = Link::InStep;
            (entry.claims, entry.held_until) = (false, None);
        }
        self.update(&mut state);
        completes
    }

    /// Records that a connection has ended.
    pub fn end(&self, session: Session, now: Instant) {
        let mut state = self.lock();
        let entry = &mut state.backups[session.backup];
        if entry.session == session.number {
            if entry.link == Link::Copying {
                // From the first time on, so that copies which always break off end the wait, too.
                entry.held_until.get_or_insert(now + HELD);
            }
            (entry.link, entry.claims) = (Link::Lost, false);
            self.update(&mut state);
        }
    }

    /// Waits until a change is settled.
    ///
    /// # Errors
    /// If a backup is lost before it has the change, and changes are refused then.
    pub fn wait(&self, number: u64) -> Result<(), Unsettled> {
        if self.settled.load(Relaxed) >= number {
            return Ok(());
        }
        let mut state = self.lock();
        if self.settled.load(Relaxed) >= number {
            return Ok(());
        }
        if self.refuses() {
            return Err(Unsettled);
        }
        let waiter = Arc::new(Waiter { settled: AtomicBool::new(false), decided: Event::new() });
        let key = (number, state.next_waiter);
        state.next_waiter += 1;
        state.waiting.insert(key, Arc::clone(&waiter));
        drop(state);
        waiter.decided.wait();
        if waiter.settled.load(Relaxed) { Ok(()) } else { Err(Unsettled) }
    }

    /// Decides again what is settled and whether changes are refused, and wakes the threads that
    /// this concerns.
    fn update(&self, state: &mut State) {
        let any_lost = state.backups.iter().any(|backup| backup.link == Link::Lost);
        let refuses = any_lost && self.on_loss == OnLoss::Refuse;
        let counts = |backup: &&Backup| refuses || backup.link != Link::Lost;
        let settled = state.backups.iter().filter(counts).map(|backup| backup.has).min().unwrap_or(u64::MAX);
        self.settled.store(settled, Relaxed);
        self.refuses.store(refuses, Relaxed);
        let later = match settled {
            u64::MAX => BTreeMap::new(),
            settled => state.waiting.split_off(&(settled + 1, 0)),
        };
        wake(std::mem::replace(&mut state.waiting, later), true);
        if refuses {
            wake(std::mem::take(&mut state.waiting), false);
        }
    }
}

fn wake(waiting: BTreeMap<(u64, u64), Arc<Waiter>>, settled: bool) {
    for waiter in waiting.into_values() {
        waiter.settled.store(settled, Relaxed);
        waiter.decided.set();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Starts a thread that waits, and returns when it does.
    fn waiting(progress: &Arc<Progress>, number: u64) -> thread::JoinHandle<Result<(), Unsettled>> {
        let before = progress.lock().waiting.len();
        let of_thread = Arc::clone(progress);
        let thread = thread::spawn(move || of_thread.wait(number));
        tailwater_testkit::until("the thread waits", || progress.lock().waiting.len() > before);
        thread
    }

    #[test]
    fn complete_copies_are_replaced_one_at_a_time_until_one_is_in_step() {
        let (progress, now) = (Progress::new(3, OnLoss::Refuse), Instant::now());
        assert!(progress.claim(1, now) && !progress.claim(0, now));
        progress.release(1);
        assert!(
            progress.claim(0, now) && !progress.claim(1, now),
            "one that is not there keeps none waiting"
        );
        let first = progress.begin(0, 0);
        progress.acknowledge(first, 1, false);
        assert!(!progress.claim(1, now) && !progress.claim(2, now));
        progress.acknowledge(first, 1, true);
        assert!(progress.claim(1, now) && progress.claim(2, now), "one is in step");
        let [second, third] = [progress.begin(1, 1), progress.begin(2, 1)];
        // The complete copy is left alone while the others are incomplete.
        progress.end(first, now);
        assert!(!progress.claim(0, now));
        progress.end(second, now);
        progress.end(third, now);
        assert!(!progress.claim(0, now) && progress.claim(1, now) && !progress.is_free(2, now));
        progress.release(1);
        assert!(progress.is_free(1, now) && progress.claim(2, now));
        // It breaks off again, later.
        progress.end(progress.begin(2, 1), now + HELD / 2);
        assert!(!progress.claim(0, now + HELD - Duration::from_nanos(1)), "they may come back");
        assert!(progress.claim(0, now + HELD));
    }

    #[test]
    fn a_change_is_settled_when_all_backups_have_it() {
        let progress = Arc::new(Progress::new(2, OnLoss::Refuse));
        assert!(progress.refuses(), "none has been there yet");
        let [first, second] = [progress.begin(0, 0), progress.begin(1, 0)];
        assert!(!progress.refuses());
        let [early, late] = [waiting(&progress, 3), waiting(&progress, 4)];
        progress.acknowledge(first, 9, true);
        assert_eq!(progress.lock().waiting.len(), 2);
        progress.acknowledge(second, 3, false);
        assert_eq!((early.join().unwrap(), progress.lock().waiting.len()), (Ok(()), 1));
        progress.acknowledge(second, 4, true);
        assert_eq!((late.join().unwrap(), progress.wait(4)), (Ok(()), Ok(())));
        assert_eq!(progress.links(), [(Link::InStep, 9), (Link::InStep, 4)]);
    }

    #[test]
    fn a_lost_backup_leaves_changes_unsettled() {
        let progress = Arc::new(Progress::new(2, OnLoss::Refuse));
        let [first, second] = [progress.begin(0, 0), progress.begin(1, 0)];
        progress.acknowledge(first, 5, true);
        let waits = waiting(&progress, 5);
        progress.end(second, Instant::now());
        assert_eq!(waits.join().unwrap(), Err(Unsettled));
        assert_eq!((progress.refuses(), progress.wait(5), progress.wait(0)), (true, Err(Unsettled), Ok(())));
        // What an ended connection said late changes nothing, nor does its second end.
        progress.acknowledge(second, 9, true);
        let again = progress.begin(1, 7);
        progress.end(second, Instant::now());
        assert_eq!(progress.links()[1], (Link::Copying, 7));
        assert!(!progress.refuses());
        assert!(progress.acknowledge(again, 8, true) && !progress.acknowledge(again, 9, true));
    }

    #[test]
    fn without_a_lost_backup_changes_go_on_where_that_is_asked_for() {
        let progress = Arc::new(Progress::new(2, OnLoss::Degrade));
        assert_eq!((progress.refuses(), progress.wait(77)), (false, Ok(())));
        let [first, second] = [progress.begin(0, 77), progress.begin(1, 77)];
        progress.acknowledge(first, 80, true);
        let waits = waiting(&progress, 80);
        progress.end(second, Instant::now());
        assert_eq!(waits.join().unwrap(), Ok(()));
        let waits = waiting(&progress, 81);
        progress.end(first, Instant::now());
        assert_eq!(waits.join().unwrap(), Ok(()), "none is left");
    }
}
