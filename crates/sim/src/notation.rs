//! The notation of policies and lists of loads, on a command line and in scenario files.
//!
//! Owns lists, with errors that show what to write instead; the notation of one policy is that of
//! `sched::dispatch`.
//!
//! Loads: `0.5`, `50%`, lists `0.1,0.5,0.9`, ranges with a number of points `0.1..0.9/9`.

use anyhow::{Context, ensure};
use tailwater_sched::dispatch::PolicySpec;

/// Maximum number of points in one list of loads.
const MAX_POINTS: usize = 1_000;

/// Reads a list of policies separated by spaces or semicolons (a comma belongs to a policy's
/// parameters), or by commas where every part is a policy by itself.
///
/// # Errors
///
/// If a name or a parameter is unknown, with what there is instead, or if the list is empty.
pub fn parse_policies(text: &str) -> anyhow::Result<Vec<(String, PolicySpec)>> {
    // `sq:5us,head` and `jbsq:2,5us` hold a comma: `head`, `tail` and a time belong to what stands
    // before them.
    let mut names: Vec<String> = Vec::new();
    for part in text.split([',', ';', ' ']).map(str::trim).filter(|p| !p.is_empty()) {
        match names.last_mut() {
            Some(last)
                if matches!(part, "head" | "tail") || part.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                *last = format!("{last},{part}");
            }
            _ => names.push(part.to_owned()),
        }
    }
    ensure!(!names.is_empty(), "the list of policies is empty; try c-fcfs,d-fcfs,ps:100ns");
    names.into_iter().map(|name| Ok((name.clone(), name.parse()?))).collect()
}

/// Reads a list of loads, each a fraction of all cores above 0.
///
/// # Errors
///
/// If a part is no number or range, or the list is empty or too long.
pub fn parse_loads(text: &str) -> anyhow::Result<Vec<f64>> {
    let mut loads = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        match part.split_once("..") {
            None => loads.push(fraction(part)?),
            Some((from, rest)) => {
                let (to, points) = rest.split_once('/').with_context(|| {
                    format!("range `{part}` needs its number of points, as in 0.1..0.9/9")
                })?;
                let points: usize =
                    points.trim().parse().with_context(|| format!("`{points}` in `{part}`"))?;
                ensure!((2..=MAX_POINTS).contains(&points), "range `{part}`: use 2 to {MAX_POINTS} points");
                let (from, to) = (fraction(from)?, fraction(to)?);
                let step = (to - from) / (points - 1) as f64;
                // Rounded so that a range prints as it was written: 0.3, not 0.30000000000000004.
                loads.extend((0..points).map(|i| ((from + step * i as f64) * 1e6).round() / 1e6));
            }
        }
    }
    ensure!(!loads.is_empty() && loads.len() <= MAX_POINTS, "give 1 to {MAX_POINTS} loads, as in 0.1..0.9/9");
    Ok(loads)
}

fn fraction(text: &str) -> anyhow::Result<f64> {
    let text = text.trim();
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |n| (n, 100.0));
    let value: f64 =
        number.trim().parse().with_context(|| format!("load `{text}` is not a number such as 0.5 or 50%"))?;
    let load = value / scale;
    ensure!(
        load > 0.0 && load < 100.0,
        "load `{text}` is out of range: it is a fraction of the cores, 0.5 or 50%"
    );
    Ok(load)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_sched::Nanos;
    use tailwater_sched::dispatch::Requeue;

    #[test]
    fn policies_are_read_with_their_parameters() {
        let list =
            parse_policies("c-fcfs, sq:5us,head, mq:10us ps:100ns;steal:4, jbsq:2,5us,jbsq:3").unwrap();
        let specs: Vec<_> = list.iter().map(|(_, s)| *s).collect();
        let us = |n| Nanos::from_micros(n);
        assert_eq!(
            specs,
            [
                PolicySpec::CFcfs,
                PolicySpec::SingleQueue { quantum_ns: us(5), requeue: Requeue::Head },
                PolicySpec::MultiQueue { quantum_ns: us(10), requeue: Requeue::Head },
                PolicySpec::ProcessorSharing { quantum_ns: Nanos(100) },
                PolicySpec::Stealing { batch: 4 },
                PolicySpec::BoundedQueues { depth: 2, quantum_ns: Some(us(5)) },
                PolicySpec::BoundedQueues { depth: 3, quantum_ns: None },
            ]
        );
        assert_eq!(list[1].0, "sq:5us,head");
    }

    #[test]
    fn bad_policies_are_refused_with_advice() {
        for (text, fragment) in [
            ("fifo", "use d-fcfs"),
            ("ps", "as in `ps:5us`"),
            ("sq:0ns", "quantum of 0"),
            ("sq:5us,middle", "use d-fcfs"),
            ("steal:99", "1 to 16"),
            ("c-fcfs:3", "no parameters"),
            (" ", "empty"),
        ] {
            let message = format!("{:#}", parse_policies(text).unwrap_err());
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }

    #[test]
    fn loads_are_fractions_percentages_and_ranges() {
        assert_eq!(parse_loads("0.1..0.5/5, 90%").unwrap(), [0.1, 0.2, 0.3, 0.4, 0.5, 0.9]);
        for (text, fragment) in
            [("", "give 1"), ("x", "not a number"), ("0", "out of range"), ("0.1..0.9", "points")]
        {
            let message = format!("{:#}", parse_loads(text).unwrap_err());
            assert!(message.contains(fragment), "{text}: {message}");
        }
    }
}
