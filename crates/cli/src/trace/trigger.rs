//! What a trace waits for: that something goes wrong, as two readings of the statistics show.
//!
//! Pure: a function of the two readings.

use std::str::FromStr;

use serde_json::Value;
use tailwater_stats::BOUNDS_NS;
use tailwater_testbed::statistics::{CLASS, PROGRAM, alike, growth, quantile_ns};
use tailwater_testbed::table::number;
use tailwater_testbed::text::plain;
use tailwater_workload::units::{format_duration_ns, parse_duration_ns};

/// Part of the requests of a class that may take longer than its target, which is one for the 99th
/// percentile.
const MISSES: f64 = 0.01;

/// See the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A thread was moved off its core, because it did not cede it.
    Eviction,
    /// The polling thread made no progress.
    Stall,
    /// More than one in a hundred requests of a class took longer than its target.
    Slo,
    /// The 99th percentile of hand-offs was above so many nanoseconds.
    Handoff(u64),
}

impl FromStr for Trigger {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=').unwrap_or((text, "")) {
            ("eviction", "") => Ok(Self::Eviction),
            ("stall", "") => Ok(Self::Stall),
            ("slo", "") => Ok(Self::Slo),
            ("handoff", time) if !time.is_empty() => {
                let ns = parse_duration_ns(time).map_err(|error| error.to_string())?;
                // The statistics count hand-offs between these.
                let above = BOUNDS_NS.into_iter().find(|bound| *bound >= ns);
                let below = BOUNDS_NS.into_iter().rfind(|bound| *bound <= ns);
                match (below, above) {
                    (Some(below), Some(above)) if below == above => Ok(Self::Handoff(ns)),
                    _ => {
                        let near: Vec<String> =
                            [below, above].into_iter().flatten().map(format_duration_ns).collect();
                        Err(format!(
                            "hand-offs are counted by 1, 2 and 5 times powers of ten; write {}",
                            near.join(" or ")
                        ))
                    }
                }
            }
            _ => Err("known are eviction, stall, slo and handoff=TIME, for instance handoff=50us".to_owned()),
        }
    }
}

impl Trigger {
    /// Returns its name in that of a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eviction => "eviction",
            Self::Stall => "stall",
            Self::Slo => "slo",
            Self::Handoff(_) => "handoff",
        }
    }

    /// Returns what has happened between two readings, in words; `None` if nothing did.
    pub fn fired(self, from: &Value, to: &Value) -> Option<String> {
        match self {
            Self::Eviction => {
                let of = |program: &&Value| {
                    let before = alike(&from["runtimes"], program, PROGRAM);
                    growth(&before["counters"]["evictions"], &program["counters"]["evictions"]) > 0.0
                };
                let program = to["runtimes"].as_array().into_iter().flatten().find(of)?;
                Some(format!("a thread of {} was moved off its core", name(&program["name"])))
            }
            Self::Stall => {
                let stalls = growth(&from["loop"]["stalls"], &to["loop"]["stalls"]);
                (stalls > 0.0).then(|| "the polling thread made no progress for 100 ms".to_owned())
            }
            Self::Slo => to["runtimes"].as_array().into_iter().flatten().find_map(|program| {
                let before = &alike(&from["runtimes"], program, PROGRAM)["classes"];
                let classes = program["classes"].as_array().into_iter().flatten();
                classes.into_iter().find_map(|class| missed(before, class)).map(|missed| {
                    format!("{missed} requests of {} took longer than their target", name(&program["name"]))
                })
            }),
            Self::Handoff(bound) => {
                let kinds = to["handoff"].as_object().into_iter().flatten();
                let mut above = kinds.filter_map(|(kind, now)| {
                    let before = &from["handoff"][kind]["running_ns"];
                    let p99 = quantile_ns(before, &now["running_ns"], 0.99)?;
                    (p99 > bound as f64).then(|| plain(kind))
                });
                let kind = above.next()?;
                let us = number(bound as f64 / 1e3);
                Some(format!("the 99th percentile of hand-offs of the kind {kind} was above {us} us"))
            }
        }
    }
}

fn name(value: &Value) -> String {
    plain(value.as_str().unwrap_or("?"))
}

/// Returns how many requests of a class took too long, as `late of all class`; `None` if it met its
/// target.
fn missed(before: &Value, class: &Value) -> Option<String> {
    let before = alike(before, class, CLASS);
    let grew = |key: &str| growth(&before[key], &class[key]);
    let (late, finished) = (grew("late"), grew("finished"));
    (late > MISSES * finished && late > 0.0)
        .then(|| format!("{late} of {} {}", finished.max(late), name(&class["name"])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(evictions: u64, stalls: u64, late: u64, long: u64) -> Value {
        let buckets: Vec<u64> =
            BOUNDS_NS.iter().map(|ns| 1_000 + if *ns < 100_000 { 0 } else { long }).collect();
        json!({
            "loop": { "stalls": stalls },
            "runtimes": [{ "id": 1, "name": "web\x1b", "pid": 7, "counters": { "evictions": evictions },
                "classes": [{ "name": "GET", "dispatcher": 0, "late": late, "finished": 1_000 * (1 + late.min(1)) }] }],
            "handoff": { "polling": { "running_ns": { "count": 1_000 + long, "buckets": buckets } } },
        })
    }

    #[test]
    fn each_trigger_fires_for_its_own_cause_and_names_it() {
        let before = document(1, 1, 0, 0);
        let all = ["eviction", "stall", "slo", "handoff=50us"].map(|text| text.parse::<Trigger>().unwrap());
        let fired = |after: Value| all.map(|trigger| trigger.fired(&before, &after));
        assert_eq!(fired(before.clone()), [None, None, None, None]);
        let [eviction, none @ ..] = fired(document(2, 1, 0, 0));
        assert_eq!(none, [None, None, None]);
        assert_eq!(eviction.unwrap(), "a thread of web? was moved off its core");
        assert!(fired(document(1, 2, 0, 0))[1].as_ref().unwrap().contains("no progress"));
        // One in a hundred is within the target, more are not.
        assert_eq!(fired(document(1, 1, 10, 0))[2], None);
        let slo = fired(document(1, 1, 11, 0))[2].clone().unwrap();
        assert!(slo.starts_with("11 of 1000 GET requests of web?"), "{slo}");
        let handoff = fired(document(1, 1, 0, 3))[3].clone().unwrap();
        assert!(handoff.contains("polling") && handoff.contains("above 50.0 us"), "{handoff}");
        // Another program in the same place has counters of its own.
        let mut other = document(5, 1, 0, 0);
        other["runtimes"][0]["pid"] = json!(8);
        assert!(fired(other)[0].is_some(), "5 evictions since it registered");
        assert_eq!(Trigger::Eviction.fired(&Value::Null, &Value::Null), None);
    }

    #[test]
    fn a_limit_of_hand_offs_is_one_that_the_statistics_know() {
        assert_eq!("handoff=50us".parse(), Ok(Trigger::Handoff(50_000)));
        for (near, words) in [("60us", "50us or 100us"), ("1h", "write 10s"), ("0us", "write 200ns")] {
            let why = format!("handoff={near}").parse::<Trigger>().unwrap_err();
            assert!(why.ends_with(words), "{why}");
        }
        for bad in ["", "handoff", "handoff=", "handoff=1h", "handoff=soon", "evictions", "stall=1"] {
            assert!(bad.parse::<Trigger>().is_err(), "{bad}");
        }
    }
}
