//! What Linux does on cores, as it happens: switches of threads, and interrupts.
//!
//! Owns [`Recorder`], which has eBPF programs at the tracepoints of the scheduler and of interrupts
//! write each event into a ring (`program`), for some cores and for some time. It needs what
//! [`core_time`](crate::core_time) needs, which adds the same events up. Nothing of it survives the
//! process. The kernel loses an event for which the ring has no room, and counts it.

mod program;

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::core_time::helpers::command;
use crate::core_time::{Refused, Side, attach_interrupts, in_first_pid_namespace};
use crate::sys::map::Map;
use crate::sys::ring::Ring;
use crate::sys::tracepoint;
use program::{Core, Record, What};

/// Bytes of the ring for each core: 80,000 events, which are those of a core that changes hands
/// 100,000 times a second in 0.4 s.
const CORE_BYTES: usize = 4 << 20;
/// Most bytes of the ring.
const MOST_BYTES: usize = 64 << 20;

/// Something that happened on a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The core.
    pub core: u16,
    /// Events of the core that were lost before this one, since the watch began; wraps around.
    pub lost: u32,
    /// What happened.
    pub kind: Kind,
}

/// What happened on a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A thread left the core, on which it was since the last event of this kind.
    Left {
        /// Its process.
        pid: u32,
        /// The thread; 0 if the core was idle.
        tid: u32,
        /// What it calls itself: any text.
        command: String,
    },
    /// An interrupt of this name began.
    Begins(&'static str),
    /// It ended.
    Ends(&'static str),
}

/// Writes down what happens on some cores while it lives.
#[derive(Debug)]
pub struct Recorder {
    watched: Vec<u16>,
    cores: Map<u32, Core>,
    ring: Ring<{ size_of::<Record>() / 8 }>,
    names: Vec<&'static str>,
    /// Attachments, which end with the value.
    _links: Vec<OwnedFd>,
}

impl Recorder {
    /// Begins to write down what happens on these cores.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn start(watched: &[u16]) -> Result<Self, Refused> {
        if !in_first_pid_namespace() {
            return Err(Refused::Namespace);
        }
        let count = watched.iter().max().map_or(1, |&core| u32::from(core) + 1);
        let cores = Map::array(count)?;
        let ring = Ring::new(ring_bytes(watched.len()))?;
        let (map, into) = (cores.number(), ring.number());
        let mut names = Vec::new();
        let mut links = attach_interrupts(|side, _, name| {
            let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            let what = match side {
                Side::Begin => What::Begin(place as u16),
                Side::End => What::End(place as u16),
            };
            program::write(map, into, what)
        })?;
        let switch = tracepoint::load_raw(&program::write(map, into, What::Switch))?;
        links.push(tracepoint::attach("sched_switch", &switch)?);
        for &core in watched {
            cores.set(core.into(), [1, 0])?;
        }
        Ok(Self { watched: watched.to_vec(), cores, ring, names, _links: links })
    }

    /// Returns the oldest event that has not been read; `None` if there is none.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some([at_ns, word, thread, name @ ..]) = self.ring.next_record() {
            let Some((core, what)) = What::of(word) else { continue };
            let interrupt = |place: u16| self.names.get(usize::from(place)).copied();
            let kind = match what {
                What::Switch => Some(Kind::Left {
                    pid: (thread >> 32) as u32,
                    tid: thread as u32,
                    command: command(&name),
                }),
                What::Begin(place) => interrupt(place).map(Kind::Begins),
                What::End(place) => interrupt(place).map(Kind::Ends),
            };
            if let Some(kind) = kind {
                return Some(Event { at_ns, core, lost: (word >> 32) as u32, kind });
            }
        }
        None
    }

    /// Returns the number of events for which the ring had no room.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn lost(&self) -> Result<u64, Errno> {
        let of = |&core: &u16| Ok(self.cores.get(core.into())?.map_or(0, |[_, lost]| lost));
        self.watched.iter().map(of).sum()
    }
}

/// Returns the size of the ring for so many cores: a power of two, as the kernel wants it.
fn ring_bytes(cores: usize) -> usize {
    MOST_BYTES.min(CORE_BYTES * cores.min(MOST_BYTES / CORE_BYTES).next_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
    use tailwater_testkit::until;

    use crate::core_time::now_ns;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_ring_grows_with_the_cores_up_to_a_bound() {
        assert_eq!([0, 1, 3, 16, 1000].map(|cores| ring_bytes(cores) >> 20), [4, 4, 16, 64, 64]);
    }

    #[test]
    fn a_thread_that_leaves_its_core_and_the_interrupts_there_are_written_down() {
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).rfind(|&core| allowed.is_set(core)).unwrap() as u16;
        let mut recorder = match Recorder::start(&[core]) {
            Ok(recorder) => recorder,
            Err(Refused::Kernel(why)) if why.contains("refuses the program") => panic!("{why}"),
            // Rights are missing, or the kernel has no rings (before 5.8).
            Err(refused) => return eprintln!("skipped: {refused}"),
        };
        let mut one = CpuSet::new();
        one.set(core.into());
        sched_setaffinity(None, &one).unwrap();
        let own = gettid().as_raw_nonzero().get().cast_unsigned();
        let begun = now_ns();
        let (mut left, mut interrupts) = (0, (0, 0));
        until("this thread leaves its core twice, and a timer interrupts it", || {
            // It leaves the core here.
            std::thread::sleep(std::time::Duration::from_micros(100));
            while let Some(event) = recorder.next_event() {
                assert_eq!(event.core, core);
                assert!(event.at_ns <= now_ns() && event.at_ns + SECOND >= begun, "{event:?}");
                match event.kind {
                    Kind::Left { tid, pid, .. } if tid == own => {
                        assert_eq!(pid, std::process::id());
                        left += 1;
                    }
                    Kind::Left { .. } => {}
                    Kind::Begins(_) => interrupts.0 += 1,
                    Kind::Ends(_) => interrupts.1 += 1,
                }
            }
            left >= 2 && interrupts.0 > 0 && interrupts.1 > 0
        });
        sched_setaffinity(None, &allowed).unwrap();
        // Another test, or what Linux does there, may be too much for the ring: no event is torn.
        println!("{} events were lost", recorder.lost().unwrap());
    }
}
