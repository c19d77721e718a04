//! Whether an exclusive thread is alone on its core: beside other user threads of its program, and
//! beside an ordinary program that computes on all cores.
//!
//! Owns the IOKernel, both programs and the figures; [`child`] is the program with the exclusive
//! thread, [`trace`] counts what else Linux runs on its core, [`group`] is that of the ordinary
//! program. Two cores are lent, under `policy = "arbiter"`: one for the exclusive thread, the other
//! for the other user threads. Threads of this process, and those of the child that are no
//! kthreads, stay off both.
//!
//! With `--keep-off` the IOKernel has these groups in `reserve.keep-off`, and the ordinary program
//! is in the first of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Pid;
use rustix::thread::sched_getaffinity;
use serde::Serialize;
use tailwater_iokernel::Config;
use tailwater_iokernel::config::{PolicyName, Priority, ReserveSettings};
use tailwater_shm::Clock;
use tailwater_testbed::bed::{OffManaged, START_TIMEOUT};
use tailwater_testbed::child::{Batch, ChildProcess, Spec};
use tailwater_testbed::embedded::{Embedded, lending};
use tailwater_testbed::folder::Folder;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::note;
use tailwater_testbed::table::{Table, number};

pub mod child;
mod group;
mod trace;

use child::{Ending, Period, READY};
use group::Group;
use trace::{Counts, Trace};

/// Kthreads of the program, for each lent core one.
const KTHREADS: usize = 2;
/// Time between two looks at where the ordinary program may run, and at what has run.
const LOOK: Duration = Duration::from_millis(5);

/// What is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    pub time: Duration,
    /// Control groups whose threads are kept off.
    pub keep_off: Vec<String>,
}

/// The figures. Those of the trace are absent without it.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Time for which it was counted.
    seconds: f64,
    /// How often the exclusive thread went on, on another core or kthread.
    core_moves: usize,
    /// How often another user thread ran on its kthread or core.
    other_user_threads: u64,
    /// How often the other user threads looked where they ran.
    looks: u64,
    /// How often an ordinary thread ran on its core.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordinary_switches: Option<u64>,
    /// For how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordinary_ns: Option<u64>,
    /// How often a thread of the kernel's own did.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_switches: Option<u64>,
    /// Whether the ordinary program was kept off the core, at the begin and at the end.
    kept_off: bool,
    /// Why there is no trace.
    #[serde(skip)]
    untraced: Option<String>,
    /// The ordinary threads on its core, and how often each ran.
    #[serde(skip)]
    who: BTreeMap<String, u64>,
}

/// The cores of the measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Places {
    polling: usize,
    lent: [usize; KTHREADS],
}

impl Places {
    fn new(usable: &[usize]) -> Result<Self, String> {
        match *usable {
            [polling, one, two, ..] => Ok(Self { polling, lent: [one, two] }),
            _ => Err(format!(
                "an exclusive thread needs three CPUs: one polls, one is its own, one is for other threads; {} may be used",
                usable.len()
            )),
        }
    }
}

/// Says whether the machine has enough CPUs.
///
/// # Errors
/// Why not, in words.
pub fn check(machine: &Machine) -> Result<(), String> {
    Places::new(&machine.usable_cores).map(|_| ())
}

/// Measures.
///
/// # Errors
/// If there are too few CPUs, a process does not start or ends, nothing is kept off although it
/// should be, or on a signal.
pub fn measure(machine: &Machine, interrupt: &Interrupt, settings: &Settings) -> anyhow::Result<Figures> {
    let places = Places::new(&machine.usable_cores).map_err(anyhow::Error::msg)?;
    let _off = OffManaged::new(&places.lent)?;
    let socket = format!("@tailwater-exclusive-{}", std::process::id());
    let group = settings.keep_off.first().map(|outer| Group::within(outer)).transpose()?;
    let folder = Folder::new()?;
    let _iokernel = start_iokernel(machine, &places, &socket, settings, folder.path())?;
    let mut program = start_program(&socket)?;
    let line = program.read_line(interrupt)?;
    let core = line.strip_prefix(READY).and_then(|core| core.parse().ok());
    let core = core.with_context(|| format!("the child printed {line:?}, no core"))?;
    // Declared after its group, so dropped before it.
    let ordinary = start_ordinary(machine, interrupt)?;
    if let Some(group) = &group {
        group.add(ordinary.id())?;
        await_kept_off(&ordinary, core, interrupt)?;
    }
    let (mut trace, untraced) = match Trace::begin(&places.lent) {
        Ok(trace) => (Some(trace), None),
        Err(why) => (None, Some(why.to_string())),
    };
    note!("an exclusive thread, {:.0} s", settings.time.as_secs_f64());
    program.ask()?;
    let begun = Instant::now();
    while begun.elapsed() < settings.time {
        interrupt.sleep_until((Instant::now() + LOOK).min(begun + settings.time))?;
        trace.iter_mut().for_each(Trace::take);
    }
    let kept_off = group.is_some() && !may_use(&ordinary, core);
    program.ask()?;
    let seconds = begun.elapsed().as_secs_f64();
    let (periods, ending) = read_ending(&mut program, interrupt)?;
    let counts = trace.map(|trace| trace.finish(&periods)).transpose()?;
    let clock = Clock::calibrate(20);
    let of = |count: fn(&Counts) -> u64| counts.as_ref().map(count);
    drop((program, ordinary));
    Ok(Figures {
        seconds,
        core_moves: periods.len().saturating_sub(1),
        other_user_threads: ending.other_user_threads,
        looks: ending.looks,
        ordinary_switches: of(|counts| counts.ordinary),
        ordinary_ns: of(|counts| counts.ordinary_cycles).map(|cycles| clock.to_ns(cycles)),
        kernel_switches: of(|counts| counts.kernel),
        kept_off,
        untraced,
        who: counts.map(|counts| counts.who).unwrap_or_default(),
    })
}

fn start_iokernel(
    machine: &Machine,
    places: &Places,
    socket: &str,
    settings: &Settings,
    folder: &Path,
) -> anyhow::Result<Embedded> {
    let state_file = folder.join("cpusets");
    let config = Config {
        policy: PolicyName::Arbiter,
        reserve: ReserveSettings { keep_off: settings.keep_off.clone(), state_file },
        priority: Priority::Thread,
        ..lending(socket, places.polling, &places.lent)
    };
    Embedded::with_ports(config, Vec::new(), Some(machine.usable_cores.clone()))
}

fn start_program(socket: &str) -> anyhow::Result<ChildProcess> {
    let settings = [
        ("TAILWATER_IOKERNEL", socket),
        ("TAILWATER_NAME", "exclusive"),
        ("TAILWATER_CLASS", "latency-critical"),
        ("TAILWATER_KTHREADS", &KTHREADS.to_string()),
    ];
    ChildProcess::start(&Spec {
        app: "cores",
        arguments: vec!["exclusive".to_owned()],
        settings: settings.map(|(name, value)| (name, value.to_owned())).to_vec(),
        // It may share the polling core.
        raise: true,
        ..Spec::default()
    })
}

/// Starts an ordinary program that computes, with two threads for each core, on any of them.
fn start_ordinary(machine: &Machine, interrupt: &Interrupt) -> anyhow::Result<Batch> {
    let threads = (2 * machine.usable_cores.len()).to_string();
    let words = ["--linux", "--threads", &threads, "--report-on-input"];
    let arguments = words.map(str::to_owned).to_vec();
    let cores = machine.usable_cores.clone();
    Batch::start(&Spec { app: "swaptions", arguments, cores, ..Spec::default() }, interrupt)
}

/// Returns whether the main thread of the ordinary program may run on a core.
fn may_use(ordinary: &Batch, core: usize) -> bool {
    let pid = Pid::from_raw(ordinary.id().cast_signed());
    sched_getaffinity(pid).is_ok_and(|allowed| allowed.is_set(core))
}

fn await_kept_off(ordinary: &Batch, core: usize, interrupt: &Interrupt) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    while may_use(ordinary, core) {
        anyhow::ensure!(
            Instant::now() < deadline,
            "--keep-off has no effect: it needs root, Linux 6.2, cpusets in these groups, and this program in none of them; \
             see the line cpusets of `tailwater doctor`"
        );
        interrupt.sleep_until(Instant::now() + LOOK)?;
    }
    Ok(())
}

/// Reads what the program prints at its end.
fn read_ending(program: &mut ChildProcess, interrupt: &Interrupt) -> anyhow::Result<(Vec<Period>, Ending)> {
    let mut periods: Vec<Period> = Vec::new();
    loop {
        let line = program.read_line(interrupt)?;
        match serde_json::from_str(&line) {
            Ok(period) => periods.push(period),
            Err(_) => {
                let ending = serde_json::from_str(&line);
                return Ok((periods, ending.with_context(|| format!("the child printed {line:?}"))?));
            }
        }
    }
}

/// Returns the figures as a table.
pub fn describe(figures: &Figures) -> String {
    let mut table = Table::new("on the core of an exclusive thread | times | for, us");
    let mut row = |what: &str, times: Option<u64>, us: Option<f64>| {
        let times = times.map_or_else(|| "?".to_owned(), |times| times.to_string());
        table.row([what.to_owned(), times, us.map(number).unwrap_or_default()]);
    };
    row("another user thread", Some(figures.other_user_threads), None);
    row("an ordinary thread", figures.ordinary_switches, figures.ordinary_ns.map(|ns| ns as f64 / 1e3));
    row("a kernel thread", figures.kernel_switches, None);
    let kept = if figures.kept_off { "were" } else { "were not" };
    let who = figures.who.iter().map(|(thread, times)| format!("{thread} {times} times\n"));
    let untraced = figures.untraced.as_ref().map(|why| format!("ordinary threads were not counted: {why}\n"));
    format!(
        "{table}\nin {} s and {} looks of other user threads; it moved {} times; ordinary threads {kept} kept off\n{}{}",
        number(figures.seconds),
        figures.looks,
        figures.core_moves,
        who.collect::<String>(),
        untraced.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_cpus_are_needed() {
        assert!(Places::new(&[0, 1]).unwrap_err().contains("three CPUs"));
        assert_eq!(Places::new(&[1, 3, 5, 7]), Ok(Places { polling: 1, lent: [3, 5] }));
    }

    #[test]
    fn what_was_not_counted_is_absent_and_said() {
        let figures = Figures {
            seconds: 1.0,
            core_moves: 0,
            other_user_threads: 0,
            looks: 7,
            ordinary_switches: None,
            ordinary_ns: None,
            kernel_switches: None,
            kept_off: false,
            untraced: Some("needs CAP_BPF".to_owned()),
            who: BTreeMap::new(),
        };
        let json = serde_json::to_value(&figures).unwrap();
        assert!(json.get("ordinary_switches").is_none() && json["kept_off"] == false, "{json}");
        assert!(describe(&figures).contains("not counted: needs CAP_BPF"));
    }
}
