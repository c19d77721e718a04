//! The clock rates that Linux's cpufreq lets this machine set.
//!
//! Owns the reading of cpufreq's folders (Documentation/admin-guide/pm/cpufreq.rst); writes
//! nothing. A *domain* is a group of processors with one clock. The domain of the polling thread's
//! core is not changed, because that core never waits. No rate is above the limit that a domain had
//! before any IOKernel changed it. Turbo Boost stays off where an administrator has switched it
//! off: then there is no turbo step.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tailwater_sched::alloc::{Clock, Clocks};

/// Most rates between the lowest and the nominal one, both included. IX used 13.
const MAX_RATES: u32 = 13;
const STEP_MHZ: u32 = 100;
/// A domain's limit.
pub(super) const LIMIT: &str = "scaling_max_freq";
/// A domain's preference between speed and energy.
pub(super) const PREFERENCE: &str = "energy_performance_preference";

/// Domains whose clock is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Machine {
    /// The folder of each domain, and its highest rate within its limit, in kHz.
    domains: Vec<(PathBuf, u32)>,
    /// File of the machine's switch for Turbo Boost, with the words for off and on.
    boost: Option<(PathBuf, [&'static str; 2])>,
    nominal_mhz: u32,
}

/// Returns the number in a file; `None` if there is none.
fn number(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the nominal rate of a domain in kHz: with Turbo Boost lower than the highest.
fn nominal(folder: &Path, highest: u32) -> u32 {
    if let Some(base) = number(&folder.join("base_frequency")) {
        return base.min(highest);
    }
    let listed = fs::read_to_string(folder.join("scaling_available_frequencies")).unwrap_or_default();
    let mut rates: Vec<u32> = listed.split_whitespace().filter_map(|rate| rate.parse().ok()).collect();
    rates.sort_unstable();
    match rates[..] {
        // acpi-cpufreq lists Turbo Boost as the nominal rate and one MHz more.
        [.., nominal, turbo] if turbo == nominal + 1000 => nominal.min(highest),
        [.., top] => top.min(highest),
        [] => highest,
    }
}

impl Machine {
    /// Returns the domains of `managed` below `root`, `/sys/devices/system/cpu` outside of tests,
    /// and the rates that all of them have. Settings that another IOKernel has changed count with
    /// their values in `originals`, by file.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub(super) fn detect(
        root: &Path,
        managed: &[u16],
        polling: u16,
        originals: &BTreeMap<PathBuf, String>,
    ) -> Result<(Self, Clocks), String> {
        let setting = |file: &Path| match originals.get(file) {
            Some(before) => before.parse().ok(),
            None => number(file),
        };
        let folder = |core: u16| fs::canonicalize(root.join(format!("cpu{core}/cpufreq"))).ok();
        let mut folders: BTreeSet<PathBuf> = managed.iter().filter_map(|&core| folder(core)).collect();
        if folders.is_empty() {
            return Err("this machine has no cpufreq".to_owned());
        }
        if let Some(own) = folder(polling) {
            folders.remove(&own);
        }
        if folders.is_empty() {
            return Err("the managed cores share one clock with the polling thread's core".to_owned());
        }
        let (mut domains, mut range) = (Vec::new(), (0, u32::MAX, u32::MAX));
        for folder in folders {
            let rate = |name: &str| number(&folder.join(name));
            let (Some(low), Some(high)) = (rate("cpuinfo_min_freq"), rate("cpuinfo_max_freq")) else {
                return Err(format!("{} does not name its rates", folder.display()));
            };
            let high = setting(&folder.join(LIMIT)).map_or(high, |limit| high.min(limit));
            let nominal = nominal(&folder, high);
            range = (range.0.max(low / 1000), range.1.min(nominal / 1000), range.2.min(high / 1000));
            domains.push((folder, high));
        }
        let (low, nominal, high) = range;
        if low >= nominal {
            return Err(format!("the managed cores have one clock rate only within their limits ({LIMIT})"));
        }
        let width = (nominal - low).div_ceil(MAX_RATES - 1).next_multiple_of(STEP_MHZ);
        let mhz = (low..nominal).step_by(width as usize).chain([nominal]).collect();
        let switches = [("cpufreq/boost", ["0", "1"]), ("intel_pstate/no_turbo", ["1", "0"])];
        let boost = switches.map(|(file, words)| (root.join(file), words));
        let boost = boost.into_iter().find(|(file, _)| number(file).is_some());
        let is_off = |(file, [off, _]): &(PathBuf, [&str; 2])| setting(file) == off.parse().ok();
        let turbo_is_off = boost.as_ref().is_some_and(is_off);
        let boost = boost.filter(|_| !turbo_is_off);
        let turbo_mhz = (high > nominal && !turbo_is_off).then_some(high);
        Ok((Self { domains, boost, nominal_mhz: nominal }, Clocks { mhz, turbo_mhz }))
    }

    /// Returns all files that are ever written, the switch of Turbo Boost last: with turbo off
    /// intel_pstate shows lower limits, so it is to be put back before these.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let folders = self.domains.iter().map(|(folder, _)| folder);
        let files = folders.flat_map(|folder| [LIMIT, PREFERENCE].map(|name| folder.join(name)));
        files.chain(self.boost.iter().map(|(file, _)| file.clone())).collect()
    }

    /// Returns the files that a clock rate stands for, with the word of each, in the order in which
    /// they are to be written.
    pub(super) fn words(&self, clock: Clock) -> Vec<(PathBuf, String)> {
        let turbo = clock == Clock::Turbo;
        let mut words = Vec::new();
        if let Some((file, off_on)) = &self.boost {
            words.push((file.clone(), off_on[usize::from(turbo)].to_owned()));
        }
        for (folder, highest) in &self.domains {
            let (khz, preference) = match clock {
                Clock::Turbo => (*highest, "performance"),
                Clock::Mhz(mhz) if mhz < self.nominal_mhz => (mhz * 1000, "balance_power"),
                Clock::Mhz(mhz) => (mhz * 1000, "performance"),
            };
            words.push((folder.join(LIMIT), khz.to_string()));
            let available = folder.join("energy_performance_available_preferences");
            let available = fs::read_to_string(available).unwrap_or_default();
            if available.split_whitespace().any(|word| word == preference) {
                words.push((folder.join(PREFERENCE), preference.to_owned()));
            }
        }
        words
    }
}
