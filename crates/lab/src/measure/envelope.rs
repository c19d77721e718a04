//! The file of one experiment: its report, and everything a reader needs to judge and repeat it.
//!
//! Owns the format of `results/MACHINE/EXPERIMENT.json`, its version, and the machine's short name.
//! `measure` writes these files, `publish` reads them.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tailwater_loadgen::noise::GapFigures;

use super::list::Kind;

/// Version of the format. A change that a reader would misunderstand raises it.
pub const SCHEMA: u32 = 1;

/// A result is `disturbed` if a core lost more than this part of its time, in per cent, to stalls
/// over 50 us right before or right after the experiment.
pub const MAX_LOST_PERCENT: f64 = 5.0;

/// One experiment's result, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    pub schema: u32,
    pub experiment: String,
    pub kind: Kind,
    pub title: String,
    /// The commit of the programs, with `-dirty` if files differed from it.
    pub commit: String,
    /// When the experiment ended, in UTC.
    pub date: String,
    pub machine_name: String,
    /// As `tailwater_testbed::machine::Machine` describes it.
    pub machine: Value,
    /// Noise of each core right before the experiment.
    pub noise_before: Vec<CoreNoise>,
    /// The same right after it.
    pub noise_after: Vec<CoreNoise>,
    /// Rounds of which the report has medians.
    pub rounds: u16,
    /// Whether this is a smoke test rather than a result.
    pub quick: bool,
    pub wall_seconds: f64,
    /// The command that a round ran.
    pub command: String,
    /// The command that repeats the experiment.
    pub repeat: String,
    /// Why there is no report.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// Medians over the rounds.
    pub report: Value,
    /// Lowest and highest values over the rounds, where the report itself has no spread.
    #[serde(skip_serializing_if = "Value::is_null", default)]
    pub lowest: Value,
    #[serde(skip_serializing_if = "Value::is_null", default)]
    pub highest: Value,
}

/// The noise of one core: times at which a spinning thread did not run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CoreNoise {
    pub core: usize,
    /// Stalls over 50 us.
    pub stalls_per_s: f64,
    /// Time in them, in per cent of the core's.
    pub lost_percent: f64,
    pub longest_us: f64,
}

impl CoreNoise {
    pub fn new(core: usize, gaps: GapFigures) -> Self {
        let GapFigures { gaps_per_s, lost_fraction, longest_us } = gaps;
        Self { core, stalls_per_s: gaps_per_s, lost_percent: 100.0 * lost_fraction, longest_us }
    }
}

impl Envelope {
    /// Returns true if the host stalled a core for too long. A simulation has no noise.
    pub fn is_disturbed(&self) -> bool {
        let mut noise = self.noise_before.iter().chain(&self.noise_after);
        noise.any(|core| core.lost_percent > MAX_LOST_PERCENT)
    }

    /// Returns the file of an experiment in the folder of a machine.
    pub fn path(folder: &Path, experiment: &str) -> PathBuf {
        folder.join(format!("{experiment}.json"))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no result of this version.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let wrong = || format!("{} is no result of `tailwater-lab measure`; remove it", path.display());
        let value: Value = serde_json::from_str(&text).with_context(wrong)?;
        let schema = value["schema"].as_u64().with_context(wrong)?;
        anyhow::ensure!(
            schema == u64::from(SCHEMA),
            "{} has version {schema} of the format, this program knows {SCHEMA}: measure again",
            path.display()
        );
        serde_json::from_value(value).with_context(wrong)
    }

    /// Writes the file of this experiment into the folder of its machine.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = Self::path(folder, &self.experiment);
        tailwater_sim::report::write_file(&path, &(serde_json::to_string_pretty(self)? + "\n"))
    }
}

/// Returns a short name for a machine, of its processor and number of cores: `epyc-2`.
pub fn machine_name(cpu_model: &str, cores: usize) -> String {
    let model = cpu_model.split('@').next().unwrap_or_default().to_lowercase();
    let model = model.replace("(r)", " ").replace("(tm)", " ");
    let says_nothing = |word: &&str| {
        ["amd", "intel", "cpu", "processor", "virtual"].contains(word) || word.ends_with("-core")
    };
    let words = model.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|word| !word.is_empty());
    let words: Vec<&str> = words.filter(|word| !says_nothing(word)).collect();
    let model = if words.is_empty() { "unknown".to_owned() } else { words.join("-") };
    format!("{model}-{cores}")
}

/// Returns a time to the second in UTC, as 2026-11-29T04:30:00Z.
pub fn utc(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_named_after_its_processor_and_cores() {
        assert_eq!(machine_name("AMD EPYC", 2), "epyc-2");
        assert_eq!(machine_name("AMD EPYC 9654 96-Core Processor", 16), "epyc-9654-16");
        assert_eq!(machine_name("Intel(R) Xeon(R) Processor @ 2.70GHz", 2), "xeon-2");
        assert_eq!(machine_name("unknown", 4), "unknown-4");
    }
}
