//! The list of experiments, as data: what each runs, beside what, what it needs, and for how long.
//!
//! Owns the benchmarks: the arguments, the number of rounds and the seconds of both modes, which
//! are those of `results/epyc-2`. A session stays within its time: 40 minutes, or 7 if it is quick.
//! Figures are those of the catalogue of [`reproduce`](crate::reproduce).

use serde::{Deserialize, Serialize};

use crate::reproduce::{self, Row};

/// What an experiment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A benchmark of single mechanisms, or the demo.
    Benchmark,
    /// A figure of a paper that is measured on this machine.
    Measured,
    /// A figure of a paper that is simulated: the machine does not matter.
    Simulated,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Benchmark => "benchmark",
            Self::Measured => "measured",
            Self::Simulated => "simulated",
        })
    }
}

/// An experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    pub name: &'static str,
    pub kind: Kind,
    pub title: &'static str,
    /// The systems that it compares.
    pub systems: &'static str,
    /// What it needs beyond two cores; without, it fails, or what is missing is not compared.
    pub needs: &'static str,
    pub standard: Plan,
    pub quick: Plan,
}

/// What a mode runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Arguments of `tailwater-lab`, or of `tailwater` where the first one is `demo`.
    pub arguments: Vec<&'static str>,
    /// How often the command runs. The medians of its numbers are the report.
    pub runs: u16,
    /// Rounds within each run.
    pub rounds: u16,
    /// Seconds on two cores, as measured.
    pub seconds: f64,
}

impl Plan {
    fn new(arguments: &[&'static str], runs: u16, seconds: f64) -> Self {
        Self { arguments: arguments.to_vec(), runs, rounds: 1, seconds }
    }

    /// Returns the command of one run, without the files it writes.
    pub fn command(&self) -> String {
        let program = if self.is_demo() { "tailwater" } else { "tailwater-lab" };
        format!("{program} {}", self.arguments.join(" "))
    }

    /// Returns whether this runs the program `tailwater`.
    pub fn is_demo(&self) -> bool {
        self.arguments.first() == Some(&"demo")
    }
}

impl Experiment {
    pub fn plan(&self, quick: bool) -> &Plan {
        if quick { &self.quick } else { &self.standard }
    }
}

/// Returns all experiments: the demo, the benchmarks, the figures in the catalogue's order.
pub fn all() -> Vec<Experiment> {
    benchmarks().into_iter().chain(figures()).collect()
}

/// A benchmark: its name, title, systems and needs, and of both modes the arguments, runs and
/// seconds.
type Bench = ([&'static str; 4], [(&'static str, u16, f64); 2]);

/// Makes rows: a line of texts, and a line of each mode.
macro_rules! benchmarks {
    ($($name:literal, $title:literal, $systems:literal, $needs:literal;
        $runs:literal x $full:literal, $s:literal; $fewer:literal x $quick:literal, $quick_s:literal;)*) => {
        [$(([$name, $title, $systems, $needs], [($full, $runs, $s), ($quick, $fewer, $quick_s)])),*]
    };
}

const BENCHMARKS: [Bench; 16] = benchmarks! {
    "demo", "a service and a batch job on one core",
    "Tailwater, Linux, an ideal queue", "the program tailwater beside this one";
        3 x "demo", 231.0;
        1 x "demo --quick", 15.0;
    "handoff", "a core moves from one program to another", "Tailwater, Linux (signal and eventfd)", "";
        5 x "bench handoff --rounds 1", 7.6;
        1 x "bench handoff --rounds 1", 2.2;
    "switch", "frames between programs through the IOKernel", "user threads, a bare kthread", "";
        5 x "bench switch --rounds 1", 5.2;
        1 x "bench switch --rounds 1", 1.6;
    "tcp", "TCP between programs", "Tailwater, Linux's loopback device", "";
        5 x "bench tcp --rounds 1 --idle 2000", 41.0;
        1 x "bench tcp --rounds 1 --idle 200", 8.7;
    "events", "event loops, user threads, futures; hyper",
    "Tailwater, epoll on Linux, Tokio", "tailwater-hello for hyper; root for hyper over TAP";
        3 x "bench events --rounds 1", 31.0;
        1 x "bench events --rounds 1", 11.0;
    "threads", "user threads", "Tailwater, Go, Tokio, may, std", "a Go toolchain for Go";
        3 x "bench threads --rounds 7", 51.0;
        1 x "bench threads --quick", 2.7;
    "cores", "requests and estimates of cores, background threads",
    "with and without a request; two policies", "root for the trace of exclusive threads";
        3 x "bench cores --rounds 1 --seconds 3", 109.0;
        1 x "bench cores --only request --rounds 1 --requests 20", 2.8;
    "dispatch", "poll points, quanta, preemption of requests",
    "with and without preemption", "tailwater-rocks for RocksDB";
        1 x "bench dispatch --rounds 3", 184.0;
        1 x "bench dispatch --only threads --rounds 1", 2.4;
    "scale", "the IOKernel's loop with many cores and programs", "by number of cores and of programs", "";
        3 x "bench scale --rounds 1", 40.0;
        1 x "bench scale --rounds 1 --changes 20 --frames 20000", 0.5;
    "services", "services that share cores", "a service alone, and beside others", "";
        3 x "bench services --rounds 1 --seconds 1", 46.0;
        1 x "bench services --rounds 1 --seconds 1", 16.0;
    "neighbour", "ordinary programs beside a service", "Tailwater, Linux", "";
        3 x "bench neighbour --seconds 3", 160.0;
        1 x "bench neighbour --only batch --seconds 1", 27.0;
    "programs", "programs of the system as batch jobs beside a service",
    "Tailwater, Linux with SCHED_IDLE", "";
        3 x "bench programs --only batch --rounds 1 --seconds 1 --jobs xz-1 --loads 30", 18.0;
        1 x "bench programs --only batch --rounds 1 --seconds 1 --jobs xz-1 --loads 30", 7.1;
    "posix", "programs as they are: memcached, redis, nginx, compressors, threads",
    "Tailwater, Linux", "redis-server, memcached, nginx, wrk, python3, cc, xz, pigz, zstd; without one, not its row";
        3 x "bench programs --only posix --rounds 1", 238.0;
        1 x "bench programs --only posix --rounds 1 --services redis --seconds 1", 40.0;
    "hostile", "a service beside attackers, and IOKernels that end",
    "the same service alone", "root for attackers of several users";
        1 x "bench hostile --seconds 3 --times 5 --only attacks,restart,takeover,fallback \
            --attack spoofed,many-words,doorbell,memory,stopped-program", 48.0;
        1 x "bench hostile --seconds 3 --times 2 --only takeover", 3.8;
    "ports", "a Linux client of a service on this machine",
    "TAP, AF_XDP, Linux's loopback device and veth", "root, ip, unshare, nsenter";
        3 x "bench ports --rounds 1 --ms 500", 45.0;
        1 x "bench ports --rounds 1 --ms 200", 6.1;
    "energy", "processor time by load", "sleeping and polling IOKernels", "";
        3 x "bench energy --rounds 1 --seconds 1", 70.0;
        1 x "bench energy --rounds 1 --seconds 1", 25.0;
};

fn benchmarks() -> Vec<Experiment> {
    let benchmark = |([name, title, systems, needs], plans): Bench| {
        let [standard, quick] = plans.map(|(arguments, runs, seconds)| {
            Plan::new(&arguments.split(' ').collect::<Vec<_>>(), runs, seconds)
        });
        Experiment { name, kind: Kind::Benchmark, title, systems, needs, standard, quick }
    };
    BENCHMARKS.into_iter().map(benchmark).collect()
}

fn figures() -> Vec<Experiment> {
    reproduce::rows().into_iter().map(figure).collect()
}

/// Returns the experiment of a figure: all of it, or the points of a quick run in three rounds.
fn figure(row: Row) -> Experiment {
    let Row { figure, is_simulated, systems, needs, session_s, quick_s, .. } = row;
    let (rounds, short): (u16, &[&'static str]) = match row.rounds_in_full() {
        Some(rounds) => (rounds, &[]),
        None => (3, &["--quick", "--rounds", "3"]),
    };
    let arguments = [&["reproduce", figure.name], short].concat();
    Experiment {
        name: figure.name,
        kind: if is_simulated { Kind::Simulated } else { Kind::Measured },
        title: figure.title,
        systems,
        needs,
        standard: Plan { rounds, ..Plan::new(&arguments, 1, session_s) },
        quick: Plan::new(&["reproduce", figure.name, "--quick"], 1, quick_s),
    }
}

#[cfg(test)]
mod tests {
    use super::super::envelope::Envelope;
    use super::*;

    #[test]
    fn every_benchmark_is_in_the_list_and_no_experiment_is_twice() {
        let all = all();
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other.name != one.name), "{} is there twice", one.name);
        }
        for bench in crate::bench::names() {
            assert!(all.iter().any(|one| one.name == bench), "bench {bench} is not measured");
        }
    }

    #[test]
    fn a_session_stays_within_its_time() {
        let minutes =
            |quick: bool| all().iter().map(|experiment| experiment.plan(quick).seconds).sum::<f64>() / 60.0;
        assert!(minutes(false) <= 40.0, "{} minutes", minutes(false));
        assert!(minutes(true) <= 7.0, "{} minutes, quick", minutes(true));
    }

    #[test]
    fn a_duration_and_a_kind_are_those_of_the_results() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/epyc-2");
        for experiment in all() {
            let Ok(result) = Envelope::read(&Envelope::path(&folder, experiment.name)) else { continue };
            assert_eq!(result.kind, experiment.kind, "{}: whatever this machine has", experiment.name);
            let same = result.error.is_none() && result.command == experiment.standard.command();
            let (seconds, measured) = (experiment.standard.seconds, result.wall_seconds);
            assert!(
                !same || (seconds - measured).abs() <= 5.0 + measured / 4.0,
                "{}: {measured} s",
                result.experiment
            );
        }
    }
}
