//! `tailwater`: operates Tailwater on a machine.
//!
//! Owns the list of subcommands; each has a module. Exit codes: 0 success, 1 failure, 2 wrong usage
//! or a machine that lacks something, 130 interrupted, 141 closed output.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailwater_testbed::observe::{MetricsArgs, TopArgs};
use tailwater_testbed::{machine, socket};

mod app;
mod background;
mod capture;
mod compare;
mod cores;
mod demo;
mod doctor;
mod ending;
mod info;
mod iokernel;
mod load;
mod log;
mod nat;
mod notify;
mod observe;
mod output;
mod pages;
mod ps;
mod publish;
mod query;
mod report;
mod run;
mod stats;
mod stored;
mod trace;
mod why;

// The services that `demo` starts are this program.
tailwater::allocator!();

/// Microsecond tail latency for services, every other cycle for batch work, on the cores of one
/// machine
#[derive(Debug, Parser)]
#[command(
    name = "tailwater",
    version = machine::version(),
    max_term_width = 100,
    after_help = "Examples:
  tailwater demo                                a service and a batch job on the same cores, 90 s
  tailwater iokernel &                          start the IOKernel
  tailwater run --kthreads 1 -- spin            start a service on it
  tailwater run --batch -- xz -T0 big.tar       any program, on the cores that services leave idle
  tailwater top                                 cores, programs, latency and drops, live
  tailwater metrics                             the same for Prometheus, and as a web page

Every subcommand has --help with examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(Box<demo::DemoArgs>),
    Iokernel(Box<iokernel::IokernelArgs>),
    Run(Box<run::RunArgs>),
    Load(Box<load::LoadArgs>),
    Compare(compare::CompareArgs),
    Ps(ps::PsArgs),
    Info(info::InfoArgs),
    Top(Box<TopArgs>),
    Stats(stats::StatsArgs),
    Metrics(Box<MetricsArgs>),
    Cores(cores::CoresArgs),
    Publish(publish::PublishArgs),
    Capture(Box<capture::CaptureArgs>),
    Trace(Box<trace::TraceArgs>),
    Why(why::WhyArgs),
    Doctor(doctor::DoctorArgs),
    Report(report::ReportArgs),
    Completions(pages::CompletionsArgs),
    #[command(hide = true)]
    Man(pages::ManArgs),
    #[command(hide = true)]
    App(Box<app::AppArgs>),
    #[command(hide = true)]
    WatchRegistration(run::registration::WatchArgs),
    #[command(hide = true)]
    BatchChild(run::batch::ChildArgs),
}

fn main() -> ExitCode {
    let cli = match ending::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let result = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Iokernel(args) => iokernel::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Ps(args) => ps::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Top(_) | Command::Metrics(_) => observe::run(),
        Command::Cores(args) => cores::run(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Completions(args) => pages::completions(&args),
        Command::Man(args) => pages::man(&args),
        Command::App(args) => app::run(&args),
        Command::WatchRegistration(args) => run::registration::run(&args),
        Command::BatchChild(args) => run::batch::run_child(&args),
    };
    tailwater_testbed::exit::report(result.map_err(ending::said_once))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// A line of a table or an example is as wide as the help at most, and a paragraph is one line
    /// of the text, which clap wraps: then no line ends in the middle of another's width.
    #[test]
    fn every_help_is_wrapped_once() {
        let width = 100;
        let mut left = vec![Cli::command()];
        while let Some(command) = left.pop() {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let mut before = "";
            for line in text.lines() {
                let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
                let name = command.get_name();
                assert!(
                    is_prose(line) || line.chars().count() <= width,
                    "{name}: wider than {width}: {line}"
                );
                assert!(!(is_prose(before) && is_prose(line)), "{name}: goes on in another line: {before}");
                before = line;
            }
            left.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
        }
    }
}
