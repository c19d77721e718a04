//! The ideal system: the plan's own requests through one queue and a number of cores, with no overhead of any kind.
//!
//! Owns: a transport of the generator in virtual time, first come first served. No system can do better under that
//! order, so its figures are the floor to plot measurements over; for exponential service on one core they are those of
//! M/M/1, and unlike a formula they exist for every distribution and schedule. Runs as fast as it computes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tailwater_workload::spin::{REPLY_LEN, Reply, Request};

use crate::generator::Generator;
use crate::plan::{Plan, PlanError};
use crate::report::Measurement;

/// Most cores of an ideal system.
pub const MAX_CORES: usize = 4096;

/// What the ideal system makes of a plan.
#[derive(Debug, Clone)]
pub struct Ideal {
    /// The measurement, as of a real run. A request that waits beyond the plan's timeout is lost here too.
    pub measurement: Measurement,
    /// The part of all cores' time over the whole schedule that no request needed: what a batch job could have at best.
    pub idle_share: f64,
}

/// Runs `plan` on `cores` cores (brought into 1 to [`MAX_CORES`]). The same `seed` as in a real run gives the same
/// requests. Time is virtual; nothing is random beside the plan.
///
/// # Errors
/// As [`Plan::check`].
pub fn run(plan: &Plan, seed: u64, cores: usize) -> Result<Ideal, PlanError> {
    let cores = cores.clamp(1, MAX_CORES);
    let length_ns = plan.schedule.length_ns();
    let mut system = System { free_ns: vec![Reverse(0); cores].into(), length_ns, busy_ns: 0 };
    let mut generator = Generator::new(plan.clone(), seed, 0)?;
    let mut replies: BTreeMap<(u64, u64), [u8; REPLY_LEN]> = BTreeMap::new();
    let mut now_ns = 0;
    loop {
        while let Some(outgoing) = generator.poll_due(now_ns) {
            if let Ok(request) = Request::decode(&outgoing.bytes) {
                let (done_ns, reply) = system.serve(request);
                replies.insert((done_ns, request.id), reply);
            }
        }
        while let Some(first) = replies.first_entry().filter(|entry| entry.key().0 <= now_ns) {
            generator.handle_reply(now_ns, &first.remove());
        }
        let next_reply = replies.first_key_value().map(|((done_ns, _), _)| *done_ns);
        match generator.next_event_ns().into_iter().chain(next_reply).min() {
            Some(event_ns) => now_ns = event_ns,
            None => break,
        }
    }
    let capacity_ns = length_ns as f64 * cores as f64;
    Ok(Ideal { measurement: generator.finish(now_ns), idle_share: 1.0 - system.busy_ns as f64 / capacity_ns })
}

/// The cores, known only by when each becomes free.
struct System {
    free_ns: BinaryHeap<Reverse<u64>>,
    length_ns: u64,
    /// Core time spent on requests before the schedule's end.
    busy_ns: u64,
}

impl System {
    /// Serves the next request in order of arrival on the core that is free first.
    fn serve(&mut self, request: Request) -> (u64, [u8; REPLY_LEN]) {
        let free_ns = self.free_ns.pop().map_or(0, |Reverse(ns)| ns);
        let start_ns = free_ns.max(request.sent_ns);
        let done_ns = start_ns.saturating_add(request.work_ns);
        self.free_ns.push(Reverse(done_ns));
        self.busy_ns += done_ns.min(self.length_ns) - start_ns.min(self.length_ns);
        (done_ns, Reply { request, served_ns: request.work_ns }.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ideal(schedule: &str, service: &str, cores: usize) -> Ideal {
        run(&Plan::new(schedule.parse().unwrap(), service.parse().unwrap()), 1, cores).unwrap()
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
        // M/D/1 at 30 %: a request does not wait with probability 0.7, so p50 is the service itself and p90 is not.
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
}
