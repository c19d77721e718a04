//! The figures of `bench neighbour`, as JSON and as text.
//!
//! Owns their names, which readers of the JSON rely on. Figures of several rounds are medians over
//! the rounds; those of the other programs are quantiles of all samples of all rounds.

use std::collections::BTreeMap;

use serde::Serialize;
use tailwater_stats::HandoffKind;
use tailwater_testbed::handoffs::HandoffKindFigures;
use tailwater_testbed::table::{Table, number};

/// What was measured; times in milliseconds unless said.
#[derive(Debug, Serialize)]
pub struct Report {
    /// A process of 100 ms of processor time, with nothing else on the machine.
    pub(super) quiet_ms: f64,
    /// A batch job and no traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) batch_only: Option<BatchOnly>,
    /// A service at 30 % load and a batch job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) service_30: Option<Service30>,
    /// 99th percentile of a thread's wake-up delay beside service and batch job on Tailwater.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shell_p99_ms: Option<f64>,
}

/// A batch job without traffic, on Tailwater unless a name says `linux`.
#[derive(Debug, Serialize)]
pub(super) struct BatchOnly {
    pub(super) process_ms: f64,
    pub(super) linux_process_ms: f64,
    /// Processor time of all threads of the IOKernel, in percent of a core.
    pub(super) iokernel_cpu_percent: f64,
    /// Trials per second on Tailwater over those on Linux, both beside the other programs.
    pub(super) batch_over_linux: f64,
    /// Processor time of the batch job, in percent of a core.
    pub(super) batch_cpu_percent: f64,
    pub(super) linux_batch_cpu_percent: f64,
    /// Trials per second of processor time, over those on Linux.
    pub(super) batch_speed_over_linux: f64,
    pub(super) shell_p99_ms: f64,
    pub(super) linux_shell_p99_ms: f64,
    /// Of a thread that is bound to a lent core.
    pub(super) pinned_wake_p99_ms: f64,
    pub(super) linux_pinned_wake_p99_ms: f64,
}

/// A service at 30 % load and a batch job.
#[derive(Debug, Serialize)]
pub(super) struct Service30 {
    pub(super) process_ms: f64,
    pub(super) service_win_p999_us: Option<f64>,
    /// On Tailwater with the batch job and without the other programs.
    pub(super) service_win_p999_alone_us: Option<f64>,
    /// The first over the second within each round, and of these ratios the median. It is not the
    /// ratio of the two medians above.
    pub(super) service_win_p999_over_alone: Option<f64>,
    pub(super) service_p99_us: Option<f64>,
    pub(super) service_p99_alone_us: Option<f64>,
    /// The batch job's rate beside the service over its rate alone.
    pub(super) batch_share: f64,
    pub(super) batch_share_alone: f64,
    /// Hand-offs by cause while the other programs ran.
    pub(super) handoffs: BTreeMap<&'static str, HandoffKindFigures>,
    /// The same service on Linux beside the same batch job at nice 0, which is the mark.
    pub(super) linux_process_ms: f64,
    pub(super) linux_shell_p99_ms: f64,
    pub(super) linux_service_win_p999_us: Option<f64>,
    pub(super) linux_service_p99_us: Option<f64>,
    pub(super) linux_batch_share: f64,
    /// The same with the batch job in `SCHED_IDLE`.
    pub(super) linux_idle: OnLinux,
}

/// What programs get on Linux beside the service and a batch job.
#[derive(Debug, Serialize)]
pub(super) struct OnLinux {
    pub(super) process_ms: f64,
    pub(super) shell_p99_ms: f64,
    pub(super) service_win_p999_us: Option<f64>,
    pub(super) service_p99_us: Option<f64>,
    pub(super) batch_share: f64,
}

/// Returns the figures as text.
pub(super) fn describe(report: &Report) -> String {
    let mut table = Table::new("beside | process of 100 ms, ms | wake-up p99, ms | batch job");
    let mut row = |name: &str, process: f64, shell: Option<f64>, batch: Option<f64>| {
        let shell = shell.map_or_else(String::new, number);
        table.row([name.to_owned(), number(process), shell, batch.map_or_else(String::new, number)]);
    };
    row("nothing", report.quiet_ms, None, None);
    if let Some(b) = &report.batch_only {
        row("batch job, Linux", b.linux_process_ms, Some(b.linux_shell_p99_ms), Some(1.0));
        row("batch job, Tailwater", b.process_ms, Some(b.shell_p99_ms), Some(b.batch_over_linux));
    }
    if let Some(s) = &report.service_30 {
        let idle = &s.linux_idle;
        let (process, shell) = (s.linux_process_ms, Some(s.linux_shell_p99_ms));
        row("service at 30 % and batch job, Linux", process, shell, Some(s.linux_batch_share));
        let name = "  the batch job in SCHED_IDLE, Linux";
        row(name, idle.process_ms, Some(idle.shell_p99_ms), Some(idle.batch_share));
        let name = "service at 30 % and batch job, Tailwater";
        row(name, s.process_ms, report.shell_p99_ms, Some(s.batch_share));
    }
    let mut text = format!(
        "{table}\nThe batch job's rate is over that on Linux without a service, over its own alone beside one.\n"
    );
    if let Some(b) = &report.batch_only {
        text += &format!(
            "The IOKernel beside the batch job: {} % of a core; the batch job: {} %, on Linux {} %, at {} of its speed there.\n\
             Wake-up p99 of a thread that is bound to a lent core, ms: {}, on Linux {}.\n",
            number(b.iokernel_cpu_percent),
            number(b.batch_cpu_percent),
            number(b.linux_batch_cpu_percent),
            number(b.batch_speed_over_linux),
            number(b.pinned_wake_p99_ms),
            number(b.linux_pinned_wake_p99_ms),
        );
    }
    if let Some(s) = &report.service_30 {
        text += &describe_service(s);
    }
    text
}

fn describe_service(s: &Service30) -> String {
    let us = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), number);
    let mut table = Table::new("the service, us | p99 | windowed p99.9");
    let mut row = |name: &str, p99, win_p999| table.row([name.to_owned(), us(p99), us(win_p999)]);
    row("Tailwater, without the other programs", s.service_p99_alone_us, s.service_win_p999_alone_us);
    row("Tailwater, beside them", s.service_p99_us, s.service_win_p999_us);
    row("Linux, beside them", s.linux_service_p99_us, s.linux_service_win_p999_us);
    let idle = &s.linux_idle;
    row("  the batch job in SCHED_IDLE", idle.service_p99_us, idle.service_win_p999_us);
    let bypass = s.handoffs.get(HandoffKind::Bypass.name()).copied().unwrap_or_default();
    let all: u64 = s.handoffs.values().map(|kind| kind.count).sum();
    format!(
        "{table}\nWindowed p99.9 beside over alone, median of the rounds' ratios: {}.\n\
         Hand-offs past a descheduled owner (bypass): {} of {all}, p50 {} us, p99 {} us.\n",
        us(s.service_win_p999_over_alone),
        bypass.count,
        number(bypass.p50),
        number(bypass.p99),
    )
}
