//! The list of figures, as data, in the order in which they run: simulated ones first.
//!
//! Owns what each figure compares, what it needs, and how long it takes, for `reproduce --list` and
//! for [`measure`](crate::measure): measured seconds are those of `results/epyc-2`, which a test
//! compares with this list; others follow from the figure's points.

use tailwater_sim::reproduce::Figure as Study;

use super::context::{RIG, pace};
use super::figure::Figure;
use super::{arachne, ix, own, shenango, shinjuku, simulated};
use Full::{Points, Rounds, Seconds};
use tailwater_testbed::bed::OVERHEAD;

/// A figure, and what a list of experiments says about it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub figure: Figure,
    /// Whether no part of it is measured, whatever the machine has.
    pub is_simulated: bool,
    /// The systems that it compares.
    pub systems: &'static str,
    /// What it needs beyond two cores; without, it fails, or what is missing is not compared.
    pub needs: &'static str,
    full: Full,
    /// Seconds in a session of `measure`, and of a session that is quick.
    pub session_s: f64,
    pub quick_s: f64,
}

/// All of a measured figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Full {
    /// It has so many rounds, and a session measures all of it.
    Rounds(u16),
    /// So many points in so many rounds, which share a budget. A session has the points of a quick
    /// run in three rounds, as of the figures below.
    Points(usize, usize),
    /// Points of fixed lengths, which take so many seconds.
    Seconds(f64),
}

impl Row {
    /// Returns how many rounds a session measures if it measures all of the figure.
    pub fn rounds_in_full(&self) -> Option<u16> {
        if let Rounds(rounds) = self.full { Some(rounds) } else { None }
    }

    /// Returns how many seconds all of the figure takes.
    pub fn full_s(&self) -> f64 {
        match self.full {
            Rounds(_) => self.session_s,
            Points(points, rounds) => {
                let pace = pace(points, rounds, false);
                (RIG + (OVERHEAD + pace.warm_up + pace.counted) * (points * rounds) as u32).as_secs_f64()
            }
            Seconds(seconds) => RIG.as_secs_f64() + seconds,
        }
    }
}

const MEMCACHED: &str = "memcached for its rows";
const GO: &str = "a Go toolchain for Go";
const THREADS: &str = "Tailwater, std, Tokio, may, Go";
const ENERGY: &str = "as few cores as needed, at which clock rates";

/// A simulated figure: its name, page and systems, and the seconds of both sessions.
type Simulated = (&'static str, &'static str, &'static str, [f64; 2]);

macro_rules! simulated {
    ($($name:literal, $page:literal, $systems:expr, $seconds:expr;)*) => {
        [$(($name, include_str!(concat!("../../experiments/", $page, ".md")), $systems, $seconds)),*]
    };
}

const SIMULATED: [Simulated; 14] = simulated! {
    "shenango-fig1", "shenango-fig1", "core allocators at two intervals", [21.0, 8.7];
    "shinjuku-fig1", "shinjuku-fig1", "four policies of request dispatch", [9.9, 3.8];
    "shinjuku-fig2", "shinjuku-fig2", "one queue with and without preemption", [13.0, 1.2];
    "shinjuku-fig4", "shinjuku-fig4", "RSS over few and many connections", [1.7, 0.6];
    "shinjuku-fig6", "shinjuku-fig6", "d-FCFS, stealing, a queue for each type", [7.2, 0.6];
    "shinjuku-fig7", "shinjuku-fig7", "quanta; one and two dispatchers", [6.1, 0.6];
    "arachne-fig4", "arachne-fig4", "the arbiter, congestion detection", [3.4, 0.6];
    "arachne-fig6", "arachne-fig6", "a worker for each connection, a free core, stealing", [0.1, 0.6];
    "ix-fig8", "ix-pareto", "cores, hyperthreads, clock rates", [6.5, 1.8];
    "ix-fig9", "ix-pareto", "clock rates alone, and with cores", [5.3, 1.2];
    "ix-fig10", "ix-loop", ENERGY, [14.0, 3.0];
    "ix-fig11", "ix-loop", ENERGY, [14.0, 3.6];
    "ix-fig12", "ix-loop", ENERGY, [14.0, 4.2];
    "ix-table4", "ix-loop", ENERGY, [28.0, 7.2];
};

/// Makes the rows of measured figures: name, what it runs, paper, title, systems, needs, all of it,
/// seconds of both sessions, and fields of the figure that few have.
macro_rules! measured {
    ($(
        $name:literal, $run:path, $paper:literal, $title:literal,
            $systems:expr, $needs:expr, $full:expr, [$session:expr, $quick:expr] $(, $field:ident: $value:expr)?;
    )*) => {
        [$(Row {
            figure: Figure {
                $($field: $value,)?
                ..Figure::measured(
                    [$name, $title, $paper, include_str!(concat!("../../experiments/", $name, ".md"))],
                    $run,
                )
            },
            is_simulated: false,
            systems: $systems,
            needs: $needs,
            full: $full,
            session_s: $session,
            quick_s: $quick,
        }),*]
    };
}

const MEASURED: [Row; 31] = measured! {
    "shenango-table2", shenango::table2::run, "Shenango (NSDI'19), table 2", "Nanoseconds of common thread operations",
        THREADS, GO, Rounds(31), [8.7, 4.8];
    "shenango-fig3", shenango::fig3::run, "Shenango (NSDI'19), figure 3", "A key-value store under USR beside a batch job",
        "Tailwater's store with two policies, the store on Linux, memcached on both", MEMCACHED, Points(72, 3), [26.0, 9.0];
    "shenango-fig4", shenango::fig4::run, "Shenango (NSDI'19), figure 4", "Tail latency and batch throughput for three service-time distributions",
        "Tailwater with two policies, Linux, Tokio", "", Points(72, 3), [22.0, 12.0];
    "shenango-fig5", shenango::fig5::run, "Shenango (NSDI'19), figure 5", "Tail latency and throughput while the load changes suddenly",
        "Tailwater with two policies, Linux", "", Seconds(115.0), [25.0, 9.0];
    "shenango-fig6", shenango::fig6::run, "Shenango (NSDI'19), figure 6", "Round trip by a raw port, a polling, a woken and a preempting runtime",
        "a raw port, runtimes that poll, wake, preempt; Linux", "", Seconds(107.0), [21.0, 7.2];
    "shenango-fig7", shenango::fig7::run, "Shenango (NSDI'19), figure 7", "Tail latency with few connections, packet stealing on and off",
        "few and many flows, with and without stealing; Linux", "three cores for verdicts", Points(25, 3), [16.0, 9.0];
    "shenango-fig8", shenango::fig8::run, "Shenango (NSDI'19), figure 8", "Tail latency and batch throughput over the interval between core allocations",
        "five intervals of allocation; Linux", "", Points(35, 3), [28.0, 10.8];
    "shinjuku-table1", shinjuku::table1::run, "Shinjuku (NSDI'19), table 1", "Preemption mechanisms: cost for sender and receiver",
        "a flag at a poll point, a signal, a timer's signal", "", Seconds(3.0), [2.5, 3.6];
    "shinjuku-table2", shinjuku::table2::run, "Shinjuku (NSDI'19), table 2", "Context switches from thread to thread",
        THREADS, GO, Rounds(31), [6.0, 3.6];
    "shinjuku-fig5", shinjuku::fig5::run, "Shinjuku (NSDI'19), figure 5", "99th percentile of a single queue with preemption, and without",
        "a quantum of 5 us, c-FCFS, d-FCFS; Linux, Go", GO, Points(75, 3), [22.0, 12.0];
    "shinjuku-fig8", shinjuku::fig8::run, "Shinjuku (NSDI'19), figure 8", "GETs beside SCANs: one queue, a queue for each type, no preemption",
        "one queue, a queue for each type, no preemption, stealing", "tailwater-rocks for the measured part", Points(34, 3), [2.4, 9.0], is_measured: shinjuku::fig8::is_measured;
    "arachne-table2", arachne::table2::run, "Arachne (OSDI'18), table 2", "Nanoseconds of scheduling primitives",
        THREADS, GO, Rounds(31), [11.0, 4.8];
    "arachne-fig2", arachne::fig2::run, "Arachne (OSDI'18), figure 2b", "Threads created per second, over the number of cores",
        THREADS, GO, Rounds(31), [9.7, 4.8];
    "arachne-fig2a", arachne::fig2a::run, "Arachne (OSDI'18), figure 2a", "Threads of 1 us that one thread creates per second, over the number of cores",
        THREADS, GO, Rounds(31), [10.0, 4.8];
    "arachne-fig3", arachne::fig3::run, "Arachne (OSDI'18), figures 3 and 4", "Latency of a key-value store under ETC, alone and beside a batch job",
        "Tailwater's store, memcached, alone and beside a job", MEMCACHED, Points(40, 3), [15.0, 7.2];
    "arachne-fig3b", arachne::fig3b::run, "Arachne (OSDI'18), figure 3b", "Latency of a key-value store under ETC with fewer cores than threads",
        "the stores with one and two threads for each core", MEMCACHED, Points(28, 3), [11.0, 6.0];
    "arachne-fig5", arachne::fig5::run, "Arachne (OSDI'18), figure 5", "Latency while the load rises and falls, with and without dedicated cores",
        "the arbiter, Linux's division of cores, threads", "", Seconds(130.0), [10.0, 4.8];
    "arachne-fig8", arachne::fig8::run, "Arachne (OSDI'18), figures 7 and 8", "Throughput of a store whose writes wait for two backups",
        "a store with and without backups; Linux", "", Points(80, 3), [21.0, 10.8], parts: &["arachne-fig7"];
    "arachne-fig9", arachne::fig9::run, "Arachne (OSDI'18), figure 9", "Cost of a signal to a parked thread, over the number of parked threads",
        "Tailwater, std, may", "", Rounds(31), [10.2, 4.8];
    "arachne-fig10", arachne::fig10::run, "Arachne (OSDI'18), figure 10", "Latency of a core request, free and held",
        "a free core, and one that a batch job holds", "", Rounds(5), [28.0, 3.6];
    "arachne-fig11", arachne::fig11::run, "Arachne (OSDI'18), figure 11", "Timeline of a core request",
        "the same, by steps", "", Rounds(5), [29.0, 3.6];
    "ix-fig4", ix::fig4::run, "IX (TOCS'17), figure 4", "Latency and goodput of one flow by the length of messages",
        "Tailwater, threads on Linux that block and that spin", "", Seconds(55.0), [5.3, 3.6];
    "ix-fig5", ix::fig5::run, "IX (TOCS'17), figure 5", "Throughput by cores, by messages on a connection and by their length",
        "event loops, epoll on Linux", "three cores for more than one", Seconds(75.0), [6.9, 6.0];
    "ix-fig6b", ix::fig6b::run, "IX (TOCS'17), figure 6(b)", "Size of adaptive batches and cycles of a message",
        "an event loop by load and connections", "", Seconds(40.0), [5.4, 4.8];
    "ix-fig7", ix::fig7::run, "IX (TOCS'17), figure 7", "Latency of a key-value store over its throughput",
        "Tailwater's store on event loops and on user threads, memcached", MEMCACHED, Points(48, 3), [8.8, 10.8];
    "ix-table3", ix::table3::run, "IX (TOCS'17), table III", "Latency of a key-value store without load, and its highest load within a limit",
        "Tailwater's store on event loops and on user threads, memcached", MEMCACHED, Seconds(500.0), [13.9, 9.0];
    "ix-table5", ix::table5::run, "IX (TOCS'17), table V", "Flow groups that move to another kthread",
        "flow groups that move to another kthread", "three cores for verdicts", Points(4, 3), [7.1, 6.0];
    "ix-connections", ix::connections::run, "IX (TOCS'17), figure 6", "Throughput over the number of established connections",
        "user threads, epoll on Linux", "10 GB of memory for the last point", Seconds(100.0), [12.0, 7.2];
    "ix-fig13", ix::fig13::run, "IX (TOCS'17), figure 13", "Latency over throughput, by the bound of batches",
        "an event loop by the bound of its rounds", "", Seconds(65.0), [5.0, 3.6];
    "dns-slo", own::dns_slo::run, "A figure of this project's own", "Tail latency of name servers beside a batch job",
        "Tailwater's name server, NSD, Knot DNS", "nsd and knot for their rows", Points(40, 3), [7.9, 9.0];
    "foreign-batch", own::foreign_batch::run, "A figure of this project's own", "A service beside a compiler or a video encoder as the batch job",
        "Tailwater, Linux with SCHED_IDLE", "cc for its rows", Seconds(121.0), [13.0, 4.8];
};

/// Returns all figures.
pub fn all() -> Vec<Row> {
    let row = |(name, plan, systems, [session_s, quick_s]): Simulated| {
        let Study { title, paper, .. } = Study::named(name)?;
        let measured = Figure::measured([name, title, paper, plan], simulated::run);
        let figure = Figure { is_measured: || false, ..measured };
        Some(Row { figure, is_simulated: true, systems, needs: "", full: Rounds(1), session_s, quick_s })
    };
    SIMULATED.into_iter().filter_map(row).chain(MEASURED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_unique_name_and_a_plan_with_its_command() {
        let figures: Vec<Figure> = all().iter().map(|row| row.figure).collect();
        assert_eq!(figures.len(), SIMULATED.len() + MEASURED.len(), "one is not the simulator's");
        for (index, figure) in figures.iter().enumerate() {
            let name = figure.name;
            assert!(figures[..index].iter().all(|other| other.name != name), "{name} is there twice");
            assert!(
                figures.iter().all(|other| !other.parts.contains(&name)),
                "{name} is part of another, too"
            );
            assert!(figure.plan.contains(&format!("tailwater-lab reproduce {name}")), "{name}");
            assert!(figure.plan.contains("**Expected shape**"), "{name}");
        }
    }

    #[test]
    fn every_figure_has_a_duration_and_is_not_faster_in_full() {
        for row in all() {
            assert!(row.quick_s > 0.0 && row.full_s() >= row.session_s, "{}", row.figure.name);
        }
    }
}
