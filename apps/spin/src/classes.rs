//! Requests by the work they ask for: classes with SLOs, which a dispatcher serves by its policy.
//!
//! Owns the notation of a class on the command line, and the service as the dispatcher calls it.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use tailwater::dispatch::{Policy, RequestClass, Service, Settings};
use tailwater_workload::spin::Request;
use tailwater_workload::units::parse_duration_ns;

use crate::service::Shared;

/// Requests that ask for at most this much work, and their SLO: `1us=50us`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkClass {
    text: String,
    most_ns: u64,
    slo: Duration,
}

impl FromStr for WorkClass {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (work, slo) = text.split_once('=').context("a class is WORK=SLO, as in 1us=50us")?;
        let most_ns = parse_duration_ns(work)?;
        let slo = Duration::from_nanos(parse_duration_ns(slo)?);
        ensure!(!slo.is_zero(), "the SLO of class {text} is 0: use one above, as in {work}=50us");
        Ok(Self { text: text.to_owned(), most_ns, slo })
    }
}

/// A policy, and the classes that it distinguishes.
#[derive(Debug, Clone)]
pub struct Classes {
    policy: Policy,
    dispatchers: usize,
    classes: Vec<WorkClass>,
}

impl Classes {
    /// Orders the classes by their work. Requests that ask for more than any are of the last.
    #[must_use]
    pub fn new(policy: Policy, mut classes: Vec<WorkClass>) -> Self {
        classes.sort_by_key(|class| class.most_ns);
        Self { policy, dispatchers: 0, classes }
    }

    /// Sets how many dispatchers have a kthread of their own; 0: as the policy says.
    #[must_use]
    pub fn dispatchers(mut self, dispatchers: usize) -> Self {
        self.dispatchers = dispatchers;
        self
    }

    /// Returns the settings of a dispatcher.
    pub(crate) fn settings(&self) -> Settings {
        let class = |class: &WorkClass| RequestClass::new(&class.text).slo(class.slo);
        let settings = Settings::new(self.policy).dispatchers(self.dispatchers);
        self.classes.iter().map(class).fold(settings, Settings::class)
    }

    fn class_of(&self, work_ns: u64) -> usize {
        self.classes.partition_point(|class| class.most_ns < work_ns)
    }
}

/// The service as a dispatcher calls it.
pub(crate) struct Classified {
    pub(crate) shared: Arc<Shared>,
    pub(crate) classes: Classes,
}

impl Service for Classified {
    fn classify(&self, request: &[u8]) -> usize {
        Request::decode(request).map_or(0, |request| self.classes.class_of(request.work_ns))
    }

    fn work(&self, request: &[u8]) -> Option<Duration> {
        Request::decode(request).ok().map(|request| Duration::from_nanos(request.work_ns))
    }

    fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
        if let Some(answer) = self.shared.answer(request) {
            reply.extend_from_slice(&answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_classified_by_their_work() {
        let classes = ["1ms=10ms", "1us=50us"].map(|text| text.parse().unwrap());
        let classes = Classes::new(Policy::central_fcfs(), classes.into());
        for (work_ns, class) in [(0, 0), (1_000, 0), (1_001, 1), (1_000_000, 1), (2_000_000, 2)] {
            assert_eq!(classes.class_of(work_ns), class, "{work_ns}");
        }
    }

    #[test]
    fn bad_classes_are_refused_with_advice() {
        for (text, fragment) in [("1us", "WORK=SLO"), ("1=2us", "unit"), ("1us=0us", "1us=50us")] {
            let message = format!("{:#}", text.parse::<WorkClass>().unwrap_err());
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }
}
