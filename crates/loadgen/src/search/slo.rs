//! Latency limits: their notation, and whether a measurement keeps them.
//!
//! | limit | is about |
//! |---|---|
//! | `p99.9=200us` | 99.9 % of all requests, lost ones included, answered within 200 us |
//! | `win-p99.9=200us` | the median over 100 ms windows of each one's p99.9, lost ones included: the machine's own stalls fall out |
//!
//! Several are joined by commas, and all must be kept. Whatever the limit, at most [`MAX_LOST`] of
//! the requests may be lost.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tailwater_workload::Summary;
use tailwater_workload::summary::NEVER_NS;
use tailwater_workload::units::{UnitError, format_duration_ns, parse_time_ns};

/// Part of the requests that may be lost in a trial that meets its limits.
pub const MAX_LOST: f64 = 0.01;

/// Part of the requests sent late above which a miss is blamed on the generator.
pub const MAX_LATE: f64 = 0.1;

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The latency that this fraction of the requests, above 0 and below 1, does not exceed.
    Quantile(f64),
    /// The median over windows of each one's p99.9, where requests lost in a window count as longer
    /// than any.
    WindowedP999,
}

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// Of what.
    pub measure: Measure,
    /// In nanoseconds.
    pub at_most_ns: u64,
}

/// The limits to keep, at least one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slo {
    limits: Vec<Limit>,
}

/// Why limits were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SloError {
    /// Not of the form `MEASURE=DURATION`, for which `MEASURE<DURATION` may stand.
    #[error(
        "limit `{text}` is not of the form p99.9=200us, with a percentile above 0 and below 100, or win-p99.9=200us"
    )]
    Form {
        /// What was given.
        text: String,
    },
    /// A duration that could not be read.
    #[error("limit `{text}`: {source}")]
    Duration {
        /// The limit.
        text: String,
        /// What was wrong.
        source: UnitError,
    },
}

/// The verdict on a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All limits were kept.
    Met,
    /// One was not.
    Missed,
    /// One was not, but the generator ran behind its own schedule, so the server is not to blame.
    GeneratorBehind,
}

/// The judgement of a trial by its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// What was measured for each limit in microseconds; none where too many requests were lost.
    pub measured_us: Vec<Option<f64>>,
}

impl Slo {
    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Judges whether `summary` keeps the limits.
    #[must_use]
    pub fn judge(&self, summary: &Summary) -> Judgement {
        let counts = summary.counts();
        let settled = (counts.completed + counts.lost) as f64;
        let measured: Vec<Option<u64>> = self.limits.iter().map(|limit| limit.measure.of(summary)).collect();
        let kept =
            |(limit, measured): (&Limit, &Option<u64>)| measured.is_some_and(|ns| ns <= limit.at_most_ns);
        let all_kept = self.limits.iter().zip(&measured).all(kept)
            && settled > 0.0
            && counts.lost as f64 <= MAX_LOST * settled;
        let verdict = if all_kept {
            Verdict::Met
        } else if counts.late as f64 > MAX_LATE * counts.offered.max(1) as f64 {
            Verdict::GeneratorBehind
        } else {
            Verdict::Missed
        };
        let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
        Judgement { verdict, measured_us: measured.into_iter().map(us).collect() }
    }
}

impl Measure {
    /// Returns the limited quantity in nanoseconds; `None` if no request completed, or the request
    /// at that quantile was lost.
    fn of(self, summary: &Summary) -> Option<u64> {
        let Self::Quantile(quantile) = self else {
            return summary.windowed_settled_p999_ns().filter(|&ns| ns != NEVER_NS);
        };
        let counts = summary.counts();
        // The same request's place among those that were answered.
        let among_completed =
            quantile * (counts.completed + counts.lost) as f64 / counts.completed.max(1) as f64;
        (among_completed <= 1.0).then(|| summary.latency_ns(among_completed)).flatten()
    }
}

impl FromStr for Limit {
    type Err = SloError;
    fn from_str(text: &str) -> Result<Self, SloError> {
        let form = || SloError::Form { text: text.to_owned() };
        let (measure, limit) = text.split_once(['=', '<']).ok_or_else(form)?;
        let measure = match measure.trim() {
            "win-p99.9" => Measure::WindowedP999,
            other => {
                let percent: f64 = other.strip_prefix('p').and_then(|p| p.parse().ok()).ok_or_else(form)?;
                if !(percent > 0.0 && percent < 100.0) {
                    return Err(form());
                }
                Measure::Quantile(percent / 100.0)
            }
        };
        let at_most_ns =
            parse_time_ns(limit).map_err(|source| SloError::Duration { text: text.to_owned(), source })?;
        Ok(Self { measure, at_most_ns })
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // 0.999 * 100 is not 99.9 in binary.
            Self::Quantile(quantile) => write!(f, "p{}", (quantile * 1e8).round() / 1e6),
            Self::WindowedP999 => f.write_str("win-p99.9"),
        }
    }
}

impl FromStr for Slo {
    type Err = SloError;
    fn from_str(text: &str) -> Result<Self, SloError> {
        Ok(Self { limits: text.split(',').map(|limit| limit.trim().parse()).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self
            .limits
            .iter()
            .map(|limit| format!("{}={}", limit.measure, format_duration_ns(limit.at_most_ns)))
            .collect();
        f.write_str(&texts.join(","))
    }
}

impl TryFrom<String> for Slo {
    type Error = SloError;
    fn try_from(text: String) -> Result<Self, SloError> {
        text.parse()
    }
}

impl From<Slo> for String {
    fn from(slo: Slo) -> String {
        slo.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_workload::LatencyRecorder;

    /// 1000 requests of 1 to 1000 us, as many more lost, as many late.
    fn summary(lost: u64, late: u64) -> Summary {
        let mut recorder = LatencyRecorder::new(0);
        for us in 1..=1000 {
            recorder.count_offered(us);
            recorder.record(us, us * 1000);
        }
        (0..lost).for_each(|_| {
            recorder.count_offered(1000);
            recorder.count_lost(1000);
        });
        (0..late).for_each(|_| recorder.count_late());
        recorder.finish(1_000_000_000)
    }

    fn verdict(slo: &str, lost: u64, late: u64) -> Verdict {
        slo.parse::<Slo>().unwrap().judge(&summary(lost, late)).verdict
    }

    #[test]
    fn all_limits_must_be_kept() {
        assert_eq!(verdict("p99=1ms", 0, 0), Verdict::Met);
        assert_eq!(verdict("p99=900us", 0, 0), Verdict::Missed);
        assert_eq!(verdict("p50=600us,p99=900us", 0, 0), Verdict::Missed);
        assert_eq!(verdict("win-p99.9=1ms", 0, 0), Verdict::Met);
        assert_eq!(verdict("win-p99.9=500us", 0, 0), Verdict::Missed);
    }

    #[test]
    fn a_lost_request_took_for_ever() {
        // With 5 more lost, the p99 is the 995th of 1005: still an answer. The p99.9 is a lost one.
        let judged = "p99=2ms,p99.9=2ms".parse::<Slo>().unwrap().judge(&summary(5, 0));
        assert_eq!(judged.verdict, Verdict::Missed);
        assert!((judged.measured_us[0].unwrap() - 995.0).abs() < 2.0, "{judged:?}");
        assert_eq!(judged.measured_us[1], None);
        assert_eq!(verdict("p50=2ms", 5, 0), Verdict::Met);
        assert_eq!(verdict("p50=2ms", 50, 0), Verdict::Missed);
        assert_eq!("p50=1s".parse::<Slo>().unwrap().judge(&Summary::default()).verdict, Verdict::Missed);
    }

    #[test]
    fn a_windowed_limit_sees_what_every_window_loses() {
        // 9 of 1000 lost in each of 10 windows, less than may be lost in all; the others are
        // answered in 50 us.
        let overloaded = |lost: u64| {
            let mut recorder = LatencyRecorder::new(0);
            for request in 0..10_000u64 {
                let now_ns = request * 100_000;
                recorder.count_offered(now_ns);
                if request % 1000 < lost {
                    recorder.count_lost(now_ns);
                } else {
                    recorder.record(now_ns, 50_000);
                }
            }
            recorder.finish(1_000_000_000)
        };
        let slo: Slo = "win-p99.9=200us".parse().unwrap();
        let judged = slo.judge(&overloaded(9));
        assert_eq!((judged.verdict, judged.measured_us), (Verdict::Missed, vec![None]));
        let judged = slo.judge(&overloaded(1));
        assert_eq!((judged.verdict, judged.measured_us), (Verdict::Met, vec![Some(50.0)]));
    }

    #[test]
    fn a_generator_that_ran_behind_is_blamed_only_for_a_miss() {
        assert_eq!(verdict("p99=900us", 0, 200), Verdict::GeneratorBehind);
        assert_eq!(verdict("p99=1ms", 0, 200), Verdict::Met);
        assert_eq!(verdict("p99=900us", 0, 50), Verdict::Missed);
    }

    #[test]
    fn limits_read_and_write() {
        for text in ["p99.9=200us", "p50=20us,p99.99=1.5ms,win-p99.9=100us"] {
            assert_eq!(text.parse::<Slo>().unwrap().to_string(), text);
        }
        assert_eq!(
            "p99.9<200us".parse::<Slo>(),
            "p99.9=200us".parse(),
            "as objectives of `sim plan` are written"
        );
        for (text, part) in [
            ("", "p99.9=200us"),
            ("99.9=200us", "p99.9=200us"),
            ("p0=1s", "above 0"),
            ("p100=1s", "below 100"),
            ("pNaN=1s", "above 0"),
            ("p99.9=200", "add one of ns"),
        ] {
            let message = text.parse::<Slo>().expect_err(text).to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
