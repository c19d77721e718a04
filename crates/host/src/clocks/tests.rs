//! Clock rates in a folder of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tailwater_sched::alloc::{Clock, Clocks, PolicyName};

use super::ClockSetter;

/// A folder as Linux has it, with a polling core 0 and managed cores 1 and 2.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = Self(std::env::temp_dir().join(format!("tw-clocks-{}-{number}", std::process::id())));
        for core in 0..3 {
            for (name, text) in [
                ("cpuinfo_min_freq", "1200000\n"),
                ("cpuinfo_max_freq", "3000000\n"),
                ("base_frequency", "2400000\n"),
                ("scaling_max_freq", "2900000\n"),
                ("energy_performance_available_preferences", "default performance balance_power\n"),
                ("energy_performance_preference", "default\n"),
            ] {
                folder.write(&format!("cpu{core}/cpufreq/{name}"), text);
            }
        }
        folder.write("intel_pstate/no_turbo", "0\n");
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.0.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// Returns the highest rate, the preference of core 1 and the switch of Turbo Boost.
    fn read(&self) -> [String; 3] {
        let files = [
            "cpu1/cpufreq/scaling_max_freq",
            "cpu1/cpufreq/energy_performance_preference",
            "intel_pstate/no_turbo",
        ];
        files.map(|file| fs::read_to_string(self.0.join(file)).unwrap().trim().to_owned())
    }

    fn state_file(&self) -> PathBuf {
        self.0.join("state")
    }

    fn setter(&self) -> (ClockSetter, Clocks) {
        let root = fs::canonicalize(&self.0).unwrap();
        ClockSetter::at(&root, &self.state_file(), Some(PolicyName::IxEnergy), (&[1, 2], 0))
    }

    /// Leaves the record of an IOKernel that was killed after it had set a rate.
    fn leave_record(&self) {
        let (mut setter, _) = self.setter();
        setter.want(Clock::Mhz(1200));
        let kept = fs::read_to_string(self.state_file()).unwrap();
        drop(setter);
        self.write("state", &kept);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const BEFORE: [&str; 3] = ["2900000", "default", "0"];

#[test]
fn rates_are_set_on_managed_cores_and_put_back_at_the_end() {
    let folder = Folder::new();
    let (mut setter, clocks) = folder.setter();
    assert_eq!(
        (clocks.mhz.len(), clocks.mhz[0], clocks.mhz[12], clocks.turbo_mhz),
        (13, 1200, 2400, Some(2900))
    );
    setter.want(Clock::Mhz(1200));
    assert_eq!(folder.read(), ["1200000", "balance_power", "1"]);
    setter.want(Clock::Turbo);
    assert_eq!(folder.read(), ["2900000", "performance", "0"], "no higher than the limit before");
    let polling = fs::read_to_string(folder.0.join("cpu0/cpufreq/scaling_max_freq")).unwrap();
    assert_eq!(polling.trim(), "2900000", "the polling core is left alone");
    drop(setter);
    assert_eq!(folder.read(), BEFORE);
}

#[test]
fn what_a_crashed_iokernel_has_set_is_put_back_at_the_next_start() {
    let folder = Folder::new();
    folder.leave_record();
    folder.write("cpu1/cpufreq/scaling_max_freq", "1200000");
    folder.write("cpu1/cpufreq/energy_performance_preference", "balance_power");
    let (mut next, _) = folder.setter();
    next.recover();
    assert_eq!(folder.read(), BEFORE);
    assert!(!folder.state_file().exists());
}

#[test]
fn a_setting_that_an_administrator_has_changed_meanwhile_stays() {
    let folder = Folder::new();
    let (mut setter, _) = folder.setter();
    setter.want(Clock::Mhz(1200));
    folder.write("cpu1/cpufreq/scaling_max_freq", "2000000\n");
    drop(setter);
    assert_eq!(folder.read(), ["2000000", "default", "0"]);
}

#[test]
fn no_rate_is_above_the_limit_of_an_administrator() {
    let folder = Folder::new();
    folder.write("cpu2/cpufreq/scaling_max_freq", "2000000\n");
    let (mut setter, clocks) = folder.setter();
    assert_eq!((clocks.mhz.last(), clocks.turbo_mhz), (Some(&2000), None));
    setter.want(Clock::Mhz(2000));
    assert_eq!(folder.read()[0], "2000000");
    drop(setter);
    for core in [1, 2] {
        folder.write(&format!("cpu{core}/cpufreq/scaling_max_freq"), "1200000\n");
    }
    let (setter, clocks) = folder.setter();
    assert!(!setter.sets(), "one rate only");
    assert_eq!(clocks, Clocks::default());
}

#[test]
fn a_setting_that_an_administrator_changes_during_the_run_is_not_set_again() {
    let folder = Folder::new();
    let (mut setter, _) = folder.setter();
    setter.want(Clock::Mhz(1200));
    folder.write("cpu1/cpufreq/scaling_max_freq", "2000000\n");
    setter.want(Clock::Mhz(1300));
    let other = || fs::read_to_string(folder.0.join("cpu2/cpufreq/scaling_max_freq")).unwrap();
    assert_eq!((folder.read()[0].as_str(), other().trim()), ("2000000", "1300000"));
    assert!(setter.sets());
    // Also if it has a value later that was written here.
    folder.write("cpu1/cpufreq/scaling_max_freq", "1200000\n");
    setter.want(Clock::Turbo);
    assert_eq!(folder.read()[0], "1200000");
    folder.write("cpu2/cpufreq/scaling_max_freq", "1800000\n");
    setter.want(Clock::Mhz(1200));
    assert!(!setter.sets(), "there is nothing left to set");
    assert_eq!(folder.read(), ["1200000", "default", "0"]);
    drop(setter);
    assert_eq!((folder.read()[0].as_str(), other().trim()), ("1200000", "1800000"));
}

#[test]
fn an_iokernel_that_takes_over_does_not_take_the_limits_of_the_former_for_an_administrators() {
    let folder = Folder::new();
    let (mut former, clocks) = folder.setter();
    former.want(Clock::Mhz(1200));
    let (mut next, found) = folder.setter();
    assert_eq!(found, clocks);
    drop(former);
    next.want(Clock::Turbo);
    assert_eq!(folder.read(), ["2900000", "performance", "0"]);
}

#[test]
fn of_two_iokernels_the_second_waits_for_the_end_of_the_first() {
    let folder = Folder::new();
    let ((mut first, _), (mut second, _)) = (folder.setter(), folder.setter());
    first.want(Clock::Mhz(1200));
    second.want(Clock::Mhz(2400));
    assert_eq!(folder.read()[0], "1200000");
    drop(first);
    second.keep();
    assert_eq!(folder.read()[0], "2400000");
    drop(second);
    assert_eq!(folder.read(), BEFORE);
}

#[test]
fn after_an_error_everything_is_put_back() {
    let folder = Folder::new();
    let (mut setter, _) = folder.setter();
    setter.want(Clock::Mhz(1200));
    let limit = folder.0.join("cpu2/cpufreq/scaling_max_freq");
    fs::remove_file(&limit).unwrap();
    fs::create_dir(&limit).unwrap();
    setter.want(Clock::Turbo);
    assert_eq!(folder.read(), BEFORE);
    setter.want(Clock::Turbo);
    assert_eq!(folder.read(), BEFORE, "it has given up");
}

#[test]
fn values_before_are_those_before_the_first_write_and_turbo_is_put_back_first() {
    let folder = Folder::new();
    let root = fs::canonicalize(&folder.0).unwrap();
    let (machine, _) = super::Machine::detect(&root, &[1, 2], 0, &Default::default()).unwrap();
    let mut undo = super::Undo::lock(super::KIND, &folder.state_file(), &root).unwrap().unwrap();
    undo.note(machine.files());
    for (file, word) in machine.words(Clock::Mhz(1200)) {
        assert!(undo.set(&[(file.clone(), word)]).unwrap().is_empty());
        if file.ends_with("no_turbo") {
            // As intel_pstate does.
            folder.write("cpu1/cpufreq/scaling_max_freq", "2400000\n");
        }
    }
    let kept: Vec<serde_json::Value> =
        serde_json::from_str(&fs::read_to_string(folder.state_file()).unwrap()).unwrap();
    assert!(kept.last().unwrap()["file"].as_str().unwrap().ends_with("no_turbo"));
    drop(undo);
    assert_eq!(folder.read(), BEFORE);
}

#[test]
fn a_domain_that_is_offline_is_set_when_it_is_back_and_the_others_at_once() {
    let folder = Folder::new();
    let (mut setter, _) = folder.setter();
    setter.want(Clock::Mhz(1200));
    let away = "cpu2/cpufreq/scaling_max_freq";
    fs::remove_file(folder.0.join(away)).unwrap();
    setter.want(Clock::Mhz(2400));
    assert_eq!(folder.read()[0], "2400000");
    folder.write(away, "1200000\n");
    setter.keep();
    assert_eq!(fs::read_to_string(folder.0.join(away)).unwrap().trim(), "2400000");
}

#[test]
fn an_energy_preference_that_cannot_be_set_is_left_out() {
    let folder = Folder::new();
    let (mut setter, _) = folder.setter();
    let preference = folder.0.join("cpu2/cpufreq/energy_performance_preference");
    fs::remove_file(&preference).unwrap();
    fs::create_dir(&preference).unwrap();
    setter.want(Clock::Mhz(1200));
    assert_eq!(folder.read(), ["1200000", "balance_power", "1"]);
}

#[test]
fn turbo_that_an_administrator_has_switched_off_stays_off() {
    let folder = Folder::new();
    folder.write("intel_pstate/no_turbo", "1\n");
    let (mut setter, clocks) = folder.setter();
    assert_eq!(clocks.turbo_mhz, None);
    setter.want(Clock::Mhz(2400));
    drop(setter);
    assert_eq!(folder.read(), ["2900000", "default", "1"]);
}

#[test]
fn rates_are_detected_after_what_a_crash_has_left_was_put_back() {
    let folder = Folder::new();
    folder.leave_record();
    folder.write("intel_pstate/no_turbo", "1\n");
    assert_eq!(folder.setter().1.turbo_mhz, Some(2900));
}

#[test]
fn a_state_file_that_names_other_files_has_nothing_written() {
    let folder = Folder::new();
    folder.write("victim", "mine");
    let root = fs::canonicalize(&folder.0).unwrap();
    let entry = |file: &Path| format!("{{\"file\":{file:?},\"before\":\"x\",\"written\":[\"mine\"]}}");
    let climbing = root.join("cpu1/../victim/../boost");
    let outside = Path::new("/etc/boost");
    let files = [root.join("victim"), climbing, outside.to_owned()];
    let entries: Vec<String> = files.iter().map(|file| entry(file)).collect();
    folder.write("state", &format!("[{}]", entries.join(",")));
    let (mut setter, _) = folder.setter();
    setter.recover();
    assert_eq!(fs::read_to_string(folder.0.join("victim")).unwrap(), "mine");
}

#[test]
fn without_cpufreq_or_with_one_clock_for_all_only_cores_are_moved() {
    let empty = std::env::temp_dir().join("tw-clocks-that-are-not-there");
    let (mut setter, clocks) = ClockSetter::at(&empty, &empty.join("state"), Some(PolicyName::Ix), (&[1], 0));
    assert_eq!(clocks, Clocks::default());
    setter.want(Clock::Turbo);
    let folder = Folder::new();
    let shared = folder.0.join("cpu1/cpufreq");
    fs::remove_dir_all(&shared).unwrap();
    std::os::unix::fs::symlink(folder.0.join("cpu0/cpufreq"), &shared).unwrap();
    let why = super::Machine::detect(&folder.0, &[1], 0, &Default::default()).unwrap_err();
    assert!(why.contains("share one clock"), "{why}");
}
