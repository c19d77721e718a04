//! The list of experiments, as data: what each runs, beside what, what it needs, and for how long.
//!
//! Owns the arguments and the number of rounds of both modes, so that a session stays within its
//! time: 40 minutes, or 6 if it is quick. Figures are those of the catalogue of
//! [`reproduce`](crate::reproduce); a figure without a line here is not measured, which a test
//! reports.

use serde::{Deserialize, Serialize};

use crate::reproduce;

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
    /// Estimate for two cores, in minutes.
    pub minutes: f64,
}

impl Plan {
    fn new(arguments: &[&'static str], runs: u16, minutes: f64) -> Self {
        Self { arguments: arguments.to_vec(), runs, rounds: 1, minutes }
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

/// A benchmark: the arguments, runs and minutes of both modes.
type Bench =
    (&'static str, &'static str, &'static str, &'static str, [(&'static [&'static str], u16, f64); 2]);

/// One round of the benchmark of foreign batch jobs.
const PROGRAMS: [&str; 12] = [
    "bench",
    "programs",
    "--only",
    "batch",
    "--rounds",
    "1",
    "--seconds",
    "1",
    "--jobs",
    "xz-1",
    "--loads",
    "30",
];

/// By name, title, systems and needs.
const BENCHMARKS: [Bench; 14] = [
    (
        "demo",
        "a service and a batch job on one core",
        "Tailwater, Linux, an ideal queue",
        "the program tailwater beside this one",
        [(&["demo"], 3, 4.6), (&["demo", "--quick"], 1, 0.35)],
    ),
    (
        "handoff",
        "a core moves from one program to another",
        "Tailwater, Linux (signal and eventfd)",
        "",
        [(&["bench", "handoff", "--rounds", "1"], 5, 0.7), (&["bench", "handoff", "--rounds", "1"], 1, 0.15)],
    ),
    (
        "switch",
        "frames between programs through the IOKernel",
        "user threads, a bare kthread",
        "",
        [(&["bench", "switch", "--rounds", "1"], 5, 0.4), (&["bench", "switch", "--rounds", "1"], 1, 0.05)],
    ),
    (
        "tcp",
        "TCP between programs",
        "Tailwater, Linux's loopback device",
        "",
        [
            (&["bench", "tcp", "--rounds", "1", "--idle", "2000"], 5, 0.7),
            (&["bench", "tcp", "--rounds", "1", "--idle", "200"], 1, 0.15),
        ],
    ),
    (
        "events",
        "event loops, user threads, futures; hyper",
        "Tailwater, epoll on Linux, Tokio",
        "tailwater-hello for hyper; root for hyper over TAP",
        [(&["bench", "events", "--rounds", "1"], 3, 0.6), (&["bench", "events", "--rounds", "1"], 1, 0.15)],
    ),
    (
        "threads",
        "user threads",
        "Tailwater, Go, Tokio, may, std",
        "a Go toolchain for Go",
        [(&["bench", "threads", "--rounds", "7"], 3, 1.5), (&["bench", "threads", "--quick"], 1, 0.15)],
    ),
    (
        "cores",
        "requests and estimates of cores, background threads",
        "with and without a request; two policies",
        "root for the trace of exclusive threads",
        [
            (&["bench", "cores", "--rounds", "1", "--seconds", "3"], 3, 2.8),
            (&["bench", "cores", "--only", "request", "--rounds", "1", "--requests", "20"], 1, 0.1),
        ],
    ),
    (
        "dispatch",
        "poll points, quanta, preemption of requests",
        "with and without preemption",
        "tailwater-rocks for RocksDB",
        [
            (&["bench", "dispatch", "--rounds", "3"], 1, 2.0),
            (&["bench", "dispatch", "--only", "threads", "--rounds", "1"], 1, 0.1),
        ],
    ),
    (
        "services",
        "services that share cores",
        "a service alone, and beside others",
        "",
        [
            (&["bench", "services", "--rounds", "1", "--seconds", "1"], 3, 1.0),
            (&["bench", "services", "--rounds", "1", "--seconds", "1"], 1, 0.25),
        ],
    ),
    (
        "neighbour",
        "ordinary programs beside a service",
        "Tailwater, Linux",
        "",
        [
            (&["bench", "neighbour", "--seconds", "3"], 3, 2.3),
            (&["bench", "neighbour", "--only", "batch", "--seconds", "1"], 1, 0.2),
        ],
    ),
    (
        "programs",
        "programs of the system as batch jobs beside a service",
        "Tailwater, Linux with SCHED_IDLE",
        "",
        [(&PROGRAMS, 3, 0.35), (&PROGRAMS, 1, 0.12)],
    ),
    (
        "hostile",
        "a service beside attackers, and IOKernels that end",
        "the same service alone",
        "root for attackers of several users",
        [
            (
                &[
                    "bench",
                    "hostile",
                    "--seconds",
                    "3",
                    "--times",
                    "5",
                    "--only",
                    "attacks,restart,takeover,fallback",
                    "--attack",
                    "spoofed,many-words,doorbell,memory,stopped-program",
                ],
                1,
                2.3,
            ),
            (&["bench", "hostile", "--seconds", "3", "--times", "2", "--only", "takeover"], 1, 0.1),
        ],
    ),
    (
        "ports",
        "a Linux client of a service on this machine",
        "TAP, AF_XDP, Linux's loopback device and veth",
        "root, ip, unshare, nsenter",
        [
            (&["bench", "ports", "--rounds", "1", "--ms", "500"], 3, 0.5),
            (&["bench", "ports", "--rounds", "1", "--ms", "200"], 1, 0.1),
        ],
    ),
    (
        "energy",
        "processor time by load",
        "sleeping and polling IOKernels",
        "",
        [
            (&["bench", "energy", "--rounds", "1", "--seconds", "1"], 3, 1.4),
            (&["bench", "energy", "--rounds", "1", "--seconds", "1"], 1, 0.35),
        ],
    ),
];

fn benchmarks() -> Vec<Experiment> {
    let benchmark = |&(name, title, systems, needs, [standard, quick]): &Bench| Experiment {
        name,
        kind: Kind::Benchmark,
        title,
        systems,
        needs,
        standard: Plan::new(standard.0, standard.1, standard.2),
        quick: Plan::new(quick.0, quick.1, quick.2),
    };
    BENCHMARKS.iter().map(benchmark).collect()
}

/// How much of a figure a session measures.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Effort {
    /// All of it, which has so many rounds.
    Full(u16),
    /// The points of a quick run, in three rounds.
    Short,
}

/// A figure: name, systems, needs, effort, and minutes of both modes.
type FigureLine = (&'static str, &'static str, &'static str, Effort, [f64; 2]);

const MEMCACHED: &str = "memcached for its rows";
const GO: &str = "a Go toolchain for Go";
const THREADS: &str = "Tailwater, std, Tokio, may, Go";
const ENERGY: &str = "as few cores as needed, at which clock rates";

const FIGURES: [FigureLine; 45] = [
    ("shenango-fig1", "core allocators at two intervals", "", Effort::Full(1), [0.3, 0.04]),
    ("shinjuku-fig1", "four policies of request dispatch", "", Effort::Full(1), [0.4, 0.02]),
    ("shinjuku-fig2", "one queue with and without preemption", "", Effort::Full(1), [0.4, 0.02]),
    ("shinjuku-fig4", "RSS over few and many connections", "", Effort::Full(1), [0.1, 0.01]),
    ("shinjuku-fig6", "d-FCFS, stealing, a queue for each type", "", Effort::Full(1), [0.2, 0.01]),
    ("shinjuku-fig7", "quanta; one and two dispatchers", "", Effort::Full(1), [0.4, 0.01]),
    ("arachne-fig4", "the arbiter, congestion detection", "", Effort::Full(1), [0.1, 0.01]),
    ("arachne-fig6", "a worker for each connection, a free core, stealing", "", Effort::Full(1), [0.1, 0.01]),
    ("ix-fig8", "cores, hyperthreads, clock rates", "", Effort::Full(1), [0.2, 0.03]),
    ("ix-fig9", "clock rates alone, and with cores", "", Effort::Full(1), [0.2, 0.02]),
    ("ix-fig10", ENERGY, "", Effort::Full(1), [0.3, 0.05]),
    ("ix-fig11", ENERGY, "", Effort::Full(1), [0.3, 0.06]),
    ("ix-fig12", ENERGY, "", Effort::Full(1), [0.4, 0.07]),
    ("ix-table4", ENERGY, "", Effort::Full(1), [0.7, 0.12]),
    ("shenango-table2", THREADS, GO, Effort::Full(31), [0.2, 0.08]),
    (
        "shenango-fig3",
        "Tailwater's store with two policies, memcached, the store on Linux",
        MEMCACHED,
        Effort::Short,
        [0.7, 0.15],
    ),
    ("shenango-fig4", "Tailwater with two policies, Linux, Tokio", "", Effort::Short, [0.8, 0.2]),
    ("shenango-fig5", "Tailwater with two policies, Linux", "", Effort::Short, [0.6, 0.15]),
    ("shenango-fig6", "a raw port, runtimes that poll, wake, preempt; Linux", "", Effort::Short, [0.5, 0.12]),
    (
        "shenango-fig7",
        "few and many flows, with and without stealing; Linux",
        "three cores for verdicts",
        Effort::Short,
        [0.6, 0.15],
    ),
    ("shenango-fig8", "five intervals of allocation; Linux", "", Effort::Short, [0.7, 0.18]),
    ("shinjuku-table1", "a flag at a poll point, a signal, a timer's signal", "", Effort::Short, [0.2, 0.06]),
    ("shinjuku-table2", THREADS, GO, Effort::Full(31), [0.2, 0.06]),
    ("shinjuku-fig5", "a quantum of 5 us, c-FCFS, d-FCFS; Linux, Go", GO, Effort::Short, [0.8, 0.2]),
    (
        "shinjuku-fig8",
        "one queue, a queue for each type, no preemption, stealing",
        "tailwater-rocks for the measured part",
        Effort::Short,
        [0.6, 0.15],
    ),
    ("arachne-table2", THREADS, GO, Effort::Full(31), [0.3, 0.08]),
    ("arachne-fig2", THREADS, GO, Effort::Full(31), [0.3, 0.08]),
    ("arachne-fig2a", THREADS, GO, Effort::Full(31), [0.3, 0.08]),
    (
        "arachne-fig3",
        "Tailwater's store, memcached, alone and beside a job",
        MEMCACHED,
        Effort::Short,
        [0.6, 0.12],
    ),
    (
        "arachne-fig3b",
        "the stores with one and two threads for each core",
        MEMCACHED,
        Effort::Short,
        [0.6, 0.1],
    ),
    ("arachne-fig5", "the arbiter, Linux's division of cores, threads", "", Effort::Short, [0.3, 0.08]),
    ("arachne-fig8", "a store with and without backups; Linux", "", Effort::Short, [0.7, 0.18]),
    ("arachne-fig9", "Tailwater, std, may", "", Effort::Full(31), [0.3, 0.08]),
    ("arachne-fig10", "a free core, and one that a batch job holds", "", Effort::Full(5), [0.5, 0.06]),
    ("arachne-fig11", "the same, by steps", "", Effort::Full(5), [0.5, 0.06]),
    ("ix-fig4", "Tailwater, threads on Linux that block and that spin", "", Effort::Short, [0.2, 0.06]),
    ("ix-fig5", "event loops, epoll on Linux", "three cores for more than one", Effort::Short, [0.4, 0.1]),
    ("ix-fig6b", "an event loop by load and connections", "", Effort::Short, [0.3, 0.08]),
    (
        "ix-fig7",
        "Tailwater's store on event loops and on user threads, memcached",
        MEMCACHED,
        Effort::Short,
        [0.9, 0.18],
    ),
    (
        "ix-table3",
        "Tailwater's store on event loops and on user threads, memcached",
        MEMCACHED,
        Effort::Short,
        [0.6, 0.15],
    ),
    (
        "ix-table5",
        "flow groups that move to another kthread",
        "three cores for verdicts",
        Effort::Short,
        [0.4, 0.1],
    ),
    (
        "ix-connections",
        "user threads, epoll on Linux",
        "10 GB of memory for the last point",
        Effort::Short,
        [0.5, 0.12],
    ),
    ("ix-fig13", "an event loop by the bound of its rounds", "", Effort::Short, [0.3, 0.06]),
    (
        "dns-slo",
        "Tailwater's name server, NSD, Knot DNS",
        "nsd and knot for their rows",
        Effort::Short,
        [0.6, 0.15],
    ),
    ("foreign-batch", "Tailwater, Linux with SCHED_IDLE", "cc for its rows", Effort::Short, [0.22, 0.08]),
];

fn figures() -> Vec<Experiment> {
    reproduce::index().into_iter().filter_map(figure).collect()
}

/// Returns how many minutes `tailwater-lab reproduce` takes for a figure: all of it, and quickly.
pub fn minutes(name: &str) -> Option<[f64; 2]> {
    let (.., effort, [standard, quick]) = FIGURES.iter().find(|line| line.0 == name)?;
    let full = match effort {
        Effort::Full(_) => *standard,
        // Its points share a budget, and it starts its programs before.
        Effort::Short => (reproduce::BUDGET.as_secs_f64() / 60.0).ceil(),
    };
    Some([full, *quick])
}

/// Returns the experiment of a figure; `None` if it has no line.
fn figure(about: reproduce::About) -> Option<Experiment> {
    let &(name, systems, needs, effort, [standard, quick]) =
        FIGURES.iter().find(|line| line.0 == about.name)?;
    let (rounds, short): (u16, &[&'static str]) = match effort {
        Effort::Full(rounds) => (rounds, &[]),
        Effort::Short => (3, &["--quick", "--rounds", "3"]),
    };
    let arguments = [&["reproduce", name], short].concat();
    Some(Experiment {
        name,
        kind: if about.measured { Kind::Measured } else { Kind::Simulated },
        title: about.title,
        systems,
        needs,
        standard: Plan { rounds, ..Plan::new(&arguments, 1, standard) },
        quick: Plan::new(&["reproduce", name, "--quick"], 1, quick),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_and_benchmark_is_in_the_list_once() {
        let all = all();
        let names: Vec<&str> = all.iter().map(|experiment| experiment.name).collect();
        for about in reproduce::index() {
            assert_eq!(names.iter().filter(|&&name| name == about.name).count(), 1, "{}", about.name);
        }
        for bench in crate::bench::names() {
            assert!(names.contains(&bench.as_str()), "bench {bench} is not measured");
        }
        assert_eq!(FIGURES.len(), reproduce::index().len(), "a line has no figure");
    }

    #[test]
    fn every_figure_has_a_duration_and_is_not_faster_in_full() {
        for about in reproduce::index() {
            let [full, quick] = minutes(about.name).expect(about.name);
            assert!(quick > 0.0 && full >= quick, "{}", about.name);
        }
    }

    #[test]
    fn a_session_stays_within_its_time() {
        let minutes =
            |quick: bool| all().iter().map(|experiment| experiment.plan(quick).minutes).sum::<f64>();
        assert!(minutes(false) <= 40.0, "{} minutes", minutes(false));
        assert!(minutes(true) <= 6.5, "{} minutes, quick", minutes(true));
    }
}
