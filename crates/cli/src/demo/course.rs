//! The course of a demo: everything that is fixed before the first measurement.
//!
//! Owns the options, the cores, the length of each point such that the whole run fits its time, and
//! the plan and seed of each point. Pure: the list of usable cores is an argument.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tailwater_loadgen::Plan;
use tailwater_workload::units::format_duration_ns;
use tailwater_workload::{LoadSchedule, Rate, ServiceTime};

use tailwater_testbed::CorePlan;
use tailwater_testbed::bed::OVERHEAD;

use crate::run::find_program;

/// Time a full run may take.
const FULL: Duration = Duration::from_secs(84);
/// Time a quick run may take.
const QUICK: Duration = Duration::from_secs(17);
/// Maximum number of loads of one run.
const MAX_LOADS: usize = 20;
/// Source ports of the generator on Tailwater: enough for flows to spread over kthreads.
const FLOWS: u16 = 64;

const MS: u64 = 1_000_000;

/// Run a service and a batch job on the same cores, on Tailwater and on Linux, and compare
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater demo
  tailwater demo --quick
  tailwater demo --service bimodal --loads 20,50,80 --json /tmp/demo.json --svg /tmp/demo.svg
  tailwater demo --batch 'xz -9 -T1 -kc /usr/bin/python3' --loads 10,30,50

Core 0 runs the IOKernel with an open-loop load generator inside. The other cores (up to 3) are shared by a spin \
server, which works as long as each request asks, and a Monte Carlo batch job. The same work then runs on plain \
Linux: server pinned to the same cores, batch job in the SCHED_IDLE class beside it, generator on core 0 over UDP. \
Nothing needs root.

With --batch the batch job is any program, run again and again: on Tailwater as `tailwater run --batch` runs it, on \
Linux in SCHED_IDLE. Its trials are microseconds of processor time then, and other programs have their share of core \
0 as by default (neighbour-share = 10).")]
pub struct DemoArgs {
    /// At most 20 seconds, with fewer loads
    #[arg(long)]
    pub quick: bool,
    /// File for the numbers
    #[arg(long, value_name = "FILE", default_value = "demo.json")]
    pub json: PathBuf,
    /// File for the plot
    #[arg(long, value_name = "FILE", default_value = "demo.svg")]
    pub svg: PathBuf,
    /// Service time: exponential, constant or bimodal, all 10 us on average, or a distribution such
    /// as lognormal:10us,sigma=1.5
    #[arg(long, default_value = "exponential", value_parser = parse_service)]
    pub service: ServiceTime,
    /// Batch job: a program with its arguments, quoted as for a shell, though no shell runs it;
    /// what it prints is discarded [default: a Monte Carlo simulation written for Tailwater]
    #[arg(long, value_name = "COMMAND", value_parser = parse_command)]
    pub batch: Option<BatchCommand>,
    /// Loads in percent of the shared cores [default: 10,20,..,90; with --quick 20,50,80]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_load)]
    pub loads: Vec<f64>,
    /// How the Linux server waits for requests
    #[arg(long, value_enum, default_value_t = LinuxWait::Auto)]
    pub linux_wait: LinuxWait,
    /// Cores guaranteed to the service on Tailwater
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1))]
    pub guaranteed: u16,
    /// Seed of arrivals and service times
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchCommand(pub Vec<String>);

fn parse_command(text: &str) -> Result<BatchCommand, String> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    let words = words.ok_or("a program and its arguments are needed, with quotes that end")?;
    // Here, and not in the middle of the measurement.
    find_program(words[0].as_ref()).map_err(|error| error.to_string())?;
    Ok(BatchCommand(words))
}

/// How the Linux server waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinuxWait {
    /// Whichever is better in a short trial
    Auto,
    /// Blocked in the kernel
    Block,
    /// Polling its socket
    Busy,
}

fn parse_service(text: &str) -> Result<ServiceTime, String> {
    let notation = match text {
        "exponential" | "exp" => "exp:10us",
        "constant" | "const" => "const:10us",
        "bimodal" => "bimodal:0.9*5us+0.1*55us",
        other => other,
    };
    let service: ServiceTime =
        notation.parse().map_err(|e: tailwater_workload::service::ServiceTimeError| e.to_string())?;
    // Below, the generator would be measured; above, a point has too few requests for its
    // percentiles.
    if (1_000.0..=200_000.0).contains(&service.mean_ns()) {
        Ok(service)
    } else {
        Err("the mean must be between 1us and 200us".to_owned())
    }
}

fn parse_load(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if (1.0..=150.0).contains(&percent) => Ok(percent),
        _ => Err("a load is a percentage from 1 to 150, for instance 50".to_owned()),
    }
}

/// A run: its cores, loads and durations.
#[derive(Debug, Clone)]
pub struct Course {
    pub cores: CorePlan,
    pub service: ServiceTime,
    /// Loads in percent of all managed cores.
    pub loads: Vec<f64>,
    pub guaranteed: u16,
    /// The batch job, unless it is the one that is written for Tailwater.
    pub job: Vec<String>,
    seed: u64,
    quick: bool,
    /// Uncounted first part of a point.
    warm_up: Duration,
    /// Counted part of a point.
    counted: Duration,
    /// How long the batch job runs alone before each point, and again after it.
    pub solo: Duration,
    /// How long the machine's noise is measured.
    pub noise: Duration,
    trial: Duration,
}

/// The options of a run, for `demo.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OptionRecord {
    quick: bool,
    service: String,
    seed: u64,
    guaranteed: u16,
    /// The program that is the batch job; absent if it is the one that is written for Tailwater.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    batch: Vec<String>,
    polling_core: usize,
    managed_cores: Vec<usize>,
    counted_s: f64,
}

impl Course {
    /// Plans a run on the `usable` cores.
    ///
    /// # Errors
    /// If there are fewer than two cores, too many loads for the time, or one twice.
    pub fn new(args: &DemoArgs, usable: Vec<usize>) -> anyhow::Result<Self> {
        anyhow::ensure!(args.loads.len() <= MAX_LOADS, "at most {MAX_LOADS} loads fit into a run");
        for (n, load) in args.loads.iter().enumerate() {
            anyhow::ensure!(!args.loads[..n].contains(load), "load {load} is listed twice");
        }
        let loads = match (args.loads.is_empty(), args.quick) {
            (false, _) => args.loads.clone(),
            (true, true) => vec![20.0, 50.0, 80.0],
            (true, false) => (1..=9).map(|i| f64::from(i) * 10.0).collect(),
        };
        let ms = Duration::from_millis;
        let solo = ms(150);
        let (total, noise, trial, warm_up) =
            if args.quick { (QUICK, ms(400), ms(400), ms(150)) } else { (FULL, ms(1_000), ms(700), ms(300)) };
        // Two trials of Linux, and two systems at every load; around each the batch job runs alone.
        let points = 2 * loads.len() as u32;
        let around = warm_up + OVERHEAD + 2 * solo;
        let left = total.saturating_sub(noise + 2 * (trial + around)) / points;
        let counted = left.saturating_sub(around).clamp(ms(300), ms(5_000));
        Ok(Self {
            cores: CorePlan::new(usable)?,
            service: args.service.clone(),
            loads,
            guaranteed: args.guaranteed,
            job: args.batch.as_ref().map_or_else(Vec::new, |BatchCommand(words)| words.clone()),
            seed: args.seed,
            quick: args.quick,
            warm_up,
            counted,
            solo,
            noise,
            trial,
        })
    }

    /// Returns the percentage of the polling core for other programs: that of the default settings
    /// beside a batch job that Linux runs, none in the experiment of the papers.
    pub fn neighbour_share(&self) -> u8 {
        if self.job.is_empty() { 0 } else { tailwater_iokernel::Config::default().neighbour_share }
    }

    /// Returns the run in words.
    pub fn describe(&self) -> String {
        format!(
            "{}\n{} of work per request, {} loads, {} counted per point \
             and system, all in one session (one autogroup)",
            self.cores.describe(),
            self.service_text(),
            self.loads.len(),
            format_duration_ns(self.counted.as_millis() as u64 * MS)
        )
    }

    /// Returns the service time in its notation.
    pub fn service_text(&self) -> String {
        self.service.to_string()
    }

    /// Returns the options, for `demo.json`.
    pub fn options(&self) -> OptionRecord {
        OptionRecord {
            quick: self.quick,
            service: self.service_text(),
            seed: self.seed,
            guaranteed: self.guaranteed,
            batch: self.job.clone(),
            polling_core: self.cores.polling,
            managed_cores: self.cores.managed.clone(),
            counted_s: self.counted.as_secs_f64(),
        }
    }

    /// Returns the plan of the point at `loads[index]`; the same for both systems.
    ///
    /// # Errors
    /// If the load is no possible rate.
    pub fn plan(&self, index: usize) -> anyhow::Result<Plan> {
        self.plan_for(self.loads[index], self.counted)
    }

    /// Returns the plan of a point whose system is known to be saturated.
    ///
    /// # Errors
    /// As [`Course::plan`].
    pub fn short_plan(&self, index: usize) -> anyhow::Result<Plan> {
        self.plan_for(self.loads[index], (self.counted / 3).max(Duration::from_millis(300)))
    }

    /// Returns the load and the plan of the trial that chooses how the Linux server waits. At this
    /// load both ways keep up.
    ///
    /// # Errors
    /// As [`Course::plan`].
    pub fn trial(&self) -> anyhow::Result<(f64, Plan)> {
        const LOAD: f64 = 30.0;
        Ok((LOAD, self.plan_for(LOAD, self.trial)?))
    }

    /// Returns the seed of the point at `loads[index]`; the same for both systems.
    pub fn seed(&self, index: usize) -> u64 {
        self.seed.wrapping_add(index as u64)
    }

    fn plan_for(&self, percent: f64, counted: Duration) -> anyhow::Result<Plan> {
        let rate = Rate::for_load(percent / 100.0, self.cores.managed.len() as f64, self.service.mean_ns())?;
        let length = self.warm_up + counted;
        Ok(Plan {
            warm_up_ns: self.warm_up.as_nanos() as u64,
            flows: FLOWS,
            ..Plan::new(LoadSchedule::constant(rate, length.as_nanos() as u64), self.service.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: DemoArgs,
    }

    fn course(options: &[&str], cores: usize) -> Course {
        let words = ["demo"].iter().chain(options);
        Course::new(&Command::try_parse_from(words).unwrap().args, (0..cores).collect()).unwrap()
    }

    fn length(course: &Course) -> Duration {
        let around = course.warm_up + OVERHEAD + 2 * course.solo;
        course.noise + 2 * (course.trial + around) + (course.counted + around) * 2 * course.loads.len() as u32
    }

    #[test]
    fn a_batch_job_is_a_program_with_arguments_as_a_shell_splits_them() {
        let words = parse_command("sh -c 'exit 3'").unwrap();
        assert_eq!(words, BatchCommand(vec!["sh".into(), "-c".into(), "exit 3".into()]));
        assert!(parse_command("no-such-program -9").unwrap_err().contains("no-such-program"));
        assert!(parse_command(" ").is_err() && parse_command("xz 'a").is_err());
    }

    #[test]
    fn runs_fit_their_time() {
        assert!(length(&course(&[], 2)) <= FULL);
        assert!(length(&course(&["--quick"], 2)) <= QUICK);
        assert!(course(&[], 2).counted >= Duration::from_secs(3));
        assert!(course(&["--quick"], 2).counted >= Duration::from_secs(1));
    }

    #[test]
    fn more_cores_are_used_and_load_follows_them() {
        let (two, eight) = (course(&["--loads", "50"], 2), course(&["--loads", "50"], 8));
        assert_eq!((two.cores.polling, &two.cores.managed[..]), (0, &[1][..]));
        assert_eq!(eight.cores.managed, [1, 2, 3]);
        let rate = |course: &Course| course.plan(0).unwrap().schedule.peak_rate().per_second();
        assert_eq!((rate(&two).round(), rate(&eight).round()), (50_000.0, 150_000.0));
    }

    #[test]
    fn the_named_services_have_the_same_mean() {
        for name in ["exponential", "constant", "bimodal", "lognormal:10us,sigma=1"] {
            assert!((parse_service(name).unwrap().mean_ns() - 10_000.0).abs() < 1e-6, "{name}");
        }
        assert!(parse_service("exp:1s").is_err() && parse_service("nonsense").is_err());
    }

    #[test]
    fn loads_are_percentages() {
        assert_eq!(course(&["--loads", "20,55.5%"], 2).loads, [20.0, 55.5]);
        assert!(parse_load("0").is_err() && parse_load("x").is_err() && parse_load("inf").is_err());
    }
}
