//! `tailwater trace`: follows single requests through ports, rings, cores and threads, and explains
//! the slow ones.
//!
//! Owns the arguments and the reading of events. The IOKernel records events all the time; this
//! program reads those of a trace that it asks for, or of the time before it came. The IOKernel
//! never waits for it: when it is slow, events are missing, and their number is printed at the end.
//!
//! | module | owns |
//! |---|---|
//! | [`watch`] | the connection to the IOKernel and its record of events |
//! | [`collect`], [`cores`] | requests and tenancies of cores, made from events |
//! | [`stages`] | a request divided into stages |
//! | [`report`], [`perfetto`] | the text and the JSON document made of them |
//! | [`snapshots`], [`trigger`] | files written when something goes wrong, and what that is |

pub mod collect;
pub mod cores;
mod perfetto;
mod report;
mod snapshots;
pub mod stages;
#[cfg(test)]
mod tests;
mod trigger;
pub mod watch;

use std::io::{BufWriter, IsTerminal, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde_json::Value;
use tailwater_shm::clock;
use tailwater_shm::control::TraceRequest;
use tailwater_testbed::socket::IokernelArg;
use tailwater_workload::units::parse_time_ns;

use crate::{output, query};
use collect::Collector;
use report::Report;
use tailwater_testbed::core_use::Linux;
use tailwater_testbed::interrupt::{Interrupt, Interrupted};
use tailwater_testbed::note;
use tailwater_testbed::statistics::lent_cores;
use trigger::Trigger;
use watch::{Losses, Watch};

/// Pause after no event was found: few wake-ups disturb the traced programs less than many. The
/// record has 262,144 slots for each managed core, and some events take two. That is enough for
/// 0.1 s of 100,000 traced requests and as many hand-offs a second.
const PAUSE: Duration = Duration::from_millis(5);

/// Maximum number of events read between two checks of the time: events may arrive faster than they
/// are read.
const EVENTS: usize = 16_384;

/// Maximum number of events read at the end: as many as the largest record holds.
pub const LAST_EVENTS: usize = 1 << 21;

/// Slices of what Linux did that are kept of a trace: those of 5 s of 100,000 hand-offs a second on
/// two cores.
const MAX_SLICES: usize = 1 << 20;

/// Trace single requests through the IOKernel and a service, and explain the slow ones
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater trace                                    5 s, one request of 1000
  tailwater trace --program spin --sample 100 --slowest 20
  tailwater trace --sample 1 --duration 200ms --out trace.json
                                                     every request; open the file in ui.perfetto.dev
  tailwater trace --last 500ms --out trace.json      what has just happened
  tailwater trace --on eviction,stall,slo,handoff=50us --folder /var/tmp/traces
                                                     the last 500 ms whenever one happens
  tailwater trace --iokernel @tailwater-testbed-4711 of a `tailwater demo` with this process id

The IOKernel always records what cores do, and one request of 1000. --last shows the end of that: seconds on a busy \
machine, longer on a quiet one. --on does that whenever something goes wrong, until it is interrupted: a thread was \
moved off its core (eviction), the IOKernel's polling thread made no progress (stall), more than one in a hundred \
requests of a class took longer than its target (slo), or hand-offs did (handoff=TIME, their 99th percentile); and at \
SIGUSR2. The files of --on, and that of --out without --last, also have the threads of Linux and the interrupts on \
managed cores, where eBPF is allowed (root, or CAP_BPF and CAP_PERFMON). Requests come from ports (load generator, \
TAP, AF_XDP). The reply is the next frame that is sent back by the thread which read the request. Times are those at \
which the IOKernel and the program see an event, in nanoseconds. Needs the IOKernel's user, or root.")]
pub struct TraceArgs {
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Trace one request of N
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// Length of the trace
    #[arg(long, value_name = "DURATION", value_parser = parse_time_ns, default_value = "5s")]
    duration: u64,
    /// Only requests to this program (its name in `tailwater ps`), also if it starts later
    #[arg(long = "program", alias = "runtime", value_name = "NAME")]
    runtime: Option<String>,
    /// Show what the IOKernel recorded in the last DURATION, and trace nothing [default with --on:
    /// 500ms]
    #[arg(long, value_name = "DURATION", value_parser = parse_time_ns, conflicts_with_all = ["sample", "duration"])]
    last: Option<u64>,
    /// Write a file of what was recorded before whenever one of these happens: eviction, stall,
    /// slo, handoff=TIME (1, 2 or 5 times a power of ten)
    #[arg(long, value_name = "WHAT,..", value_delimiter = ',', value_parser = Trigger::from_str,
          conflicts_with_all = ["sample", "duration", "runtime", "slowest", "out"])]
    on: Vec<Trigger>,
    /// Folder of these files
    #[arg(long, value_name = "FOLDER", requires = "on", default_value = ".")]
    folder: PathBuf,
    /// Keep at most this many files for each word of --on: the oldest is removed
    #[arg(long, value_name = "N", requires = "on", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    files: u16,
    /// Number of the slowest requests to show
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    slowest: u16,
    /// Write all requests and cores as JSON for ui.perfetto.dev or chrome://tracing; -: to standard
    /// output, and the report to standard error
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Traces until the time is over or a signal arrives, or reads what was recorded before; then
/// prints and writes.
///
/// # Errors
/// If nothing listens at the socket, the request is refused, or the file cannot be written.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    if !args.on.is_empty() {
        return snapshots::run(args);
    }
    let is_standard_output = args.out.as_deref() == Some(Path::new("-"));
    args.out.as_deref().filter(|_| !is_standard_output).map_or(Ok(()), check_file)?;
    let mut collector = Collector::default();
    let (watch, end, linux, connected) = match args.last {
        Some(ns) => {
            let watch = look_back(args, ns, &mut collector)?;
            let end = watch.anchor();
            (watch, end, None, true)
        }
        None => {
            let (watch, linux, connected) = trace(args, &mut collector)?;
            (watch, clock::now(), linux, connected)
        }
    };
    let seen = linux.as_ref().map(Linux::seen);
    let losses = Losses { events: watch.overwritten, steps: collector.lost_steps };
    let report = Report::new(&collector, &watch.names, watch.clock(), losses);
    let written = args.out.as_deref().map_or(Ok(()), |path| {
        let document = perfetto::document(&collector, &watch.names, watch.clock(), end, seen.as_ref());
        write_document(&document, (!is_standard_output).then_some(path))
    });
    if let Some(lost @ 1..) = seen.map(|seen| seen.lost) {
        note!("{lost} events of Linux were lost: the file lacks them");
    }
    // After the file, which a closed standard output must not cost, and also without one.
    let text = report.text(args.slowest.into());
    match is_standard_output {
        true => write!(stderr(), "{text}")?,
        false => write!(stdout(), "{text}")?,
    }
    written?;
    anyhow::ensure!(connected, "the IOKernel ended the trace");
    Ok(())
}

/// Writes a document to a file; to standard output if there is none.
fn write_document(document: &Value, file: Option<&Path>) -> anyhow::Result<()> {
    // Of a closed output it is the error of the write, by which `exit` knows it.
    let to_json =
        |out: &mut dyn Write| Ok(serde_json::to_writer(out, document).map_err(std::io::Error::from)?);
    let Some(file) = file else {
        let mut out = BufWriter::new(stdout().lock());
        to_json(&mut out)?;
        return Ok(out.flush()?);
    };
    output::write_private(file, to_json)
}

/// Checks that the file of `--out` can be written.
fn check_file(file: &Path) -> anyhow::Result<()> {
    let checked = output::check_private(file);
    match file.is_symlink() {
        true => checked.context("--out - is standard output, and a link is not followed"),
        false => checked,
    }
}

/// Reads what the IOKernel has recorded during the last `ns` nanoseconds.
fn look_back(args: &TraceArgs, ns: u64, collector: &mut Collector) -> anyhow::Result<Watch> {
    let watch = Watch::look_back(&args.iokernel, ns)?.read_into(collector)?;
    if let Some(name) = &args.runtime {
        collector.keep_requests_to(name, &watch.names);
    }
    watch.note_reach(ns);
    Ok(watch)
}

/// Begins to watch what Linux does on the lent cores, for files; prints why that is refused, once.
fn watch_linux(statistics: &Value, most: usize) -> Option<Linux> {
    Linux::watch(&lent_cores(statistics).unwrap_or_default(), most)
        .map_err(|why| note!("what Linux does on managed cores is not in the file: {why}"))
        .ok()
}

/// Has the IOKernel trace; returns what Linux did, if that goes into a file, and whether the
/// IOKernel traced until the end.
fn trace(args: &TraceArgs, collector: &mut Collector) -> anyhow::Result<(Watch, Option<Linux>, bool)> {
    let interrupt = Interrupt::catch()?;
    let mut linux = match args.out {
        Some(_) => watch_linux(&query::statistics(&args.iokernel)?, MAX_SLICES),
        None => None,
    };
    let request = TraceRequest { every: args.sample, runtime: args.runtime.clone() };
    let mut watch = Watch::begin(&args.iokernel, request)?;
    if stderr().is_terminal() {
        let seconds = Duration::from_nanos(args.duration).as_secs_f64();
        note!("tracing one request of {} for {seconds} s; Ctrl-C ends it sooner", args.sample);
    }
    let take = || linux.iter_mut().for_each(Linux::take);
    let connected = gather(&mut watch, collector, &interrupt, Duration::from_nanos(args.duration), take)?;
    Ok((watch, linux, connected))
}

/// Reads events until the time is over, a signal arrives, or the IOKernel ends the trace; false in
/// the last case. Calls `take` again and again meanwhile.
fn gather(
    watch: &mut Watch,
    collector: &mut Collector,
    interrupt: &Interrupt,
    duration: Duration,
    mut take: impl FnMut(),
) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let (mut connected, mut interrupted) = (true, false);
    loop {
        let over = interrupted || !connected || begun.elapsed() >= duration;
        take();
        let mut read = 0;
        let most = if over { LAST_EVENTS } else { EVENTS };
        while read < most
            && let Some((at, event)) = watch.next()?
        {
            collector.push(at, event);
            read += 1;
        }
        if over {
            // Of programs that have registered meanwhile.
            watch.learn_names();
            return Ok(connected);
        }
        let pause = if read < most { PAUSE } else { Duration::ZERO };
        // The IOKernel sends nothing unasked: a readable socket has been closed.
        match interrupt.wait_readable(Some(watch.socket()), Instant::now() + pause) {
            Ok(readable) => connected = !readable,
            Err(Interrupted) => interrupted = true,
        }
    }
}
