//! The command line `tailwater-lab pareto`, ready to be mounted.
//!
//! Owns its arguments and output; the study is [`pareto`](crate::study::pareto).

use std::io::{Write, stdout};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{EffortArgs, OutputArgs, load, set, watch};
use crate::report::write_file;
use crate::study::pareto::{Aim, ParetoStudy, panels, table};

/// Find the static frontier of cores, hyperthreads and clock rates, as steps for IX's control loop
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  tailwater-lab pareto                                      least power, on the machine of IX's paper
  tailwater-lab pareto --aim batch --config steps.toml      most for a batch job, as a configuration
  tailwater-lab pareto --cores 4 --threads 2 --mhz 800,1600,2600 --turbo 3600 --service exp:20us

Everything is simulated, with a model of power whose constants a scenario file can replace.")]
pub struct ParetoArgs {
    /// Scenario file (TOML).
    pub scenario: Option<PathBuf>,
    /// What to find the best of [default: energy].
    #[arg(long)]
    pub aim: Option<AimArg>,
    /// Managed physical cores [default: 8].
    #[arg(long)]
    pub cores: Option<u16>,
    /// Hyperthreads of each [default: 2].
    #[arg(long)]
    pub threads: Option<u16>,
    /// Clock rates in MHz, ascending, up to the nominal one; 0 if none can be set [default: 1200 to
    /// 2400 in steps of 100].
    #[arg(long, value_delimiter = ',')]
    pub mhz: Option<Vec<u32>>,
    /// Highest clock rate with Turbo Boost; 0 without [default: 2800, without --mhz].
    #[arg(long, value_name = "MHZ")]
    pub turbo: Option<u32>,
    /// Service time at the nominal clock rate [default: exp:10us].
    #[arg(long)]
    pub service: Option<String>,
    /// Objective.
    // Rustdoc would take the default for a link.
    #[arg(long, help = "Objective: p50, p90, p99 or p99.9, then < and a time [default: p99<500us]")]
    pub slo: Option<String>,
    /// Number of loads up to the throughput of the whole machine [default: 24].
    #[arg(long)]
    pub levels: Option<u16>,
    /// Machine costs: ideal, paper-2019, vm-2vcpu or a profile file [default: paper-2019].
    #[arg(long)]
    pub costs: Option<String>,
    /// Requests measured per configuration and load [default: 20000].
    #[arg(long)]
    pub requests: Option<u64>,
    /// Seed of everything random [default: 1].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Threads of the simulator; changes only the time it takes [default: all].
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Write the steps as a configuration of the IOKernel, policy included.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The aim, on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AimArg {
    /// The least power: steps for ix-energy.
    Energy,
    /// The fastest batch job beside the service: steps for ix-consolidation.
    Batch,
}

/// Runs `tailwater-lab pareto`.
///
/// # Errors
///
/// If an argument or a scenario file is invalid, or a file cannot be read or written.
pub fn run_pareto(args: &ParetoArgs) -> anyhow::Result<()> {
    let study = study(args)?;
    let pareto = watch("pareto", study.configurations().len() as u64, |tick| study.run(tick))?;
    let title = format!(
        "{} within {} on {} cores with {} hyperthreads each, {} costs; simulated",
        study.service, study.slo, study.cores, study.threads, study.costs
    );
    let mut out = stdout();
    writeln!(out, "{title}\n\nThe best configuration by load:")?;
    write!(out, "{}", table(&pareto.frontier, &study.slo))?;
    writeln!(out, "\nSteps for {}, each with the load at which it comes in:", study.aim.policy())?;
    write!(out, "{}", table(&pareto.steps, &study.slo))?;
    writeln!(out, "\nIf no core ever halts: {:.1} W", pareto.polling_w)?;
    if let Some(path) = &args.config {
        write_file(path, &study.configuration(&pareto))?;
    }
    let points = table(&pareto.points, &study.slo);
    args.output.write(&study, &pareto, &points, &title, || panels(&study, &pareto))
}

fn study(args: &ParetoArgs) -> anyhow::Result<ParetoStudy> {
    let mut study: ParetoStudy = load(args.scenario.as_deref())?;
    if let Some(aim) = args.aim {
        study.aim = match aim {
            AimArg::Energy => Aim::Energy,
            AimArg::Batch => Aim::Batch,
        };
    }
    set(&mut study.cores, args.cores);
    set(&mut study.threads, args.threads);
    if let Some(mhz) = &args.mhz {
        study.mhz = mhz.iter().copied().filter(|mhz| *mhz > 0).collect();
        study.turbo_mhz = None;
    }
    if let Some(turbo) = args.turbo {
        study.turbo_mhz = (turbo > 0).then_some(turbo);
    }
    set(&mut study.service, args.service.clone());
    set(&mut study.slo, args.slo.clone());
    set(&mut study.levels, args.levels);
    set(&mut study.costs, args.costs.clone());
    let effort =
        EffortArgs { requests: args.requests, seed: args.seed, threads: args.jobs, replications: None };
    effort.apply(&mut study.effort);
    Ok(study)
}
