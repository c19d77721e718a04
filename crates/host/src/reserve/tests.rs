//! Control groups in a folder of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use tailwater_sched::CoreId;

use super::groups::{Full, Hierarchy, check_release, limit};
use super::{Keeper, PAUSE};

const GROUPS: [&str; 3] = ["/system.slice", "/user.slice", "/absent.slice"];
const SYSTEM: &str = "system.slice/cpuset.cpus";
const USER: &str = "user.slice/cpuset.cpus";
/// Polled by the IOKernel.
const POLLING: CoreId = CoreId(0);

/// Version 2 on a machine of 4 cores: all groups may use all of them, one is limited already.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = Self(std::env::temp_dir().join(format!("tw-cpusets-{}-{number}", std::process::id())));
        for (name, text) in [
            ("cgroup.controllers", "cpuset cpu memory\n"),
            (SYSTEM, "\n"),
            ("system.slice/cpuset.cpus.effective", "0-3\n"),
            (USER, "0-2\n"),
            ("user.slice/cpuset.cpus.effective", "0-2\n"),
        ] {
            folder.write(name, text);
        }
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.0.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// Makes a group with these cores of its own and of those above it, in place of one that is
    /// there.
    fn make_group(&self, name: &str, cpus: &str, effective: &str) {
        // Both are there for a moment, so that no number of a file is given again.
        let (group, old) = (self.0.join(name), self.0.join("old"));
        let was_there = fs::rename(&group, &old).is_ok();
        self.write(&format!("{name}/cpuset.cpus"), &format!("{cpus}\n"));
        self.write(&format!("{name}/cpuset.cpus.effective"), &format!("{effective}\n"));
        if was_there {
            fs::remove_dir_all(old).unwrap();
        }
    }

    fn read_one(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap().trim().to_owned()
    }

    fn read(&self) -> [String; 2] {
        [SYSTEM, USER].map(|name| self.read_one(name))
    }

    fn keeper_in(&self, own_groups: &str) -> Keeper {
        self.keeper_of(&GROUPS, own_groups)
    }

    fn keeper_of(&self, groups: &[&str], own_groups: &str) -> Keeper {
        let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
        let (root, state) = (fs::canonicalize(&self.0).unwrap(), self.0.join("state"));
        Keeper::at(&root, (&groups, &state), POLLING, None, (own_groups, "6.2.0"))
    }

    fn keeper(&self) -> Keeper {
        self.keeper_in("0::/tailwater.slice/tailwater.service\n")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const BEFORE: [&str; 2] = ["", "0-2"];

fn cores(numbers: &[u16]) -> Vec<CoreId> {
    numbers.iter().copied().map(CoreId).collect()
}

/// Reserves these cores at a time, with no program registered.
fn reserve(keeper: &mut Keeper, numbers: &[u16], now: Instant) {
    let mut set = CpuSet::new();
    numbers.iter().for_each(|&core| set.set(core.into()));
    keeper.reserve(&set);
    keeper.keep(now);
}

#[test]
fn reserved_cores_are_taken_from_groups_and_given_back_at_once() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[1, 3], start);
    assert_eq!(folder.read(), ["0,2", "0,2"]);
    assert_eq!(keeper.taken(), 2);
    reserve(&mut keeper, &[3], start);
    assert_eq!(folder.read(), ["0-2", "0-2"]);
    assert_eq!(keeper.taken(), 1);
    reserve(&mut keeper, &[], start);
    assert_eq!(folder.read(), BEFORE);
    assert_eq!(keeper.taken(), 0);
}

#[test]
fn cores_are_taken_once_per_pause_however_often_a_request_changes() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[1], start);
    reserve(&mut keeper, &[2], start + Duration::from_millis(1));
    assert_eq!(folder.read(), BEFORE, "core 1 is given back, core 2 not yet taken");
    keeper.keep(start + PAUSE);
    assert_eq!(folder.read(), ["0-1,3", "0-1"]);
}

#[test]
fn the_end_puts_back_what_was_there_and_a_crash_leaves_it_to_the_next_start() {
    let folder = Folder::new();
    let mut keeper = folder.keeper();
    reserve(&mut keeper, &[2], Instant::now());
    let (state, limited) = (fs::read_to_string(folder.0.join("state")).unwrap(), folder.read());
    drop(keeper);
    assert_eq!(folder.read(), BEFORE);
    // As the crash leaves it.
    folder.write("state", &state);
    folder.write(SYSTEM, &limited[0]);
    folder.write(USER, &limited[1]);
    folder.keeper().recover();
    assert_eq!(folder.read(), BEFORE);
}

#[test]
fn a_cpuset_that_an_administrator_has_changed_meanwhile_stays() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[2], start);
    folder.write(USER, "1\n");
    reserve(&mut keeper, &[1, 2], start + PAUSE);
    assert_eq!(folder.read(), ["0,3", "1"]);
    drop(keeper);
    assert_eq!(folder.read(), ["", "1"]);
}

#[test]
fn of_two_iokernels_the_second_waits_for_the_end_of_the_first() {
    let folder = Folder::new();
    let (mut first, mut second, start) = (folder.keeper(), folder.keeper(), Instant::now());
    reserve(&mut first, &[1], start);
    reserve(&mut second, &[2], start);
    assert_eq!((folder.read()[0].as_str(), second.taken()), ("0,2-3", 0));
    drop(first);
    second.keep(start + PAUSE);
    assert_eq!(folder.read()[0], "0-1,3");
}

#[test]
fn after_an_error_everything_is_put_back() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[1], start);
    // Can be neither read nor written as a file.
    fs::remove_file(folder.0.join(USER)).unwrap();
    fs::create_dir(folder.0.join(USER)).unwrap();
    reserve(&mut keeper, &[1, 2], start + PAUSE);
    assert_eq!((folder.read_one(SYSTEM).as_str(), keeper.taken()), ("", 0));
    reserve(&mut keeper, &[2], start + 2 * PAUSE);
    assert_eq!(keeper.taken(), 0, "it has given up");
}

#[test]
fn a_program_in_a_named_group_is_known_unless_nothing_can_be_kept_off() {
    let folder = Folder::new();
    let keeper = folder.keeper();
    assert_eq!(keeper.group_of("0::/system.slice/spin.service\n"), Some("/system.slice"));
    assert_eq!(keeper.group_of("0::/tailwater.slice/spin.service\n"), None);
    let useless = folder.keeper_in("0::/user.slice\n");
    assert_eq!(useless.group_of("0::/system.slice/spin.service\n"), None);
}

#[test]
fn a_process_is_in_a_group_and_in_all_above_it() {
    let folder = Folder::new();
    let named = ["/system.slice".to_owned()];
    let two = Hierarchy::detect(&folder.0).unwrap();
    let within = |hierarchy: &Hierarchy, text: &str| hierarchy.named_group(text, &named).is_some();
    assert!(within(&two, "0::/system.slice\n") && within(&two, "1:cpu:/\n0::/system.slice/a.service\n"));
    assert!(!within(&two, "0::/system.slicer\n") && !within(&two, "3:cpuset:/system.slice\n0::/\n"));
    let old = Folder::new();
    fs::remove_file(old.0.join("cgroup.controllers")).unwrap();
    assert!(Hierarchy::detect(&old.0).unwrap_err().contains("no control groups with cpusets"));
    old.write("cpuset/cpuset.cpus", "0-3\n");
    let one = Hierarchy::detect(&old.0).unwrap();
    assert!(within(&one, "3:cpu,cpuset:/system.slice/x\n0::/\n") && !within(&one, "0::/system.slice\n"));
}

#[test]
fn what_stands_in_the_way_is_found_at_the_start() {
    let folder = Folder::new();
    let why = folder.keeper().probe("0::/system.slice/tailwater.service\n").unwrap_err();
    assert!(why.contains("itself is in /system.slice"), "{why}");
    fs::remove_file(folder.0.join(USER)).unwrap();
    let why = folder.keeper().probe("0::/\n").unwrap_err();
    assert!(why.contains("enable cpusets (echo +cpuset >"), "{why}");
    let mut keeper = folder.keeper_in("0::/\n");
    reserve(&mut keeper, &[1], Instant::now());
    assert_eq!(folder.read_one(SYSTEM), "", "and nothing is changed");
}

#[test]
fn a_group_keeps_a_core_that_it_can_use_beside_the_polling_threads() {
    let limit = |listed: &[u16], usable: &[u16], taken: &[u16]| {
        let full = Full { listed: cores(listed), usable: cores(usable) };
        limit(&full, &cores(taken), POLLING).map(|limit| limit.word)
    };
    let (two, three) = ([0, 1], [0, 1, 2]);
    assert_eq!(limit(&three, &three, &[1]), Some("0,2".to_owned()));
    assert_eq!(limit(&three, &three, &[1, 2]), Some("0,2".to_owned()), "the highest stays");
    assert_eq!(limit(&two, &two, &[1]), None);
    assert_eq!(limit(&[1], &[1], &[1, 2]), None);
    assert_eq!(limit(&two, &two, &[5]), None);
    let all: Vec<u16> = (0..8).collect();
    assert_eq!(limit(&all, &[0, 1, 2, 3], &[1, 2, 3]), Some("0,3-7".to_owned()), "4 to 7 are offline");
}

#[test]
fn a_list_that_the_kernel_shows_in_other_words_is_put_back() {
    let folder = Folder::new();
    let file = fs::canonicalize(&folder.0).unwrap().join(SYSTEM);
    // Killed in the write: the record has the word, and not what the kernel shows.
    let entry = format!("[{{\"file\":{file:?},\"before\":\"0-3\",\"written\":[\"0,1,2\"]}}]");
    folder.write("state", &entry);
    folder.write(SYSTEM, "0-2\n");
    folder.keeper().recover();
    assert_eq!((folder.read_one(SYSTEM).as_str(), folder.0.join("state").exists()), ("0-3", false));
}

#[test]
fn cores_that_version_1_takes_out_of_all_lists_are_no_administrators_change() {
    let folder = Folder::new();
    fs::remove_file(folder.0.join("cgroup.controllers")).unwrap();
    let (root, group) = ("cpuset/cpuset.cpus", "cpuset/system.slice/cpuset.cpus");
    folder.write(root, "0-3\n");
    folder.write(group, "0-3\n");
    let (mut keeper, start) = (folder.keeper_in("3:cpuset:/\n"), Instant::now());
    reserve(&mut keeper, &[1], start);
    assert_eq!(folder.read_one(group), "0,2-3");
    // Core 3 goes offline.
    folder.write(root, "0-2\n");
    folder.write(group, "0,2\n");
    reserve(&mut keeper, &[2], start + PAUSE);
    assert_eq!((folder.read_one(group).as_str(), keeper.taken()), ("0-1", 1));
    drop(keeper);
    assert_eq!(folder.read_one(group), "0-2", "all that are online");
}

#[test]
fn a_group_made_within_a_limited_one_is_not_limited_by_what_it_has_then() {
    let folder = Folder::new();
    let inner = "user.slice/inner/cpuset.cpus";
    let groups = [&GROUPS[..], &["/user.slice/inner"]].concat();
    let (mut keeper, start) = (folder.keeper_of(&groups, "0::/\n"), Instant::now());
    reserve(&mut keeper, &[1], start);
    folder.write(inner, "\n");
    folder.write("user.slice/inner/cpuset.cpus.effective", "0,2\n");
    reserve(&mut keeper, &[2], start + PAUSE);
    assert_eq!((folder.read(), folder.read_one(inner).as_str()), (["0-1,3", "0-1"].map(str::to_owned), ""));
    reserve(&mut keeper, &[], start + PAUSE);
    folder.write("user.slice/inner/cpuset.cpus.effective", "0-2\n");
    reserve(&mut keeper, &[2], start + 2 * PAUSE);
    assert_eq!(folder.read_one(inner), "0-1");
}

#[test]
fn a_group_that_is_made_while_cores_stay_reserved_is_limited_at_the_next_look() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[1], start);
    folder.make_group("absent.slice", "", "0-3");
    let made = "absent.slice/cpuset.cpus";
    keeper.keep(start + PAUSE / 2);
    assert_eq!(folder.read_one(made), "", "groups are looked for once per pause");
    keeper.keep(start + PAUSE);
    assert_eq!(folder.read_one(made), "0,2-3");
    drop(keeper);
    assert_eq!((folder.read_one(made), folder.read()), (String::new(), BEFORE.map(str::to_owned)));
}

#[test]
fn a_group_that_is_removed_and_made_again_is_limited_again_and_has_its_new_cores_put_back() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[1], start);
    folder.make_group("user.slice", "", "0-3");
    keeper.keep(start + PAUSE);
    assert_eq!(folder.read(), ["0,2-3", "0,2-3"]);
    // An administrator's change of the new one is found as before.
    folder.make_group("system.slice", "0-2", "0-2");
    keeper.keep(start + 2 * PAUSE);
    folder.write(SYSTEM, "1-2\n");
    reserve(&mut keeper, &[1, 3], start + 3 * PAUSE);
    assert_eq!(folder.read(), ["1-2", "0,2"]);
    reserve(&mut keeper, &[], start + 4 * PAUSE);
    assert_eq!((folder.read(), keeper.taken()), (["1-2", ""].map(str::to_owned), 0));
}

#[test]
fn a_group_that_was_changed_by_others_is_limited_once_it_was_made_again() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[2], start);
    folder.write(USER, "1-2\n");
    reserve(&mut keeper, &[1, 2], start + PAUSE);
    assert_eq!(folder.read_one(USER), "1-2");
    folder.make_group("user.slice", "", "0-3");
    keeper.keep(start + 2 * PAUSE);
    assert_eq!(folder.read_one(USER), "0,3");
}

#[test]
fn a_group_that_is_removed_while_it_is_limited_is_no_error() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[2], start);
    assert_eq!(keeper.taken(), 1);
    fs::remove_dir_all(folder.0.join("user.slice")).unwrap();
    keeper.keep(start + PAUSE);
    reserve(&mut keeper, &[1, 2], start + 2 * PAUSE);
    assert_eq!((folder.read_one(SYSTEM).as_str(), keeper.taken()), ("0,3", 2));
    reserve(&mut keeper, &[], start + 3 * PAUSE);
    assert_eq!((folder.read_one(SYSTEM).as_str(), folder.0.join("state").exists()), ("", false));
    assert!(keeper.hierarchy.is_some(), "later requests are reserved");
    // Nor is the last one.
    fs::remove_dir_all(folder.0.join("system.slice")).unwrap();
    reserve(&mut keeper, &[1], start + 4 * PAUSE);
    assert_eq!((keeper.taken(), keeper.hierarchy.is_some()), (0, true));
}

#[test]
fn a_group_that_is_made_before_it_has_cores_is_limited_when_it_has_some() {
    let folder = Folder::new();
    fs::remove_file(folder.0.join("cgroup.controllers")).unwrap();
    folder.write("cpuset/cpuset.cpus", "0-3\n");
    let (mut keeper, start) = (folder.keeper_in("3:cpuset:/\n"), Instant::now());
    let group = "cpuset/user.slice/cpuset.cpus";
    folder.write(group, "\n");
    reserve(&mut keeper, &[1], start);
    assert_eq!(folder.read_one(group), "");
    folder.write(group, "0-3\n");
    keeper.keep(start + PAUSE);
    assert_eq!(folder.read_one(group), "0,2-3");
}

#[test]
fn cores_are_counted_that_a_group_has_lost() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    assert_eq!(keeper.absent(keeper.hierarchy.as_ref().unwrap()), ["/absent.slice"]);
    reserve(&mut keeper, &[3], start);
    assert_eq!(keeper.taken(), 1);
    // By systemd, for example. The other group does not have core 3.
    folder.write(SYSTEM, "0-3\n");
    reserve(&mut keeper, &[3, 7], start + PAUSE);
    assert_eq!((keeper.taken(), folder.read()), (0, ["0-3", "0-2"].map(str::to_owned)));
}

#[test]
fn cpusets_that_cannot_be_put_back_stay_in_the_record_and_no_more_are_changed() {
    let folder = Folder::new();
    let (mut keeper, start) = (folder.keeper(), Instant::now());
    reserve(&mut keeper, &[1], start);
    let (file, kept) = (folder.0.join(USER), folder.0.join("kept"));
    fs::rename(&file, &kept).unwrap();
    fs::create_dir(&file).unwrap();
    reserve(&mut keeper, &[], start + PAUSE);
    reserve(&mut keeper, &[1], start + 2 * PAUSE);
    assert_eq!((folder.read_one(SYSTEM).as_str(), keeper.taken()), ("", 0));
    fs::remove_dir(&file).unwrap();
    fs::rename(&kept, &file).unwrap();
    folder.keeper().recover();
    assert_eq!(folder.read(), BEFORE);
}

#[test]
fn linux_before_6_2_is_refused() {
    for release in ["5.15.0-130-generic\n", "6.1.0-28-amd64\n", "6.1"] {
        assert!(check_release(release).unwrap_err().contains("Linux 6.2 or later"), "{release}");
    }
    for release in ["6.2.0", "6.18.44-fc", "7.0-rc1", "10.1", ""] {
        assert_eq!(check_release(release), Ok(()), "{release}");
    }
}

#[test]
fn a_state_file_that_names_other_files_has_nothing_written() {
    let folder = Folder::new();
    let root = fs::canonicalize(&folder.0).unwrap();
    folder.write("victim/scaling_max_freq", "mine");
    let entry = |file: &Path| format!("{{\"file\":{file:?},\"before\":\"x\",\"written\":[\"mine\"]}}");
    folder.write("state", &format!("[{}]", entry(&root.join("victim/scaling_max_freq"))));
    folder.keeper().recover();
    assert_eq!(fs::read_to_string(root.join("victim/scaling_max_freq")).unwrap(), "mine");
}
