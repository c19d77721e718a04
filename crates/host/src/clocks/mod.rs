//! Clock rates of the managed cores, for the policies `ix-consolidation` and `ix-energy`.
//!
//! Owns [`ClockSetter`], the control thread's side: the polling thread says which rate the
//! policy is at, and this writes it through cpufreq. [`machine`] reads what there is to set,
//! [`crate::undo`] keeps what was there before and puts it back: at the end, after an error, and
//! at the next start after a crash. Domains that are offline are set when they are back; an energy
//! preference that Linux refuses is left out. A setting that another program changes meanwhile is
//! left to it. Without cpufreq, or the right to write it, the
//! policies move cores only.

mod machine;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use machine::{LIMIT, Machine, PREFERENCE};
use tailwater_sched::alloc::{Clock, Clocks, PolicyName};

use crate::undo::{Kind, Undo, originals};

/// Where Linux describes processors.
pub(crate) const ROOT: &str = "/sys/devices/system/cpu";
/// The settings that are changed.
pub(crate) const KIND: Kind = Kind {
    what: "clock settings",
    key: "ix.state-file",
    files: &["scaling_max_freq", "energy_performance_preference", "boost", "no_turbo"],
    shown: |_, value| value.to_owned(),
    made_anew: false,
    instead_of_empty: || None,
};

/// Sets clock rates. See the module header.
#[derive(Debug)]
pub struct ClockSetter {
    root: PathBuf,
    state_file: PathBuf,
    /// `None` where no rate can be set.
    machine: Option<Machine>,
    undo: Option<Undo>,
    wanted: Option<Clock>,
    /// Another IOKernel sets clock rates, which was logged.
    waits: bool,
    /// Settings that another program has changed since they were set here.
    left: BTreeSet<PathBuf>,
}

/// Returns the clock rates of the managed cores in words. Limits that an IOKernel with this
/// state file has set do not count, if the caller may read that file.
///
/// # Errors
/// Why none can be set, in words.
///
/// # Examples
/// ```
/// match tailwater_host::clock_rates("/run/tailwater-clocks".as_ref(), &[1], 0) {
///     Ok(rates) => println!("{rates}"),
///     Err(why) => println!("cores only: {why}"),
/// }
/// ```
pub fn clock_rates(state_file: &Path, managed: &[u16], polling: u16) -> Result<String, String> {
    let root = Path::new(ROOT);
    let originals = originals(KIND, state_file, root);
    Machine::detect(root, managed, polling, &originals).map(|(_, clocks)| describe(&clocks))
}

fn describe(clocks: &Clocks) -> String {
    let ends = clocks.mhz.first().zip(clocks.mhz.last()).map_or((0, 0), |(&low, &high)| (low, high));
    let turbo = clocks.turbo_mhz.map(|mhz| format!(", {mhz} with turbo")).unwrap_or_default();
    format!("{} from {} to {} MHz{turbo}", clocks.mhz.len(), ends.0, ends.1)
}

impl ClockSetter {
    /// Finds out which rates of the managed cores this policy can set, and logs it; `None` for a
    /// policy that sets none. `polling` is the core of the polling thread, and `state_file` the
    /// record.
    #[must_use]
    pub fn new(
        state_file: &Path,
        policy: Option<PolicyName>,
        managed: &[u16],
        polling: u16,
    ) -> (Self, Clocks) {
        Self::at(Path::new(ROOT), state_file, policy, (managed, polling))
    }

    fn at(
        root: &Path,
        state_file: &Path,
        policy: Option<PolicyName>,
        (managed, polling): (&[u16], u16),
    ) -> (Self, Clocks) {
        let mut none = Self {
            root: root.to_owned(),
            state_file: state_file.to_owned(),
            machine: None,
            undo: None,
            wanted: None,
            waits: false,
            left: BTreeSet::new(),
        };
        // First: the limits that a crash may leave are no administrator's.
        none.recover();
        let Some(policy) = policy else { return (none, Clocks::default()) };
        // Those of an IOKernel that this one takes the place of.
        let originals = originals(KIND, &none.state_file, &none.root);
        match Machine::detect(&none.root, managed, polling, &originals) {
            Ok((machine, clocks)) => {
                tracing::info!(%policy, clock_rates = describe(&clocks), "moves cores and clock rates");
                (Self { machine: Some(machine), ..none }, clocks)
            }
            Err(why) => {
                tracing::info!(%policy, "moves cores only: {why}");
                (none, Clocks::default())
            }
        }
    }

    /// Puts back what a crashed IOKernel has left, whatever the policy of this one.
    pub fn recover(&mut self) {
        // Also if it cannot be told whether it exists.
        if !matches!(self.state_file.try_exists(), Ok(false))
            && let Err(error) = Undo::lock(KIND, &self.state_file, &self.root)
        {
            self.log_state_file(&error);
        }
    }

    /// Sets a clock rate, at once or as soon as no other IOKernel sets any.
    pub fn want(&mut self, clock: Clock) {
        self.wanted = Some(clock).filter(|_| self.machine.is_some());
        self.keep();
    }

    /// Returns whether rates that the policy is at are set: not after an error, nor while another
    /// IOKernel sets them.
    #[must_use]
    pub fn sets(&self) -> bool {
        self.machine.is_some() && (self.undo.is_some() || !self.waits)
    }

    /// Goes on with what could not be done yet.
    pub fn keep(&mut self) {
        let (Some(clock), Some(machine)) = (self.wanted, &self.machine) else { return };
        let words = machine.words(clock);
        if self.undo.is_none() {
            match Undo::lock(KIND, &self.state_file, &self.root) {
                Ok(Some(undo)) => self.undo = Some(undo),
                Ok(None) => {
                    if !core::mem::replace(&mut self.waits, true) {
                        tracing::warn!(
                            "another IOKernel sets clock rates: this one moves cores only until that one ends"
                        );
                    }
                    return;
                }
                Err(error) => {
                    self.log_state_file(&error);
                    return self.give_up();
                }
            }
        }
        self.wanted = None;
        let Some(undo) = &mut self.undo else { return };
        undo.note(machine.files());
        let words = leave_changed(undo, &mut self.left, words);
        if !words.iter().any(|(file, _)| file.ends_with(LIMIT)) {
            tracing::warn!(
                "another program has changed the limits of all clock rates: all other settings are put back, and only cores \
                 are moved"
            );
            return self.give_up();
        }
        let failed = match undo.set(&words) {
            Ok(failed) => failed,
            Err(error) => {
                self.log_state_file(&error);
                return self.give_up();
            }
        };
        match are_offline(failed) {
            Ok(false) => {}
            Ok(true) => self.wanted = Some(clock),
            Err((file, error)) => {
                tracing::warn!(file = %file.display(), %error, "cannot set a clock rate: all are put back, and only cores are moved");
                self.give_up();
            }
        }
    }

    fn give_up(&mut self) {
        (self.machine, self.undo, self.wanted) = (None, None, None);
    }

    fn log_state_file(&self, error: &std::io::Error) {
        let file = self.state_file.display();
        tracing::warn!(%file, %error, "cannot use the file that keeps clock settings (ix.state-file); what a crashed IOKernel may have left stays until `tailwater doctor --repair` runs as root");
    }
}

/// Returns the settings to change without those that another program has changed since they were
/// set here, now or earlier.
fn leave_changed(
    undo: &mut Undo,
    left: &mut BTreeSet<PathBuf>,
    mut words: Vec<(PathBuf, String)>,
) -> Vec<(PathBuf, String)> {
    for (file, _) in &words {
        if !left.contains(file) && undo.is_changed_by_others(file) {
            tracing::warn!(file = %file.display(), "another program has changed a clock setting, which stays");
            undo.leave(file);
            left.insert(file.clone());
        }
    }
    words.retain(|(file, _)| !left.contains(file));
    words
}

/// Judges the settings of a clock rate that could not be changed. Returns whether some belong to
/// domains that are offline.
///
/// # Errors
/// One that should have been changed.
fn are_offline(failed: Vec<(PathBuf, std::io::Error)>) -> Result<bool, (PathBuf, std::io::Error)> {
    let mut offline = false;
    for (file, error) in failed {
        if file.ends_with(PREFERENCE) {
            // Linux lists preferences that it refuses under the governor `performance`.
            tracing::debug!(file = %file.display(), %error, "an energy preference is left as it is");
        } else if file.ends_with(LIMIT) && is_offline(&error) {
            offline = true;
        } else {
            return Err((file, error));
        }
    }
    Ok(offline)
}

/// Returns whether an error is that of a domain whose processors are all offline.
fn is_offline(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::ResourceBusy | std::io::ErrorKind::NotFound)
}
