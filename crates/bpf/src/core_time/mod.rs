//! On whom Linux spends the time of cores: kthreads, other threads, interrupts.
//!
//! Owns [`Watch`], which has eBPF programs at the tracepoints of the scheduler and of interrupts
//! add the nanoseconds up, for some cores and for some time (`program`). Which of the threads that
//! are no kthreads are the kernel's it decides when they are read (`verdicts`), which also has
//! their names. It needs `CAP_BPF` and `CAP_PERFMON`, or root. Nothing of it survives the process:
//! programs, maps and attachments are descriptors.
//!
//! The IOKernel itself never watches: the commands that show its cores and the measurements do. The
//! time from the beginning of an interrupt to its first tracepoint, and from the last one to its
//! end, counts as the interrupted thread's, and so does what the host takes.

pub(crate) mod helpers;
mod program;
mod threads;
mod verdicts;

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display, Formatter};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::sys::LoadError;
use crate::sys::map::Map;
use crate::sys::tracepoint;
pub(crate) use program::Interrupt;
use program::{Field, Key, Maps, Moment, Record, Strange};
pub use threads::{in_first_pid_namespace, is_of_the_kernel};
pub use verdicts::Stranger;
use verdicts::{Found, Kind, Verdicts};

/// Maximum number of kthreads that a watch tells from other threads.
pub const MAX_WATCHED: usize = 4096;

/// Maximum number of triples of a core, another thread and a waiting kthread whose times are kept
/// apart.
const MAX_STRANGERS: u32 = 8192;

/// Number of these from which those that did not run are looked up, too: a thread may have ended on
/// a core that is not watched.
const MANY_STRANGERS: usize = MAX_STRANGERS as usize / 2;

/// Name of the threads for which there was no place.
const UNTOLD: &str = "threads that are not told apart";

/// Maximum number of looks at a core, each of which finds it within one of the programs; what has
/// passed since its last event counts for the next interval then.
const MAX_LOOKS: usize = 16;

/// Hard interrupts, each with the tracepoints `NAME_exit` and `NAME_entry`. The kernel has them by
/// its configuration; those of the first two it always has, and those of [`SOFT`].
const HARD: [&str; 12] = [
    "irq_handler",
    "local_timer",
    "reschedule",
    "call_function",
    "call_function_single",
    "irq_work",
    "x86_platform_ipi",
    "spurious_apic",
    "error_apic",
    "thermal_apic",
    "threshold_apic",
    "deferred_error_apic",
];

/// As [`HARD`], for soft interrupts.
const SOFT: [&str; 1] = ["softirq"];

/// Number of interrupts of each kind without which there is no watch.
const REQUIRED: usize = 2;

/// Why a watch is not possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The process lacks the capabilities.
    Capabilities,
    /// Thread numbers of this PID namespace are not those of the kernel.
    Namespace,
    /// More kthreads than [`MAX_WATCHED`].
    TooMany,
    /// The kernel cannot, for this reason.
    Kernel(String),
}

impl Display for Refused {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Capabilities => f.write_str("needs CAP_BPF and CAP_PERFMON"),
            Refused::Namespace => f.write_str("needs the machine's first PID namespace"),
            Refused::TooMany => write!(f, "more than {MAX_WATCHED} kthreads"),
            Refused::Kernel(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Errno> for Refused {
    fn from(error: Errno) -> Self {
        match error {
            Errno::PERM | Errno::ACCESS => Refused::Capabilities,
            other => Refused::Kernel(format!("this kernel has no eBPF for it ({other})")),
        }
    }
}

impl From<LoadError> for Refused {
    fn from(error: LoadError) -> Self {
        match error.errno {
            Errno::PERM => Refused::Capabilities,
            _ => Refused::Kernel(format!("this kernel refuses the program ({error})")),
        }
    }
}

/// Nanoseconds of one core since a watch began. Their sum is the time since then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// The core.
    pub core: u16,
    /// Kthreads ran.
    pub kthreads: u64,
    /// The core was idle, with the interrupts of an idle core.
    pub idle: u64,
    /// While a kthread ran, or waited for the core.
    pub taken: Strangers,
    /// While no kthread was known to wait for the core.
    pub free: Strangers,
}

/// What used a core that was no kthread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Interrupts and soft interrupts.
    pub interrupts: u64,
    /// Threads of the kernel.
    pub kernel: u64,
    /// All other threads.
    pub programs: u64,
}

impl Strangers {
    /// Returns the sum.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.interrupts + self.kernel + self.programs
    }
}

impl CoreTime {
    /// Returns the sum.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.kthreads + self.idle + self.taken.all() + self.free.all()
    }
}

/// Adds up the time of some cores while it lives.
#[derive(Debug)]
pub struct Watch {
    watched: Vec<u16>,
    cores: Map<u32, Record>,
    threads: Map<u32, u32>,
    strangers: Map<Key, Strange>,
    /// Keys of `threads`.
    kthreads: HashSet<u32>,
    verdicts: Verdicts,
    /// Threads for which there was no place.
    untold: Vec<Stranger>,
    switch: OwnedFd,
    /// Attachments, which end with the value.
    _links: Vec<OwnedFd>,
}

impl Watch {
    /// Begins to watch `cores`; `kthreads` are the thread numbers of the kthreads that may run
    /// there. Takes some milliseconds, before the time that is added up.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn start(cores: &[u16], kthreads: &[i32]) -> Result<Self, Refused> {
        if !in_first_pid_namespace() {
            return Err(Refused::Namespace);
        }
        let count = cores.iter().max().map_or(1, |&core| u32::from(core) + 1);
        let records = Map::array(count)?;
        let threads = Map::hash(MAX_WATCHED as u32)?;
        let strangers = Map::hash(MAX_STRANGERS)?;
        let maps = Maps { cores: records.number(), threads: threads.number(), strangers: strangers.number() };
        let switch = tracepoint::load_raw(&program::switch(maps))?;
        let mut links = attach_interrupts(|side, kind, _| match side {
            Side::Begin => program::enter(maps, kind),
            Side::End => program::leave(maps, kind),
        })?;
        let at_switch = tracepoint::attach("sched_switch", &switch);
        links.push(at_switch.map_err(|error| match error {
            Errno::INVAL => Refused::Kernel("needs Linux 5.18".to_owned()),
            other => other.into(),
        })?);
        let mut watch = Self {
            watched: cores.to_vec(),
            cores: records,
            threads,
            strangers,
            kthreads: HashSet::new(),
            verdicts: Verdicts::default(),
            untold: Vec::new(),
            switch,
            _links: links,
        };
        watch.set_kthreads(kthreads)?;
        for &core in cores {
            let mut record = Record::default();
            record[Field::Since as usize] = now_ns();
            watch.cores.set(core.into(), record)?;
        }
        Ok(watch)
    }

    /// Has the programs take these threads for kthreads, and no others.
    fn set_kthreads(&mut self, kthreads: &[i32]) -> Result<(), Refused> {
        let now: HashSet<u32> = kthreads.iter().filter_map(|&tid| u32::try_from(tid).ok()).collect();
        for tid in self.kthreads.extract_if(|tid| !now.contains(tid)) {
            self.threads.remove(tid)?;
        }
        for tid in now {
            // The programs write the value, so a thread that is known keeps it.
            if !self.kthreads.contains(&tid) {
                self.threads.set(tid, 0).map_err(|error| match error {
                    Errno::TOOBIG => Refused::TooMany,
                    other => other.into(),
                })?;
                self.kthreads.insert(tid);
            }
        }
        Ok(())
    }

    /// Returns the times since the beginning, core by core in the order given there. `kthreads` are
    /// those of now, which were kthreads since the last look; `None` if they are not known, for
    /// those of the last look. Interrupts each core once.
    ///
    /// # Errors
    /// The kernel's: a core is offline.
    pub fn read(&mut self, kthreads: Option<&[i32]>) -> Result<Vec<CoreTime>, Refused> {
        for &core in &self.watched {
            for _ in 0..MAX_LOOKS {
                if tracepoint::run_on(core.into(), &self.switch, &program::LOOK)? != program::FOUND_BUSY {
                    break;
                }
            }
        }
        let time = |&core: &u16| Ok(time_of(core, &self.cores.get(core.into())?.unwrap_or_default()));
        let mut times = self.watched.iter().map(time).collect::<Result<Vec<_>, Errno>>()?;
        self.untold = times.iter().flat_map(untold).collect();
        let strangers = self.strangers.entries(MAX_STRANGERS as usize)?;
        let many = strangers.len() > MANY_STRANGERS;
        if let Some(kthreads) = kthreads {
            self.set_kthreads(kthreads)?;
        }
        let Self { kthreads, verdicts, .. } = self;
        let look_up = |tid: u32| match kthreads.contains(&tid) {
            true => Some(Found { kind: Kind::Kthread, group: None }),
            false => is_of_the_kernel(tid).map(|is_kernel| match is_kernel {
                true => Found { kind: Kind::Kernel, group: None },
                false => Found { kind: Kind::Program, group: threads::control_group(tid) },
            }),
        };
        // A thread has a key for each core and waiter.
        let mut known = HashMap::<u32, Option<Found>>::new();
        let mut find = |tid: u32| known.entry(tid).or_insert_with(|| look_up(tid)).clone();
        for (key, strange) in strangers {
            verdicts.enter(key, strange, &mut find);
            if verdicts.forgets(&key, many, |tid| find(tid).is_some()) {
                self.strangers.remove(key)?;
            }
        }
        times.iter_mut().for_each(|time| verdicts.add_to(time));
        Ok(times)
    }

    /// Returns the threads that ran on the cores and are no kthreads, each with its time up to the
    /// last look, in no order. Those that ended before a look found them have their name, which the
    /// programs note, and no control group. Those that have ended are left out some looks later.
    /// Those for which there was no place are one of process 0 for each core, and one more while
    /// kthreads waited, whose waiter is 0.
    #[must_use]
    pub fn strangers(&self) -> Vec<Stranger> {
        let mut strangers = self.verdicts.strangers();
        strangers.extend_from_slice(&self.untold);
        strangers
    }
}

/// A tracepoint of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Begin,
    End,
}

/// Attaches a program to both tracepoints of each interrupt: first where one ends, so that no end
/// is missed whose beginning was seen.
pub(crate) fn attach_interrupts(
    mut code: impl FnMut(Side, Interrupt, &'static str) -> Vec<u64>,
) -> Result<Vec<OwnedFd>, Refused> {
    let mut links = Vec::new();
    for (side, suffix) in [(Side::End, "exit"), (Side::Begin, "entry")] {
        for (kind, names) in [(Interrupt::Hard, &HARD[..]), (Interrupt::Soft, &SOFT)] {
            // One program serves all tracepoints in a row that have the same code.
            let mut loaded: Option<(Vec<u64>, OwnedFd)> = None;
            for (number, &interrupt) in names.iter().enumerate() {
                let code = code(side, kind, interrupt);
                let program = match loaded.take() {
                    Some((known, program)) if known == code => program,
                    _ => tracepoint::load_raw(&code)?,
                };
                let name = format!("{interrupt}_{suffix}");
                match tracepoint::attach(&name, &program) {
                    Ok(link) => links.push(link),
                    Err(Errno::NOENT) if number >= REQUIRED => {}
                    Err(Errno::NOENT) => {
                        return Err(Refused::Kernel(format!("this kernel has no tracepoint {name}")));
                    }
                    Err(error) => return Err(error.into()),
                }
                loaded = Some((code, program));
            }
        }
    }
    Ok(links)
}

fn time_of(core: u16, record: &Record) -> CoreTime {
    let field = |field: Field| record[field as usize];
    let by = |field: Field, moment: Moment| record[field as usize + moment as usize];
    let strangers = |moment| Strangers {
        interrupts: by(Field::Interrupts, moment),
        kernel: 0,
        programs: by(Field::Untold, moment),
    };
    CoreTime {
        core,
        kthreads: field(Field::Kthreads),
        idle: field(Field::Idle),
        taken: strangers(Moment::Taken),
        free: strangers(Moment::Free),
    }
}

/// Returns the threads of a core for which there was no place, as [`time_of`] has them.
fn untold(time: &CoreTime) -> impl Iterator<Item = Stranger> + use<> {
    let core = time.core;
    let sums = [(None, time.free.programs), (Some(0), time.taken.programs)];
    sums.into_iter().filter(|(_, ns)| *ns > 0).map(move |(waiter, ns)| Stranger {
        core,
        pid: 0,
        tid: 0,
        command: UNTOLD.to_owned(),
        is_kernel: false,
        group: None,
        waiter,
        ns,
    })
}

/// The clock of the programs.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
