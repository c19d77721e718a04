//! Scopes as folders: their names, whose they are, and what a repair does with them.

use super::*;

const MAKER: Maker = Maker { pid: 7, start: 99, namespace: 4 };

#[test]
fn a_scope_names_its_home_and_its_maker() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    // Version 1: the root of a hierarchy is a folder of the root.
    assert_eq!(beside(root, &root.join("cpu"), MAKER), root.join("cpu/tailwater-batch-7-99-4"));
    assert_eq!(beside(root, &root.join("cpu/a/b"), MAKER), root.join("cpu/a/b.tailwater-batch-7-99-4"));
    fs::write(root.join("cgroup.controllers"), "cpu cpuset\n").unwrap();
    assert_eq!(beside(root, root, MAKER), root.join("tailwater-batch-7-99-4"));
    assert_eq!(beside(root, &root.join("a"), MAKER), root.join("a.tailwater-batch-7-99-4"));
    for home in [root.to_owned(), root.join("a"), root.join("a/b.service")] {
        assert_eq!(home_of(&beside(root, &home, MAKER)), Some((home, MAKER)));
    }
    for other in [
        ".tailwater-batch-7-99-4",
        "..tailwater-batch-7-99-4",
        "...tailwater-batch-7-99-4",
        "a",
        "tailwater-batch-",
        "tailwater-batch-x",
        "tailwater-batch-7",
        "tailwater-batch-7-",
        "tailwater-batch-7-99",
        "tailwater-batch-7-99-",
        "atailwater-batch-7-99-4",
    ] {
        assert_eq!(home_of(&root.join(other)), None, "{other}");
    }
}

#[test]
fn a_maker_is_not_a_later_process_of_its_number() {
    let own = Maker::of(std::process::id().cast_signed()).unwrap();
    assert!(own.is_running());
    assert!(!Maker { start: own.start + 1, ..own }.is_running());
}

#[test]
fn the_groups_of_a_process_are_those_of_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let text = "3:cpuset:/a\n2:cpu,cpuacct:/b/c\n1:name=systemd:/x\n0::/y.scope\n";
    let folders = || homes_of(root, text).into_iter().map(|home| home.folder).collect::<Vec<_>>();
    assert_eq!(folders(), [root.join("cpu/b/c"), root.join("cpuset/a")]);
    // One of its own keeps the account; a link to that of `cpu` is the same.
    for (line, is_one) in [("3:cpu,cpuacct:/b", false), ("3:cpu:/b\n4:cpuacct:/d", true)] {
        fs::create_dir_all(root.join("cpuacct/d")).unwrap();
        fs::create_dir_all(root.join("cpuacct/b")).unwrap();
        let homes = homes_of(root, &format!("{line}\n5:cpuset:/a\n"));
        let is_account = |home: &Home| home.folder == root.join("cpuacct/d") && !home.ranks && !home.confines;
        assert_eq!(homes.iter().any(is_account), is_one, "{homes:?}");
        assert_eq!(homes.len(), 2 + usize::from(is_one));
    }
    fs::write(root.join("cgroup.controllers"), "cpu cpuset\n").unwrap();
    assert_eq!(folders(), [root.join("y.scope")]);
}

#[test]
fn a_group_within_an_idle_one_is_idle() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("cpu/a/b")).unwrap();
    fs::write(root.join("cpu/a/b/cpu.idle"), "0\n").unwrap();
    assert!(!is_idle_below(root, &root.join("cpu/a/b")));
    fs::write(root.join("cpu/a/cpu.idle"), "1\n").unwrap();
    assert!(is_idle_below(root, &root.join("cpu/a/b")));
    assert!(!is_idle_below(root, &root.join("cpu")));
}

#[test]
fn scopes_of_processes_that_run_stay() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let here = Maker::of(std::process::id().cast_signed()).unwrap();
    let make = |before: &str, pid, start| {
        let scope = root.join(format!("{before}{MARK}{}", Maker { pid, start, ..here }));
        fs::create_dir_all(&scope).unwrap();
        scope
    };
    let [_, stays, _] = [make("a/b.", 1, 5), make("a/b.", 2, 5), make("", 2, 6)];
    let done = repair_below(root, |maker| maker == Maker { pid: 2, start: 5, ..here }).unwrap();
    assert!(done.contains("2 removed"), "{done}");
    assert_eq!(scopes(root, DEEPEST), std::slice::from_ref(&stays));
    // Groups that a job has made go with it, at any depth.
    let deep = make("a/b.", 3, 5);
    fs::create_dir_all(deep.join(["c"; 40].join("/"))).unwrap();
    let done = repair_below(root, |maker| maker.pid == 2).unwrap();
    assert!(done.contains("1 removed") && !deep.exists(), "{done}");
    // One that cannot be removed is named, and the others within it are removed.
    ["d", "e", "f", "g"].iter().for_each(|group| fs::create_dir(stays.join(group)).unwrap());
    fs::write(stays.join("e/file"), "").unwrap();
    let why = repair_below(root, |_| false).unwrap_err();
    assert!(why.contains(stays.to_str().unwrap()) && why.contains("1 failed"), "{why}");
    assert_eq!(folders(&stays), [stays.join("e")]);
    // One of a process that may run unseen is named and stays.
    fs::remove_dir_all(&stays).unwrap();
    let elsewhere = root.join("a/b.tailwater-batch-1-5-4");
    fs::create_dir(&elsewhere).unwrap();
    let done = repair_below(root, |_| false).unwrap();
    assert!(elsewhere.is_dir() && done.contains(elsewhere.to_str().unwrap()), "{done}");
    // Linux would take 0 for this process, and move it.
    assert!(put_back(root, &stays, 0).unwrap_err().contains("PID namespace"));
}
