//! The command line `tailwater-lab sim`, ready to be mounted; and, in [`pareto`], that of
//! `tailwater-lab pareto`.
//!
//! Owns arguments, progress, and the output. A scenario file gives a study's fields; options on the
//! command line override them. Results are printed as a table; `--csv`, `--json` and `--svg` write
//! files. Progress goes to standard error, as a bar on a terminal and not at all otherwise, so
//! standard output is the same in both cases.

pub mod pareto;

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Serialize, de::DeserializeOwned};

use crate::costs::Costs;
use crate::mix::Mix;
use crate::notation::{parse_loads, parse_policies};
use crate::report::write_file;
use crate::study::allocators::{self, AllocatorStudy};
use crate::study::beside::{self, MeasuredDemo};
use crate::study::connections::{self, ConnectionStudy};
use crate::study::demo;
use crate::study::fleet::{self, FleetStudy};
use crate::study::plan::{self, PlanStudy};
use crate::study::policies::{self, PolicyStudy};
use crate::validate;
use tailwater_plot::table::Table;
use tailwater_plot::{Panel, draw};

/// Arguments of `tailwater-lab sim`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  tailwater-lab sim policies --service bimodal:0.995*500ns+0.005*500us --policies c-fcfs,ps:100ns,sq:5us
  tailwater-lab sim policies --cores 64 --costs paper-2019 --loads 0.5..0.95/10 --svg tail.svg
  tailwater-lab sim allocators --cores 32 --services 4 --arrivals onoff:on=1ms,off=4ms
  tailwater-lab sim demo --beside demo.json
  tailwater-lab sim connections --queues 8,64
  tailwater-lab sim plan --service exp:10us --rate 500k --slo 'p99.9<100us' --cores 16
  tailwater-lab sim plan --fleet trace.csv --svg fleet.svg
  tailwater-lab sim theory")]
pub struct SimArgs {
    /// What to simulate.
    #[command(subcommand)]
    pub study: SimCommand,
}

/// The studies.
#[derive(Clone, Debug, Subcommand)]
pub enum SimCommand {
    /// Compare request-dispatch policies over load.
    Policies(PolicyArgs),
    /// Compare core-allocation policies over load: several bursty services and a batch job.
    Allocators(AllocatorArgs),
    /// The demo's scenario (one service and a batch job on one core), simulated, alone or beside a
    /// measured one.
    Demo(DemoArgs),
    /// Connections that receive-side scaling needs to balance cores (Monte Carlo).
    Connections(ConnectionArgs),
    /// Which policy, how many cores, what is left for batch work? Or, from a trace of a fleet, how
    /// many cores does lending save?
    Plan(PlanArgs),
    /// Check the simulator against queueing theory.
    Theory(TheoryArgs),
}

/// Where results go.
#[derive(Clone, Debug, Default, Args)]
pub struct OutputArgs {
    /// Write all numbers as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the study and all numbers as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the result.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// How much to run.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct EffortArgs {
    /// Requests measured per replication of each point [default: 200000].
    #[arg(long)]
    pub requests: Option<u64>,
    /// Independent replications of each point [default: 4].
    #[arg(long)]
    pub replications: Option<u32>,
    /// Seed of everything random [default: 1].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Threads; changes only the time it takes [default: all].
    #[arg(long)]
    pub threads: Option<usize>,
}

impl EffortArgs {
    fn apply(&self, effort: &mut crate::study::Effort) {
        set(&mut effort.requests, self.requests);
        set(&mut effort.replications, self.replications);
        set(&mut effort.seed, self.seed);
        set(&mut effort.threads, self.threads);
    }
}

/// Arguments of `sim policies`.
#[derive(Clone, Debug, Args)]
pub struct PolicyArgs {
    /// Scenario file (TOML).
    pub scenario: Option<PathBuf>,
    /// Policies, as listed in the help.
    #[arg(
        long,
        help = "Policies: d-fcfs, c-fcfs, steal[:N], ps:TIME, sq:TIME[,head|tail], mq:TIME[,head|tail], jbsq:K[,TIME], srpt, reserved [default: d-fcfs,c-fcfs,steal,ps:1us,sq:5us]"
    )]
    pub policies: Option<String>,
    /// Service time, as in exp:10us or bimodal:0.9*5us+0.1*55us [default: exp:10us].
    #[arg(long)]
    pub service: Option<String>,
    /// Worker cores [default: 16].
    #[arg(long)]
    pub cores: Option<usize>,
    /// Loads as fractions of all cores: 0.5,0.9 or 10%..90%/9 [default: 0.1..0.9/9].
    #[arg(long)]
    pub loads: Option<String>,
    /// Arrival process: poisson, const or onoff:on=1ms,off=9ms [default: poisson].
    #[arg(long)]
    pub arrivals: Option<tailwater_workload::ArrivalProcess>,
    /// Machine costs: ideal, paper-2019, vm-2vcpu or a profile file [default: ideal].
    #[arg(long)]
    pub costs: Option<String>,
    /// Flows the requests come by [default: unlimited].
    #[arg(long)]
    pub connections: Option<u32>,
    #[command(flatten)]
    effort: EffortArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `sim allocators`.
#[derive(Clone, Debug, Args)]
pub struct AllocatorArgs {
    /// Scenario file (TOML).
    pub scenario: Option<PathBuf>,
    /// Allocators, as listed in the help.
    #[arg(
        long,
        help = "Allocators: congestion-detection[:INTERVAL[:QUANTUM]] (0us: an equal is preempted at once), delay-threshold[:THRESHOLD], arachne, ix-consolidation, ix-energy, static [default: congestion-detection,delay-threshold,arachne,ix-consolidation,static]"
    )]
    pub allocators: Option<String>,
    /// Service time of every service [default: exp:10us].
    #[arg(long)]
    pub service: Option<String>,
    /// Managed cores [default: 8].
    #[arg(long)]
    pub cores: Option<u16>,
    /// Latency-critical services [default: 2].
    #[arg(long)]
    pub services: Option<u16>,
    /// Loads of all services together, as fractions of all cores [default: 0.1..0.8/8].
    #[arg(long)]
    pub loads: Option<String>,
    /// Arrival process: poisson, const or onoff:on=1ms,off=9ms [default: onoff:on=2ms,off=2ms].
    #[arg(long)]
    pub arrivals: Option<tailwater_workload::ArrivalProcess>,
    /// Machine costs: ideal, paper-2019, vm-2vcpu or a profile file [default: paper-2019].
    #[arg(long)]
    pub costs: Option<String>,
    #[command(flatten)]
    effort: EffortArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `sim demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// What `tailwater demo` measured: simulates its loads and prints the differences.
    #[arg(long, value_name = "DEMO.JSON", conflicts_with_all = ["service", "loads", "svg"])]
    pub beside: Option<PathBuf>,
    /// Service time of the service.
    #[arg(long, default_value = "exp:10us")]
    pub service: String,
    /// Loads as fractions of the core.
    #[arg(long, default_value = "0.1..0.9/9")]
    pub loads: String,
    /// Machine costs: ideal, paper-2019, vm-2vcpu or a profile file.
    #[arg(long, default_value = "vm-2vcpu")]
    pub costs: String,
    #[command(flatten)]
    effort: EffortArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `sim connections`.
#[derive(Clone, Debug, Args)]
pub struct ConnectionArgs {
    /// Scenario file (TOML).
    pub scenario: Option<PathBuf>,
    /// Numbers of queues [default: 2 to 24].
    #[arg(long, value_delimiter = ',')]
    pub queues: Option<Vec<usize>>,
    /// Tolerated excess of the fullest queue over the mean [default: 0.1].
    #[arg(long)]
    pub imbalance: Option<f64>,
    /// Probability with which it must hold [default: 0.9].
    #[arg(long)]
    pub probability: Option<f64>,
    /// Random assignments per candidate [default: 2000].
    #[arg(long)]
    pub trials: Option<u32>,
    /// Seed [default: 1].
    #[arg(long)]
    pub seed: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `sim plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Scenario file (TOML).
    pub scenario: Option<PathBuf>,
    /// Service time [default: exp:10us].
    #[arg(long)]
    pub service: Option<String>,
    /// Offered requests per second, as in 500k [default: 800k].
    #[arg(long)]
    pub rate: Option<tailwater_workload::Rate>,
    /// Recorded trace instead: CSV of arrival_ns, service_ns and optionally class.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["service", "rate"])]
    pub trace: Option<PathBuf>,
    /// Objective: p50, p90, p99 or p99.9, then < and a time [default: p99.9<100us].
    #[arg(long)]
    pub slo: Option<String>,
    /// Managed cores of the machine [default: 16].
    #[arg(long)]
    pub cores: Option<usize>,
    /// Policies to consider [default: d-fcfs,steal,c-fcfs,sq:5us,mq:5us,reserved].
    #[arg(long)]
    pub policies: Option<String>,
    /// Arrival process [default: poisson].
    #[arg(long)]
    pub arrivals: Option<tailwater_workload::ArrivalProcess>,
    /// Machine costs: ideal, paper-2019, vm-2vcpu or a profile file [default: paper-2019].
    #[arg(long)]
    pub costs: Option<String>,
    /// Plan for a fleet: CSV of what its services used, with the columns start, end (seconds),
    /// machine, service, cpu (cores) and optionally max_cpu, class, slo, request.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "rate", "trace", "cores", "policies", "arrivals", "replications"])]
    pub fleet: Option<PathBuf>,
    /// With --fleet: names of the columns of a file whose first line has none, in their order,
    /// empty for others; beside those above start_us, end_us (microseconds), task (of a service),
    /// cpu_share and max_cpu_share (of a machine with --machine-cores).
    #[arg(long, value_name = "NAMES", requires = "fleet")]
    pub columns: Option<String>,
    /// With --fleet: cores of the machine of which cpu_share and max_cpu_share are shares.
    #[arg(long, value_name = "N", requires = "fleet", value_parser = machine_cores)]
    pub machine_cores: Option<f64>,
    /// With --fleet: most machines to simulate, drawn by the seed [default: 16].
    #[arg(long, value_name = "N", requires = "fleet")]
    pub machines: Option<usize>,
    /// With --fleet: most intervals of a machine to simulate [default: 6].
    #[arg(long, value_name = "N", requires = "fleet")]
    pub intervals: Option<usize>,
    /// With --fleet: how long a service stays at max_cpu [default: 5ms].
    #[arg(long, value_name = "TIME", requires = "fleet")]
    pub burst: Option<String>,
    #[command(flatten)]
    effort: EffortArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `sim theory`.
#[derive(Clone, Copy, Debug, Args)]
pub struct TheoryArgs {
    /// Requests measured per replication of each case; processor sharing gets a tenth.
    #[arg(long, default_value_t = 2_000_000)]
    pub requests: u64,
    /// Independent replications.
    #[arg(long, default_value_t = 4)]
    pub replications: u32,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print a Markdown table.
    #[arg(long)]
    pub markdown: bool,
}

/// Runs `tailwater-lab sim`.
///
/// # Errors
///
/// If an argument or a scenario file is invalid, or a file cannot be read or written.
pub fn run_sim(args: &SimArgs) -> anyhow::Result<()> {
    match &args.study {
        SimCommand::Policies(args) => run_policies(args),
        SimCommand::Allocators(args) => run_allocators(args),
        SimCommand::Demo(args) => run_demo(args),
        SimCommand::Connections(args) => run_connections(args),
        SimCommand::Plan(args) => run_plan(args),
        SimCommand::Theory(args) => run_theory(args),
    }
}

fn run_policies(args: &PolicyArgs) -> anyhow::Result<()> {
    let mut study: PolicyStudy = load(args.scenario.as_deref())?;
    set(&mut study.policies, args.policies.clone());
    if args.service.is_some() {
        study.class = None;
    }
    set(&mut study.service, args.service.clone());
    set(&mut study.cores, args.cores);
    set(&mut study.loads, args.loads.clone());
    set(&mut study.arrivals, args.arrivals);
    set(&mut study.costs, args.costs.clone());
    study.connections = args.connections.or(study.connections);
    args.effort.apply(&mut study.effort);
    let points = study.points()?.len() as u64;
    let rows =
        watch("policies", points * u64::from(study.effort.replications.max(1)), |tick| study.run(tick))?;
    let mix = study.mix()?;
    writeln!(stdout(), "{}, {} cores, {} costs", mix.describe(), study.cores, study.costs)?;
    write!(stdout(), "{}", policies::table(&rows, &mix))?;
    let title = format!("{} on {} cores, {} costs", mix.describe(), study.cores, study.costs);
    args.output.write(&study, &rows, &policies::csv(&rows), &title, || policies::panels(&rows))
}

fn run_allocators(args: &AllocatorArgs) -> anyhow::Result<()> {
    let mut study: AllocatorStudy = load(args.scenario.as_deref())?;
    set(&mut study.allocators, args.allocators.clone());
    set(&mut study.service, args.service.clone());
    set(&mut study.cores, args.cores);
    set(&mut study.services, args.services);
    set(&mut study.loads, args.loads.clone());
    set(&mut study.arrivals, args.arrivals);
    set(&mut study.costs, args.costs.clone());
    args.effort.apply(&mut study.effort);
    let points = study.points()?.len() as u64;
    let rows =
        watch("allocators", points * u64::from(study.effort.replications.max(1)), |tick| study.run(tick))?;
    let title = format!(
        "{} services ({}, {}) and a batch job on {} cores, {} costs",
        study.services, study.service, study.arrivals, study.cores, study.costs
    );
    let table = allocators::table(&rows);
    writeln!(stdout(), "{title}")?;
    write!(stdout(), "{table}")?;
    args.output.write(&study, &rows, &table, &title, || allocators::panels(&rows))
}

fn run_demo(args: &DemoArgs) -> anyhow::Result<()> {
    let costs = Costs::load(&args.costs)?;
    let mut effort = crate::study::Effort::default();
    args.effort.apply(&mut effort);
    if let Some(path) = &args.beside {
        return run_beside(&MeasuredDemo::read(path)?, &costs, &effort, &args.output);
    }
    let (mix, loads) = (Mix::parse(&args.service)?, parse_loads(&args.loads)?);
    let rows = watch("demo", loads.len() as u64 * u64::from(effort.replications.max(1)), |tick| {
        demo::run(&mix, &loads, &costs, &effort, tick)
    })?;
    let table = demo::table(&rows);
    let title = format!("{} and a batch job on one core, {} costs", mix.describe(), costs.name);
    writeln!(stdout(), "{title}")?;
    write!(stdout(), "{table}")?;
    let study = serde_json::json!({ "service": mix, "costs": costs, "effort": effort });
    args.output.write(&study, &rows, &table, &title, || demo::panels(&rows))
}

fn run_beside(
    measured: &MeasuredDemo,
    costs: &Costs,
    effort: &crate::study::Effort,
    output: &OutputArgs,
) -> anyhow::Result<()> {
    let steps = measured.points.len() as u64 * u64::from(effort.replications.max(1));
    let rows = watch("demo", steps, |tick| beside::run(measured, costs, effort, tick))?;
    let table = beside::table(&rows);
    let MeasuredDemo { commit, service, .. } = measured;
    let title = format!(
        "{service} and a batch job on one core, measured at {commit} and simulated with {} costs",
        costs.name
    );
    writeln!(stdout(), "{title}")?;
    write!(stdout(), "{table}")?;
    let study = serde_json::json!({ "service": service, "commit": commit, "costs": costs, "effort": effort });
    output.write(&study, &rows, &table, &title, Vec::new)
}

fn run_connections(args: &ConnectionArgs) -> anyhow::Result<()> {
    let mut study: ConnectionStudy = load(args.scenario.as_deref())?;
    set(&mut study.queues, args.queues.clone());
    set(&mut study.imbalance, args.imbalance);
    set(&mut study.probability, args.probability);
    set(&mut study.trials, args.trials);
    set(&mut study.seed, args.seed);
    let rows = watch("connections", study.queues.len() as u64, |tick| study.run(tick))?;
    let table = connections::table(&rows);
    write!(stdout(), "{table}")?;
    args.output.write(&study, &rows, &table, "Connections needed for balance", || connections::panels(&rows))
}

fn run_plan(args: &PlanArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.fleet {
        return run_fleet(args, path);
    }
    let mut study: PlanStudy = load(args.scenario.as_deref())?;
    if args.service.is_some() {
        study.class = None;
    }
    set(&mut study.service, args.service.clone());
    set(&mut study.rate, args.rate);
    set(&mut study.slo, args.slo.clone());
    set(&mut study.cores, args.cores);
    set(&mut study.policies, args.policies.clone());
    set(&mut study.arrivals, args.arrivals);
    set(&mut study.costs, args.costs.clone());
    study.trace = args.trace.clone().or(study.trace);
    args.effort.apply(&mut study.effort);
    let plan = watch("plan", parse_policies(&study.policies)?.len() as u64, |tick| study.run(tick))?;
    let table = plan::table(&plan, &study.slo);
    let title = plan::describe(&study);
    writeln!(stdout(), "{title}")?;
    write!(stdout(), "{table}")?;
    writeln!(stdout(), "{}", plan.verdict)?;
    args.output.write(&study, &plan, &table, &title, || plan::panels(&plan))
}

/// Parses a number of cores.
fn machine_cores(text: &str) -> Result<f64, String> {
    let cores = text.parse::<f64>().ok().filter(|cores| cores.is_finite() && *cores > 0.0);
    cores.ok_or_else(|| "write a number above 0".to_owned())
}

fn run_fleet(args: &PlanArgs, path: &Path) -> anyhow::Result<()> {
    let (fleet, columns, machine_cores) = (path.to_owned(), args.columns.clone(), args.machine_cores);
    let mut study = FleetStudy { fleet, columns, machine_cores, ..FleetStudy::default() };
    set(&mut study.service, args.service.clone());
    set(&mut study.slo, args.slo.clone());
    set(&mut study.burst, args.burst.clone());
    set(&mut study.costs, args.costs.clone());
    set(&mut study.machines, args.machines);
    set(&mut study.intervals, args.intervals);
    args.effort.apply(&mut study.effort);
    let plan = watch("fleet", study.steps(), |tick| study.run(tick))?;
    let title = format!("{}, {} machines, {} costs", path.display(), plan.machines, study.costs);
    let machines = fleet::machines_table(&plan);
    writeln!(stdout(), "{title}")?;
    write!(stdout(), "{}\n{machines}", fleet::table(&plan))?;
    writeln!(stdout(), "{}", plan.verdict)?;
    args.output.write(&study, &plan, &machines, &title, || fleet::panels(&plan))
}

fn run_theory(args: &TheoryArgs) -> anyhow::Result<()> {
    let replications = args.replications.max(1);
    let threads = crate::scenario::default_threads();
    let rows = watch("theory", validate::CASES as u64 * u64::from(replications), |tick| {
        validate::run(args.requests.max(1_000), replications, threads, args.seed, tick)
    })?;
    let table = validate::table(&rows);
    write!(stdout(), "{}", if args.markdown { table.to_markdown() } else { table.to_string() })?;
    Ok(())
}

impl OutputArgs {
    fn write(
        &self,
        study: &impl Serialize,
        rows: &impl Serialize,
        csv: &Table,
        title: &str,
        panels: impl FnOnce() -> Vec<Panel>,
    ) -> anyhow::Result<()> {
        if let Some(path) = &self.csv {
            write_file(path, &csv.to_csv())?;
        }
        if let Some(path) = &self.json {
            write_file(path, &json(&serde_json::json!({ "study": study, "rows": rows }))?)?;
        }
        if let Some(path) = &self.svg {
            write_file(path, &draw(title, &panels()))?;
        }
        Ok(())
    }
}

fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

/// Reads a study from a scenario file, or its defaults without one.
fn load<T: DeserializeOwned + Default>(path: Option<&Path>) -> anyhow::Result<T> {
    let Some(path) = path else { return Ok(T::default()) };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read scenario {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("scenario {}", path.display()))
}

/// Runs a study, which calls its argument after each of so many steps, beside a progress bar, which
/// is hidden unless standard error is a terminal.
fn watch<T>(
    what: &'static str,
    steps: u64,
    study: impl FnOnce(&(dyn Fn() + Sync)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let bar = ProgressBar::new(steps).with_message(what);
    let style = ProgressStyle::with_template("{msg:14} {wide_bar} {pos}/{len} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let result = study(&|| bar.inc(1));
    bar.finish_and_clear();
    result
}
