//! The ideal system: the plan's own requests through one queue and a number of cores, without any
//! overhead.
//!
//! Owns a transport of the generator in virtual time, first come, first served. No system can do
//! better under that order, so its figures are the floor to plot measurements over. For exponential
//! service on one core they are those of M/M/1, and unlike a formula they exist for every
//! distribution and schedule. It runs as fast as it computes.
//!
//! A host bounds every system that runs there, by the speed of its cores and by taking them away.
//! [`Cores`] work at the speed at which a server worked in the run they stand beside, and stand
//! still where the machine stood still while it was probed: a stall of a working core stops its
//! work; a stall of the polling core holds back due requests and finished replies until it ends.
//! Latency still counts from when a request was due.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tailwater_workload::spin::{REPLY_LEN, Reply, Request};

use crate::generator::Generator;
use crate::plan::{Plan, PlanError};
use crate::report::Measurement;
use crate::stalls::{MachineStalls, Stalls};

/// Maximum number of cores of an ideal system.
pub const MAX_CORES: usize = 4096;

/// The result of the ideal system for a plan.
#[derive(Debug, Clone)]
pub struct Ideal {
    /// The measurement, as of a real run. A request that waits beyond the plan's timeout is lost
    /// here too.
    pub measurement: Measurement,
    /// The part of the cores' running time over the whole schedule that no request needed: the most
    /// that a batch job could have had, relative to running alone.
    pub idle_share: f64,
}

/// The cores of an ideal system.
#[derive(Debug, Clone)]
pub struct Cores {
    /// Their number, brought into 1 to [`MAX_CORES`].
    pub number: usize,
    /// Time that work takes, over the time asked for.
    pub stretch: f64,
    /// When they stand still.
    pub stalls: MachineStalls,
}

impl Cores {
    /// Returns cores that never stand still, on which work takes as long as asked for.
    #[must_use]
    pub fn new(number: usize) -> Self {
        Self { number, stretch: 1.0, stalls: MachineStalls::default() }
    }
}

/// Runs `plan` on `cores`. The same `seed` as in a real run gives the same requests. Time is
/// virtual; nothing is random beside the plan. The queue has no foresight: a request is begun by
/// the first core that is free and runs, and stays there when that core stalls.
///
/// # Errors
/// As [`Plan::check`].
pub fn run(plan: &Plan, seed: u64, cores: &Cores) -> Result<Ideal, PlanError> {
    let stalls = &cores.stalls;
    let mut system = System::new(cores, plan.schedule.length_ns());
    let mut generator = Generator::new(plan.clone(), seed, 0)?;
    let mut replies: BTreeMap<(u64, u64), (u16, [u8; REPLY_LEN])> = BTreeMap::new();
    let mut now_ns = stalls.polling.resume_ns(0);
    loop {
        while let Some(outgoing) = generator.poll_due(now_ns) {
            let asked = outgoing.request;
            let request = Request { id: asked.id, work_ns: asked.ticket, sent_ns: asked.due_ns };
            let (done_ns, reply) = system.serve(request, now_ns);
            replies.insert((done_ns, request.id), (outgoing.flow, reply));
        }
        while let Some(first) = replies.first_entry().filter(|entry| entry.key().0 <= now_ns) {
            let (flow, reply) = first.remove();
            generator.handle_reply(now_ns, flow, &reply);
        }
        let next_reply = replies.first_key_value().map(|((done_ns, _), _)| *done_ns);
        match generator.next_event_ns().into_iter().chain(next_reply).min() {
            Some(event_ns) => now_ns = stalls.polling.resume_ns(event_ns.max(now_ns)),
            None => break,
        }
    }
    Ok(Ideal { measurement: generator.finish(now_ns), idle_share: system.idle_share() })
}

/// The cores: when each becomes free and when it stands still.
struct System {
    /// Time at which each core becomes free.
    free: BinaryHeap<Reverse<(u64, usize)>>,
    /// One for each.
    stalls: Vec<Stalls>,
    stretch: f64,
    length_ns: u64,
    /// Core time spent on requests before the schedule's end.
    busy_ns: u64,
}

impl System {
    fn new(cores: &Cores, length_ns: u64) -> Self {
        let number = cores.number.clamp(1, MAX_CORES);
        let mut stalls: Vec<Stalls> = cores.stalls.working.iter().cycle().take(number).cloned().collect();
        stalls.resize(number, Stalls::default());
        let free = (0..number).map(|core| Reverse((0, core))).collect();
        Self { free, stalls, stretch: cores.stretch, length_ns, busy_ns: 0 }
    }

    /// Serves the next request, which gets in at `arrival_ns`, on the core that can begin it first.
    fn serve(&mut self, request: Request, arrival_ns: u64) -> (u64, [u8; REPLY_LEN]) {
        let (start_ns, core) = self.take_core(arrival_ns);
        let served_ns = (request.work_ns as f64 * self.stretch).round() as u64;
        let done_ns = self.stalls[core].finish_ns(start_ns, served_ns);
        self.free.push(Reverse((done_ns, core)));
        let until = |ns: u64| self.stalls[core].ran_ns(ns.min(self.length_ns));
        self.busy_ns += until(done_ns) - until(start_ns);
        (done_ns, Reply { request, served_ns }.encode())
    }

    /// Takes the core that is free and runs first, not before `arrival_ns`; returns that time and
    /// the core.
    fn take_core(&mut self, arrival_ns: u64) -> (u64, usize) {
        let mut others = Vec::new();
        let mut best: Option<(u64, usize)> = None;
        // A core that becomes free after the best one begins cannot begin before it.
        while let Some(&Reverse(next)) = self.free.peek()
            && best.is_none_or(|(start_ns, _)| next.0.max(arrival_ns) < start_ns)
        {
            self.free.pop();
            let candidate = (self.stalls[next.1].resume_ns(next.0.max(arrival_ns)), next.1);
            best = Some(best.map_or(candidate, |best| best.min(candidate)));
            others.push(next);
        }
        let (start_ns, core) = best.expect("there is at least one core, and all are free at some time");
        self.free.extend(others.into_iter().filter(|other| other.1 != core).map(Reverse));
        (start_ns, core)
    }

    fn idle_share(&self) -> f64 {
        let ran_ns: f64 = self.stalls.iter().map(|stalls| stalls.ran_ns(self.length_ns) as f64).sum();
        1.0 - self.busy_ns as f64 / ran_ns
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a trace of one gap is a list of one range")]
mod tests {
    use std::ops::Range;

    use super::*;

    fn ideal(schedule: &str, service: &str, cores: usize) -> Ideal {
        run(&Plan::new(schedule.parse().unwrap(), service.parse().unwrap()), 1, &Cores::new(cores)).unwrap()
    }

    #[test]
    fn one_core_with_exponential_service_is_m_m_1() {
        for (rate, load) in [("5s@30k", 0.3), ("5s@50k", 0.5), ("10s@70k", 0.7)] {
            let ideal = ideal(rate, "exp:10us", 1);
            let figures = ideal.measurement.report().figures;
            // Time in the system is exponential with mean 10 us / (1 - load).
            let quantile_us = |q: f64| -10.0 / (1.0 - load) * (1.0 - q).ln();
            for (got, q, tolerance) in
                [(figures.p50_us, 0.5, 0.03), (figures.p99_us, 0.99, 0.06), (figures.p999_us, 0.999, 0.15)]
            {
                let got = got.unwrap();
                let want = quantile_us(q);
                assert!(
                    (got / want - 1.0).abs() < tolerance,
                    "load {load} p{}: {got}, not {want}",
                    100.0 * q
                );
            }
            assert!((ideal.idle_share - (1.0 - load)).abs() < 0.01, "idle {}", ideal.idle_share);
        }
    }

    #[test]
    fn with_constant_service_as_many_find_the_core_free_as_it_is_idle() {
        // M/D/1 at 30 %: a request does not wait with probability 0.7, so p50 is the service itself
        // and p90 is not.
        let figures = ideal("5s@30k", "const:10us", 1).measurement.report().figures;
        let (p50, p90) = (figures.p50_us.unwrap(), figures.p90_us.unwrap());
        assert!((p50 - 10.0).abs() < 0.02 && p90 > 11.0, "{p50} {p90}");
    }

    #[test]
    fn more_cores_wait_less_and_idle_more() {
        let (one, four) = (ideal("2s@80k", "exp:10us", 1), ideal("2s@80k", "exp:10us", 4));
        assert!(four.measurement.report().figures.p99_us < one.measurement.report().figures.p99_us);
        assert!((four.idle_share - 0.8).abs() < 0.01, "{}", four.idle_share);
    }

    #[test]
    fn overload_loses_what_waits_beyond_the_timeout() {
        let ideal = ideal("2s@200k", "const:10us", 1);
        let report = ideal.measurement.report();
        assert!(report.figures.lost > 100_000 && ideal.idle_share < 1e-3, "{report:?}");
        assert!(report.figures.max_us.unwrap() <= 200_200.0, "nothing counts beyond 200 ms");
        assert_eq!((report.figures.late, report.figures.windows_cut, report.interrupted), (0, 0, false));
    }

    /// Constant arrivals every millisecond, 10 us each, with stalls in `gaps` of each second.
    fn stalled(polling: &[Range<u64>], working: &[Range<u64>]) -> Ideal {
        let mut plan = Plan::new("1s@1k".parse().unwrap(), "const:10us".parse().unwrap());
        plan.arrivals = "const".parse().unwrap();
        let trace = |gaps: &[Range<u64>]| Stalls::new(1_000_000_000, gaps);
        let stalls = MachineStalls { polling: trace(polling), working: vec![trace(working)] };
        run(&plan, 1, &Cores { stalls, ..Cores::new(1) }).unwrap()
    }

    #[test]
    fn slower_work_is_more_work_for_the_same_requests() {
        let plan = |service: &str| Plan::new("2s@30k".parse().unwrap(), service.parse().unwrap());
        let slow = Cores { stretch: 1.5, ..Cores::new(1) };
        let slow = run(&plan("const:10us"), 7, &slow).unwrap();
        let long = run(&plan("const:15us"), 7, &Cores::new(1)).unwrap();
        let (slow_figures, long_figures) =
            (slow.measurement.report().figures, long.measurement.report().figures);
        assert_eq!((slow_figures, slow.idle_share), (long_figures, long.idle_share));
        let delivery = slow.measurement.report().delivery.unwrap();
        assert_eq!((delivery.median, delivery.mean), (1.5, 1.5));
    }

    #[test]
    fn a_stall_costs_those_that_it_meets_what_is_left_of_it() {
        // From the middle of the request of 500.5 ms to the middle between those of 503.5 and 504.5
        // ms.
        let gap = [500_505_000..504_000_000];
        let close = |got: Option<f64>, want: f64| {
            assert!((got.unwrap() / want - 1.0).abs() < 2e-3, "{got:?}, not {want}");
        };
        // The working core has 5 us left to do, then serves those of 501.5, 502.5 and 503.5 ms.
        let working = stalled(&[], &gap).measurement.report().figures;
        close(working.max_us, 3_505.0);
        // The polling core sees the finished reply at the stall's end, and sends the other three
        // then.
        let polling = stalled(&gap, &[]).measurement.report().figures;
        close(polling.max_us, 3_500.0);
        for figures in [working, polling] {
            assert_eq!(figures.completed, figures.windows * 100, "none is lost");
            close(figures.p99_us, 10.0);
        }
    }

    #[test]
    fn what_is_left_is_a_part_of_what_the_core_ran() {
        // The core runs half of the time and is busy 1 % of it all.
        let half: Vec<_> = (0..1_000).map(|i| i * 1_000_000 + 250_000..i * 1_000_000 + 750_000).collect();
        let ideal = stalled(&[], &half);
        assert!((ideal.idle_share - 0.98).abs() < 1e-6, "{}", ideal.idle_share);
    }

    #[test]
    fn more_stalls_make_nothing_better() {
        let plan = Plan::new("2s@60k".parse().unwrap(), "exp:10us".parse().unwrap());
        let every = |ms: u64| -> Vec<Range<u64>> {
            (0..1_000 / ms).map(|i| i * ms * 1_000_000 + 3_000_000..i * ms * 1_000_000 + 3_300_000).collect()
        };
        let figures = |polling: &[Range<u64>], working: &[Range<u64>]| {
            let trace = |gaps: &[Range<u64>]| Stalls::new(1_000_000_000, gaps);
            let stalls = MachineStalls { polling: trace(polling), working: vec![trace(working)] };
            run(&plan, 3, &Cores { stalls, ..Cores::new(1) }).unwrap().measurement.report().figures
        };
        let rows = [
            figures(&[], &[]),
            figures(&[], &every(50)),
            figures(&[], &every(10)),
            figures(&every(50), &every(10)),
            figures(&every(10), &every(10)),
        ];
        for pair in rows.windows(2) {
            let (less, more) = (&pair[0], &pair[1]);
            assert!(less.p50_us <= more.p50_us && less.p99_us <= more.p99_us, "{less:?} {more:?}");
            assert!(
                less.p999_us <= more.p999_us && less.win_p999_us <= more.win_p999_us,
                "{less:?} {more:?}"
            );
        }
        assert!(rows[2].win_p999_us > rows[0].win_p999_us, "3 % of the time is 30 times a thousandth");
    }

    #[test]
    fn a_core_that_runs_takes_what_a_stalled_one_cannot() {
        let plan = Plan::new("1s@1k".parse().unwrap(), "const:10us".parse().unwrap());
        let stalls = MachineStalls {
            working: vec![Stalls::new(1_000_000_000, &[1_000_000..900_000_000]), Stalls::default()],
            ..MachineStalls::default()
        };
        let figures = run(&plan, 1, &Cores { stalls, ..Cores::new(2) }).unwrap().measurement.report().figures;
        assert!(figures.p999_us.unwrap() < 100.0, "{figures:?}");
    }
}
