//! Where a simulated run's requests come from: a synthetic workload or a recorded trace.
//!
//! Owns nothing that decides: it yields (time, class, service time, flow) in order of time. The workload draws each
//! purpose from its own random stream (arrivals, services, flows), so that changing one leaves the others where they were.

use tailwater_sched::dispatch::FlowHash;
use tailwater_workload::random::{stream, unit_open_closed};
use tailwater_workload::schedule::MAX_LENGTH_NS;
use tailwater_workload::{ArrivalProcess, Arrivals, LoadSchedule, Prng, Rate};

use crate::mix::Mix;

/// A request on its way into the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// When it arrives.
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
    /// The next request, or `None` at the end.
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

/// How requests map to flows.
#[derive(Clone, Debug)]
enum Flows {
    /// So many flows that every request's hash is independent.
    Unlimited,
    /// This many flows, equally active.
    Of(Vec<FlowHash>),
}

impl Synthetic {
    /// Requests of `mix` at `rate`, from `connections` flows (`None`: unlimited).
    #[must_use]
    pub fn new(process: ArrivalProcess, rate: Rate, mix: Mix, connections: Option<u32>, seed: u64) -> Self {
        Self::scheduled(process, LoadSchedule::constant(rate, MAX_LENGTH_NS), mix, connections, seed)
    }

    /// Requests of `mix` under a load schedule; ends with it.
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
pub struct Recorded<'a> {
    requests: std::slice::Iter<'a, Incoming>,
}

impl<'a> Recorded<'a> {
    /// Plays these requests, which must be in order of arrival.
    #[must_use]
    pub fn new(requests: &'a [Incoming]) -> Self {
        debug_assert!(requests.is_sorted_by_key(|r| r.at_ns), "a trace must be in order of arrival");
        Self { requests: requests.iter() }
    }
}

impl Source for Recorded<'_> {
    fn next_request(&mut self) -> Option<Incoming> {
        self.requests.next().copied()
    }
}
