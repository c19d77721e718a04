//! The results of one machine, and the figures in them.
//!
//! Owns how a figure is looked up and written: median, and lowest and highest where there are
//! several rounds. A figure that is missing is blank, never zero. Pure but for [`Results::read`].

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;
use tailwater_testbed::table;

use crate::measure::envelope::Envelope;

/// The results of one machine by the name of the experiment.
#[derive(Debug, Default)]
pub struct Results {
    all: BTreeMap<String, Envelope>,
}

impl Results {
    /// Reads the files of a machine's folder.
    ///
    /// # Errors
    /// If the folder cannot be read, or a file is no result.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let entries =
            std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut all = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                all.push(Envelope::read(&path)?);
            }
        }
        Ok(Self::of(all))
    }

    pub fn of(all: impl IntoIterator<Item = Envelope>) -> Self {
        Self { all: all.into_iter().map(|result| (result.experiment.clone(), result)).collect() }
    }

    pub fn get(&self, experiment: &str) -> Option<&Envelope> {
        self.all.get(experiment)
    }

    /// Returns the results of these experiments, as far as there are any.
    pub fn of_experiments<'a>(
        &'a self,
        names: &'a [String],
    ) -> impl Iterator<Item = &'a Envelope> + Clone + 'a {
        names.iter().filter_map(|name| self.get(name))
    }

    /// Returns the report of an experiment; `None` if it was not measured or has failed.
    pub fn report(&self, experiment: &str) -> Option<Report<'_>> {
        let result = self.get(experiment).filter(|result| result.error.is_none())?;
        Some(Report { result, at: String::new() })
    }
}

/// Fails unless all results are of one commit and mode.
///
/// # Errors
/// Names the experiments that differ from the most frequent commit.
pub fn of_one_commit<'a>(results: impl Iterator<Item = &'a Envelope> + Clone) -> Result<(), String> {
    let key = |result: &Envelope| format!("{}{}", result.commit, if result.quick { ", quick" } else { "" });
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    results.clone().for_each(|result| *counts.entry(key(result)).or_default() += 1);
    let Some((most, _)) = counts.iter().max_by_key(|(_, count)| **count) else { return Ok(()) };
    let differ: Vec<String> = results
        .filter(|result| key(result) != *most)
        .map(|result| format!("{}.json ({})", result.experiment, key(result)))
        .collect();
    match differ.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "all rows of a page are of one commit and mode; most are of {most}, but not {}: measure these again",
            differ.join(", ")
        )),
    }
}

/// A report, or a part of it.
#[derive(Debug, Clone)]
pub struct Report<'a> {
    pub result: &'a Envelope,
    /// JSON pointer of the part.
    at: String,
}

impl<'a> Report<'a> {
    /// Returns the part at a JSON pointer.
    pub fn part(&self, pointer: &str) -> Self {
        Self { result: self.result, at: format!("{}{pointer}", self.at) }
    }

    /// Returns the items of the list at a pointer.
    pub fn items(&self, pointer: &str) -> Vec<Self> {
        let count = self.value(pointer).and_then(Value::as_array).map_or(0, Vec::len);
        (0..count).map(|index| self.part(&format!("{pointer}/{index}"))).collect()
    }

    /// Returns what the report has at a pointer.
    pub fn value(&self, pointer: &str) -> Option<&'a Value> {
        self.result.report.pointer(&format!("{}{pointer}", self.at))
    }

    pub fn text(&self, pointer: &str) -> &'a str {
        self.value(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the median at a pointer.
    pub fn median(&self, pointer: &str) -> Option<f64> {
        self.value(pointer)?.as_f64()
    }

    /// Returns the figure at a pointer times `scale`, as `median (lowest to highest)`; blank if
    /// there is none.
    pub fn figure(&self, pointer: &str, scale: f64) -> String {
        let Some(median) = self.median(pointer) else { return String::new() };
        let of = |tree: &Value| tree.pointer(&format!("{}{pointer}", self.at)).and_then(Value::as_f64);
        let median = number(median * scale);
        match (of(&self.result.lowest), of(&self.result.highest)) {
            (Some(lowest), Some(highest)) if lowest != highest => {
                format!("{median} ({} to {})", number(lowest * scale), number(highest * scale))
            }
            _ => median,
        }
    }
}

/// Returns a number with three significant digits or more, thousands apart from 10,000 on.
pub fn number(value: f64) -> String {
    if value.abs() < 10_000.0 {
        return table::number(value);
    }
    let digits = format!("{:.0}", value.abs());
    let groups: Vec<&str> = (0..digits.len().div_ceil(3))
        .rev()
        .map(|group| &digits[digits.len().saturating_sub(3 * (group + 1))..digits.len() - 3 * group])
        .collect();
    format!("{}{}", if value < 0.0 { "-" } else { "" }, groups.join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::result;
    use super::*;

    #[test]
    fn a_figure_has_its_spread_and_a_missing_one_is_blank() {
        let mut tcp = result("tcp", "abc", json!({"rows": [{"p99": 2500.0}]}));
        tcp.lowest = json!({"rows": [{"p99": 1200.0}]});
        tcp.highest = json!({"rows": [{"p99": 13_400.0}]});
        let results = Results::of([tcp]);
        let report = results.report("tcp").unwrap();
        let rows = report.items("/rows");
        assert_eq!(rows[0].figure("/p99", 1e-3), "2.50 (1.20 to 13.4)");
        assert_eq!(rows[0].figure("/p99", 1e3), "2,500,000 (1,200,000 to 13,400,000)");
        assert_eq!([9_999.4, 12_345.6, -123_456.0].map(number), ["9999", "12,346", "-123,456"]);
        assert_eq!(rows[0].figure("/p50", 1.0), "");
        assert!(report.items("/none").is_empty() && results.report("demo").is_none());
    }

    #[test]
    fn other_commits_and_modes_are_named() {
        let of = |name, commit| result(name, commit, json!({}));
        let mut all = [of("tcp", "abc"), of("demo", "abc"), of("threads", "def")];
        assert!(of_one_commit(all[..2].iter()).is_ok());
        let error = of_one_commit(all.iter()).unwrap_err();
        assert!(error.contains("most are of abc") && error.contains("threads.json (def)"), "{error}");
        all[1].quick = true;
        assert!(of_one_commit(all[..2].iter()).unwrap_err().contains(", quick"));
    }
}
