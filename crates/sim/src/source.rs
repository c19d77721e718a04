//! The source of a simulated run's requests: a synthetic workload or a recorded trace.
//!
//! It yields (time, class, service time, flow) in order of time and decides nothing. The workload
//! draws each purpose from its own random stream (arrivals, services, flows), so that changing one
//! leaves the others in place.

use std::sync::Arc;

use anyhow::Context;
use tailwater_sched::dispatch::FlowHash;
use tailwater_workload::random::{stream, unit_open_closed};
use tailwater_workload::schedule::MAX_LENGTH_NS;
use tailwater_workload::{ArrivalProcess, Arrivals, LoadSchedule, Prng, Rate};

use crate::mix::Mix;

/// A request on its way into the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Time of arrival.
    pub at_ns: u64,
    /// Its own work, at least 1.
    pub service_ns: u64,
    /// Its class.
    pub class: u16,
    /// Hash of its flow.
    pub flow: FlowHash,
}

/// Yields requests with non-decreasing arrival times.
pub trait Source {
    /// Returns the next request, or `None` at the end.
    fn next_request(&mut self) -> Option<Incoming>;
}

/// An endless synthetic workload.
#[derive(Clone, Debug)]
pub struct Synthetic {
    arrivals: Arrivals,
    mix: Mix,
    flows: Flows,
    arrival_prng: Prng,
    service_prng: Prng,
    flow_prng: Prng,
}

/// The mapping of requests to flows.
#[derive(Clone, Debug)]
enum Flows {
    /// So many flows that every request's hash is independent.
    Unlimited,
    /// This many flows, equally active.
    Of(Vec<FlowHash>),
}

impl Synthetic {
    /// Creates requests of `mix` at `rate`, from `connections` flows (`None`: unlimited).
    #[must_use]
    pub fn new(process: ArrivalProcess, rate: Rate, mix: Mix, connections: Option<u32>, seed: u64) -> Self {
        Self::scheduled(process, LoadSchedule::constant(rate, MAX_LENGTH_NS), mix, connections, seed)
    }

    /// Creates requests of `mix` under a load schedule, which end with it.
    #[must_use]
    pub fn scheduled(
        process: ArrivalProcess,
        schedule: LoadSchedule,
        mix: Mix,
        connections: Option<u32>,
        seed: u64,
    ) -> Self {
        let mut flow_prng = stream(seed, 2);
        let flows = match connections {
            None => Flows::Unlimited,
            Some(n) => Flows::Of((0..n.max(1)).map(|_| random_flow(&mut flow_prng)).collect()),
        };
        let arrivals = Arrivals::new(process, schedule);
        Self { arrivals, mix, flows, arrival_prng: stream(seed, 0), service_prng: stream(seed, 1), flow_prng }
    }
}

fn random_flow(prng: &mut Prng) -> FlowHash {
    FlowHash((unit_open_closed(prng) * f64::from(u32::MAX)) as u32)
}

impl Source for Synthetic {
    #[inline]
    fn next_request(&mut self) -> Option<Incoming> {
        let at_ns = self.arrivals.next_ns(&mut self.arrival_prng)?;
        let (class, service_ns) = self.mix.sample(&mut self.service_prng);
        let flow = match &self.flows {
            Flows::Unlimited => random_flow(&mut self.flow_prng),
            Flows::Of(hashes) => {
                let pick = random_flow(&mut self.flow_prng).home(hashes.len());
                hashes[pick.index()]
            }
        };
        Some(Incoming { at_ns, service_ns, class, flow })
    }
}

/// A recorded trace, played once.
#[derive(Clone, Debug)]
pub struct Recorded {
    requests: Arc<[Incoming]>,
    next: usize,
}

impl Recorded {
    /// Creates a source of these requests, which must be in order of arrival.
    #[must_use]
    pub fn new(requests: Arc<[Incoming]>) -> Self {
        debug_assert!(requests.is_sorted_by_key(|r| r.at_ns), "a trace must be in order of arrival");
        Self { requests, next: 0 }
    }
}

impl Source for Recorded {
    fn next_request(&mut self) -> Option<Incoming> {
        let request = self.requests.get(self.next).copied();
        self.next += 1;
        request
    }
}

/// Reads a trace: CSV lines of arrival time and service time in nanoseconds and, optionally, a
/// class number. A first line that starts with a letter is a header; empty lines and lines that
/// start with `#` are skipped. Arrivals may be in any order and are shifted to start at 0. Each
/// request is its own flow.
///
/// # Errors
///
/// If a line is not of that form, naming the line; or if there is no request.
pub fn parse_trace(text: &str) -> anyhow::Result<Vec<Incoming>> {
    let mut requests = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        let header = requests.is_empty() && line.starts_with(|c: char| c.is_ascii_alphabetic());
        if line.is_empty() || line.starts_with('#') || header {
            continue;
        }
        let mut fields = line.split(',').map(str::trim);
        let mut number = |name: &str| -> anyhow::Result<u64> {
            let field = fields.next().with_context(|| format!("trace line {}: {name} is missing", i + 1))?;
            field
                .parse()
                .with_context(|| format!("trace line {}: {name} `{field}` is not a whole number", i + 1))
        };
        let (at_ns, service_ns) = (number("arrival_ns")?, number("service_ns")?.max(1));
        let class = fields.next().map_or(Ok(0), str::parse);
        let class =
            class.with_context(|| format!("trace line {}: the class is not a number below 65536", i + 1))?;
        // Fibonacci hashing spreads consecutive numbers over all hashes.
        let flow = FlowHash((i as u32).wrapping_mul(0x9e37_79b9));
        requests.push(Incoming { at_ns, service_ns, class, flow });
    }
    requests.sort_by_key(|r| r.at_ns);
    let start_ns = requests.first().context("the trace holds no request")?.at_ns;
    requests.iter_mut().for_each(|r| r.at_ns -= start_ns);
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_sorted_shifted_and_its_errors_name_the_line() {
        let trace = parse_trace("arrival_ns,service_ns,class\n\n# warm\n2000, 30\n1000,50,1\n").unwrap();
        let seen: Vec<_> = trace.iter().map(|r| (r.at_ns, r.service_ns, r.class)).collect();
        assert_eq!(seen, [(0, 50, 1), (1000, 30, 0)]);
        for (text, fragment) in
            [("", "no request"), ("1,2\n3", "line 2: service_ns"), ("1,x", "`x`"), ("1,2,z", "class")]
        {
            let message = format!("{:#}", parse_trace(text).unwrap_err());
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }

    #[test]
    fn a_workload_repeats_by_seed_and_a_limited_number_of_flows_is_kept() {
        let make = |seed, flows| {
            let rate = Rate::new(1e6).unwrap();
            Synthetic::new(ArrivalProcess::Poisson, rate, Mix::parse("exp:1us").unwrap(), flows, seed)
        };
        let draw = |mut s: Synthetic| -> Vec<_> { (0..500).map_while(|_| s.next_request()).collect() };
        assert_eq!(draw(make(1, None)), draw(make(1, None)));
        assert_ne!(draw(make(1, None)), draw(make(2, None)));
        let flows: std::collections::BTreeSet<u32> =
            draw(make(1, Some(3))).iter().map(|r| r.flow.0).collect();
        assert_eq!(flows.len(), 3);
    }
}
