//! Counters of a dispatcher, by class.
//!
//! Owns the counters and the histograms of times. Writers hold the dispatcher's lock.

use std::time::Duration;

/// Steps of a histogram within each power of two: a percentile is exact to an eighth.
const STEPS: u32 = 8;
const BUCKETS: usize = 62 * STEPS as usize;

/// Times in nanoseconds, in buckets that are an eighth of their value wide.
///
/// # Examples
/// ```standalone_crate
/// use std::time::Duration;
/// use tailwater::dispatch::{Dispatcher, Settings};
///
/// #[tailwater::main]
/// fn main() {
///     let settings = Settings::new("sq:5us".parse().unwrap());
///     let dispatcher = Dispatcher::start(settings, |_| (), |_: u32| ()).unwrap();
///     let latency = &dispatcher.stats()[0].latency;
///     assert_eq!((latency.count(), latency.quantile(0.99)), (0, Duration::ZERO));
/// }
/// ```
#[derive(Clone)]
pub struct Times {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
}

impl core::fmt::Debug for Times {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Times")
            .field("count", &self.total)
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .finish()
    }
}

impl Times {
    pub(super) fn new() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0 }
    }

    pub(super) fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
    }

    fn add_all(&mut self, others: &Self) {
        self.counts.iter_mut().zip(others.counts.iter()).for_each(|(count, other)| *count += other);
        self.total += others.total;
    }

    /// Returns how many there are.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the time that a share `q` of all (0 to 1) do not exceed, or at most an eighth more;
    /// zero if there are none.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = ((q.clamp(0.0, 1.0) * self.total as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return Duration::from_nanos(upper_end(index));
            }
        }
        Duration::ZERO
    }
}

fn bucket(ns: u64) -> usize {
    let steps = u64::from(STEPS);
    if ns < steps {
        return ns as usize;
    }
    // Leading bits: the power of two, then the step within it.
    let shift = ns.ilog2() - STEPS.ilog2();
    (u64::from(shift + 1) * steps + ((ns >> shift) - steps)) as usize
}

fn upper_end(bucket: usize) -> u64 {
    let (bucket, steps) = (bucket as u64, u64::from(STEPS));
    if bucket < steps {
        return bucket;
    }
    let (shift, step) = (bucket / steps - 1, bucket % steps);
    // The last bucket ends at the largest number.
    (u128::from(steps + step + 1) << shift).saturating_sub(1).try_into().unwrap_or(u64::MAX)
}

/// What became of the requests of one class.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::dispatch::{RequestClass, Dispatcher, Request, Settings};
///
/// #[tailwater::main]
/// fn main() {
///     let settings = Settings::new("sq:5us".parse().unwrap()).class(RequestClass::new("GET"));
///     let dispatcher = Dispatcher::start(settings, |_| (), |key: u32| println!("{key}")).unwrap();
///     dispatcher.submit(Request::new(0), 7).unwrap();
///     for class in dispatcher.stats() {
///         println!("{}: {} accepted, {} dropped", class.name, class.accepted, class.dropped);
///     }
/// }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClassStats {
    /// The class's name.
    pub name: String,
    /// Its target for the 99th percentile of the latency.
    pub slo: Duration,
    /// Requests accepted.
    pub accepted: u64,
    /// Requests refused because the queue was full.
    pub dropped: u64,
    /// Requests finished, by an answer or a panic.
    pub finished: u64,
    /// Those of them whose handler panicked.
    pub panicked: u64,
    /// Times that one was preempted, or gave its core back to the IOKernel under a policy that
    /// preempts.
    pub preemptions: u64,
    /// Times that one blocked and kept its lane, because as many requests as are allowed had
    /// blocked, or there was no memory for another thread.
    pub held: u64,
    /// Requests that took longer than the SLO.
    pub late: u64,
    /// From arrival until a request first ran.
    pub queue_delay: Times,
    /// How long a request ran. Left out is the time for which it was preempted or had blocked,
    /// unless it kept its lane.
    pub service: Times,
    /// From arrival to the end.
    pub latency: Times,
}

impl ClassStats {
    pub(super) fn new(name: String, slo: Duration) -> Self {
        Self {
            name,
            slo,
            accepted: 0,
            dropped: 0,
            finished: 0,
            panicked: 0,
            preemptions: 0,
            held: 0,
            late: 0,
            queue_delay: Times::new(),
            service: Times::new(),
            latency: Times::new(),
        }
    }

    /// Adds the counters of the same class of another dispatcher.
    pub(super) fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.dropped += other.dropped;
        self.finished += other.finished;
        self.panicked += other.panicked;
        self.preemptions += other.preemptions;
        self.held += other.held;
        self.late += other.late;
        self.queue_delay.add_all(&other.queue_delay);
        self.service.add_all(&other.service);
        self.latency.add_all(&other.latency);
    }

    /// Returns the 99th percentile of the latency, divided by the SLO: above 1 the class misses its
    /// target.
    pub fn slo_ratio(&self) -> f64 {
        self.latency.quantile(0.99).as_secs_f64() / self.slo.as_secs_f64()
    }
}

/// One line for an operator, as in `GET: 5 accepted, 0 dropped, ...`.
impl core::fmt::Display for ClassStats {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let us = |times: &Times, q| times.quantile(q).as_nanos() as f64 / 1e3;
        let Self { name, accepted, dropped, finished, preemptions, late, .. } = self;
        write!(f, "{name}: {accepted} accepted, {dropped} dropped, {finished} finished, ")?;
        write!(f, "{preemptions} preemptions, {late} beyond the SLO; ")?;
        for (what, times) in [("queue delay", &self.queue_delay), ("service", &self.service)] {
            write!(f, "{what} {:.1} us p50, {:.1} us p99; ", us(times, 0.5), us(times, 0.99))?;
        }
        write!(f, "latency {:.1} us p99, {:.2} of the SLO", us(&self.latency, 0.99), self.slo_ratio())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_the_times_up_to_its_end() {
        for ns in (0..5_000).chain([u64::MAX / 3, u64::MAX - 1, u64::MAX]) {
            let index = bucket(ns);
            let end = upper_end(index);
            assert!(end >= ns && end - ns <= ns / u64::from(STEPS), "{ns} in {index}, to {end}");
            assert!(index < BUCKETS && (index == 0 || upper_end(index - 1) < ns));
        }
    }

    #[test]
    fn the_counters_of_two_dispatchers_add_up() {
        let class = |n: u64| {
            let mut class = ClassStats::new("GET".to_owned(), Duration::from_millis(1));
            (class.accepted, class.dropped, class.finished, class.panicked) = (n, n + 1, n + 2, n + 3);
            (class.preemptions, class.held, class.late) = (n + 4, n + 5, n + 6);
            (0..n).for_each(|_| class.queue_delay.add(1_000));
            (0..2 * n).for_each(|_| class.service.add(2_000));
            (0..3 * n).for_each(|_| class.latency.add(n * 1_000));
            class
        };
        let mut sum = class(1);
        sum.add(&class(10));
        assert_eq!((sum.accepted, sum.dropped, sum.finished, sum.panicked), (11, 13, 15, 17));
        assert_eq!((sum.preemptions, sum.held, sum.late), (19, 21, 23));
        assert_eq!((sum.queue_delay.count(), sum.service.count(), sum.latency.count()), (11, 22, 33));
        assert!(sum.latency.quantile(0.05) < sum.latency.quantile(0.5));
    }

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut times = Times::new();
        assert_eq!(times.quantile(0.99), Duration::ZERO);
        for us in 1..=100 {
            times.add(us * 1_000);
        }
        for (q, us) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            let (found, exact) = (times.quantile(q), Duration::from_micros(us));
            assert!((exact..=exact + exact / 8).contains(&found), "{q}: {found:?}");
        }
        assert_eq!(times.count(), 100);
    }
}
