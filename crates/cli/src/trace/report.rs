//! The text of a trace: the number of requests, the time in each stage, and the slowest requests
//! with their reasons.

use std::collections::BTreeMap;
use std::fmt::Write;

use tailwater_shm::trace::event::Undelivered;
use tailwater_shm::trace::{Handoff, Step, Who};
use tailwater_shm::{Clock, Cycles};

use super::collect::{Collector, Request, Switched};
use super::stages::{Breakdown, Span, Stage};
use super::watch::{Losses, Names};
use tailwater_testbed::table::{Table, number};

/// The requests of a trace, with the names and the clock to describe them.
pub struct Report<'a> {
    collector: &'a Collector,
    names: &'a Names,
    clock: &'a Clock,
    losses: Losses,
    /// The answered requests, slowest first.
    answered: Vec<Breakdown>,
}

impl<'a> Report<'a> {
    /// Returns the report of everything that was collected; `losses` are the events that are
    /// missing.
    pub fn new(collector: &'a Collector, names: &'a Names, clock: &'a Clock, losses: Losses) -> Self {
        let requests = collector.requests.values();
        let mut answered: Vec<_> =
            requests.filter_map(|request| Breakdown::of(request, &collector.cores)).collect();
        answered.sort_by_key(|breakdown| core::cmp::Reverse(breakdown.total()));
        Self { collector, names, clock, losses, answered }
    }

    /// Returns the text, with the `slowest` requests.
    pub fn text(&self, slowest: usize) -> String {
        let mut text = self.counts();
        if self.answered.is_empty() {
            text += "No request was answered. Requests are sampled as they come from ports; see docs, guide, Tracing requests.\n";
            return text;
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{}{}\n{}", self.percentiles(), self.conditions(), self.slowest(slowest));
        text
    }

    fn us(&self, cycles: Cycles) -> String {
        number(self.clock.to_ns(cycles) as f64 / 1000.0)
    }

    fn counts(&self) -> String {
        let (mut dropped, mut open) = (BTreeMap::<&str, u64>::new(), 0);
        for request in self.collector.requests.values().filter(|request| request.left.is_none()) {
            match fate(request) {
                Some(fate) => *dropped.entry(fate).or_default() += 1,
                None => open += 1,
            }
        }
        let all = self.collector.requests.len();
        let mut text = format!("{all} requests traced, {} answered", self.answered.len());
        for (fate, count) in dropped {
            let _ = write!(text, ", {count} {fate}");
        }
        if open > 0 {
            let _ = write!(text, ", {open} still under way");
        }
        let Losses { events, steps } = self.losses;
        let _ = writeln!(
            text,
            "; up to {events} events missing because this program was slow, {steps} overwritten in programs"
        );
        let Collector { not_kept, cores_not_kept, untrue, .. } = *self.collector;
        if not_kept > 0 {
            let _ = writeln!(text, "{not_kept} more requests were traced than are kept");
        }
        if cores_not_kept > 0 {
            let _ = writeln!(
                text,
                "{cores_not_kept} more events of cores arrived than are kept: the reasons of later requests may be wrong"
            );
        }
        if untrue > 0 {
            let _ = writeln!(
                text,
                "{untrue} steps were left out: they belong to earlier requests, or are impossible"
            );
        }
        text
    }

    /// One row for each stage that took time, and one for the total.
    fn percentiles(&self) -> Table {
        let mut table = Table::new("us | p50 | p90 | p99 | max | share");
        let whole: u128 = self.answered.iter().map(|it| u128::from(it.total())).sum();
        let mut row = |name: &str, of: &dyn Fn(&Breakdown) -> Cycles| {
            let mut values: Vec<Cycles> = self.answered.iter().map(of).collect();
            values.sort_unstable();
            let at = |q: f64| self.us(values[((values.len() - 1) as f64 * q).ceil() as usize]);
            let sum: u128 = values.iter().map(|&v| u128::from(v)).sum();
            if sum > 0 {
                let share = format!("{:.1}%", 100.0 * sum as f64 / whole as f64);
                table.row([name.to_owned(), at(0.5), at(0.9), at(0.99), at(1.0), share]);
            }
        };
        for stage in Stage::ALL {
            row(stage.name(), &|it| it.in_stage(stage));
        }
        row("total", &Breakdown::total);
        table
    }

    /// Returns the conditions at the requests' arrival: time since the port's previous poll, and
    /// bytes in the ring.
    fn conditions(&self) -> String {
        let requests = || self.collector.requests.values();
        let mut gaps: Vec<Cycles> = requests().filter_map(Request::poll_gap).collect();
        let mut before: Vec<u64> = requests().filter_map(Request::bytes_before).collect();
        let mut text = String::new();
        // Writing to a string cannot fail.
        if let Some([p50, p99, max]) = quantiles(&mut gaps) {
            let [p50, p99, max] = [p50, p99, max].map(|gap| self.us(gap));
            let _ = writeln!(text, "us since the port's previous poll: p50 {p50}, p99 {p99}, max {max}");
        }
        if let Some([p50, p99, max]) = quantiles(&mut before) {
            let _ = writeln!(text, "bytes in the ingress ring before it: p50 {p50}, p99 {p99}, max {max}");
        }
        text
    }

    fn slowest(&self, count: usize) -> String {
        let mut text = String::new();
        for breakdown in self.answered.iter().take(count) {
            let Some(request) = self.collector.requests.get(&breakdown.id) else { continue };
            let who = request.who();
            let who = who.map_or(String::new(), |who| self.names.runtime(who.runtime, request.arrived));
            let _ = writeln!(
                text,
                "request {} to {who}: {} us: {}",
                breakdown.id,
                self.us(breakdown.total()),
                self.reason(request, breakdown)
            );
            let stages = Stage::ALL.into_iter().filter(|&stage| breakdown.in_stage(stage) > 0);
            let stages: Vec<String> = stages
                .map(|stage| format!("{} {}", stage.name(), self.us(breakdown.in_stage(stage))))
                .collect();
            let _ = writeln!(text, "    {}", stages.join(", "));
        }
        text
    }

    /// Returns the reason of the latency: the stage in which the request spent most of its time.
    pub fn reason(&self, request: &Request, breakdown: &Breakdown) -> String {
        let Some((stage, span)) = breakdown.longest() else { return "it took no time".to_owned() };
        let long = self.us(breakdown.in_stage(stage));
        let kthread = |who: Option<Who>| match who {
            Some(who) => self.kthread(who, span.from),
            None => "its kthread".to_owned(),
        };
        match stage {
            Stage::Port => match request.poll_gap() {
                Some(gap) => format!(
                    "waited {long} us for its port to be polled: the previous poll was {} us earlier",
                    self.us(gap)
                ),
                None => format!("waited {long} us for its port to be polled"),
            },
            Stage::Switch => format!("{long} us in the switch"),
            Stage::Detection => format!(
                "waited {long} us for a core: {} had none, and none was granted yet{}",
                kthread(span.who),
                self.granted(span)
            ),
            Stage::Cede => format!("waited {long} us for a core: {}", self.cession(span)),
            Stage::Start => format!(
                "waited {long} us for a core: {} took that long to start on core {}",
                kthread(span.who),
                span.tenancy.map_or(0, |it| it.core)
            ),
            Stage::Ring => {
                format!(
                    "{long} us in the ingress ring behind {} bytes: {} had a core and ran something else",
                    request.bytes_before().unwrap_or(0),
                    kthread(span.who)
                )
            }
            Stage::Stack => format!("{long} us in the network stack of {}", kthread(span.who)),
            Stage::Socket => format!(
                "{long} us in its socket behind {} others: no thread was waiting to receive",
                breakdown.ahead
            ),
            Stage::RunQueue => format!(
                "{long} us in the run queue of {}, behind {} other threads",
                kthread(span.who),
                breakdown.queue.saturating_sub(1)
            ),
            Stage::Dispatch => format!(
                "{long} us in the queue of a dispatcher, as a request of class {}",
                breakdown.class.unwrap_or_default()
            ),
            Stage::Run => format!("ran for {long} us"),
            Stage::Preempted => {
                let times = times(request, |step| step == Step::Off { asked: true });
                format!("preempted {times}, {long} us off its core{}", self.taker(span))
            }
            Stage::Blocked => format!(
                "waited {long} us for something in the program (a lock, a channel, a timer, another host), or yielded"
            ),
            Stage::Egress => {
                format!("the reply waited {long} us in the egress ring of {}", kthread(span.who))
            }
            Stage::Out => format!("the reply took {long} us through the switch"),
        }
    }

    fn kthread(&self, who: Who, at: Cycles) -> String {
        format!("kthread {} of {}", who.kthread, self.names.runtime(who.runtime, at))
    }

    /// Returns where the core came from in the end.
    fn granted(&self, span: &Span) -> String {
        let Some(tenancy) = span.tenancy else { return String::new() };
        match tenancy.from {
            Some(from) => {
                format!(" (then core {}, from {})", tenancy.core, self.kthread(from, tenancy.decided))
            }
            None => format!(" (then core {}, which was free)", tenancy.core),
        }
    }

    /// Returns which kthread gave the core up, and how.
    fn cession(&self, span: &Span) -> String {
        let Some((tenancy, from)) = span.tenancy.and_then(|it| Some((it, it.from?))) else {
            return "another kthread had to give it up".to_owned();
        };
        let signalled = tenancy.signalled.map(|at| self.us(at.saturating_sub(tenancy.decided)));
        let how = match (tenancy.handoff, signalled) {
            (Handoff::Evict, _) => "when its program ended, or before it had started there".to_owned(),
            (_, Some(after)) => format!("and needed the preempt signal, {after} us after it was asked"),
            (Handoff::Idle, None) => "though it was idle".to_owned(),
            _ => "at a poll point".to_owned(),
        };
        format!("{} gave up core {} {how}", self.kthread(from, tenancy.decided), tenancy.core)
    }

    /// Returns what ran instead of a preempted request: the kthread that got the core, or other
    /// threads of the program.
    fn taker(&self, span: &Span) -> String {
        let Some(loser) = span.who else { return String::new() };
        let tenancies = self.collector.cores.tenancies();
        let during = |at: Cycles| (span.from..=span.to).contains(&at);
        let taker = tenancies.iter().find(|it| it.from == Some(loser) && it.ceded.is_some_and(during));
        let kept = tenancies.iter().any(|it| {
            it.who == loser
                && it.running.is_some_and(|at| at <= span.from)
                && it.lost.is_none_or(|at| at >= span.to)
        });
        match taker {
            Some(taker) => format!(", which went to {}", self.kthread(taker.who, taker.decided)),
            None if kept => {
                ": its time slice was over, and other threads of its program ran there".to_owned()
            }
            None => String::new(),
        }
    }
}

/// Median, 99th percentile and maximum.
fn quantiles(values: &mut [u64]) -> Option<[u64; 3]> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    Some([0.5, 0.99, 1.0].map(|q| values[(last as f64 * q).ceil() as usize]))
}

fn times(request: &Request, is: impl Fn(Step) -> bool) -> String {
    match request.steps.iter().filter(|&&(.., step)| is(step)).count() {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    }
}

/// Returns the end of a request that was not answered.
fn fate(request: &Request) -> Option<&'static str> {
    match request.switched {
        Some(Switched::Dropped(Undelivered::Full)) => return Some("dropped at a full ingress ring"),
        Some(Switched::Dropped(Undelivered::Gone)) => return Some("to a program that ended"),
        _ => {}
    }
    let ended = |step| match step {
        Step::Refused => Some("dropped at a full socket"),
        Step::Untracked => Some("not followed: too many traced requests in one socket"),
        Step::Ended => Some("without a reply from their thread"),
        _ => None,
    };
    request.step(ended).map(|(.., fate)| fate)
}
