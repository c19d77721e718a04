//! Processes that run already, in a control group of their own.
//!
//! Owns [`Scope`]: groups beside those in which a process is, in which Linux runs threads only
//! where no other group has any (`cpu.idle`) and on some cores only (`cpuset.cpus`). It is for
//! root. The process, its threads and descendants are moved there; what they start is born there.
//! The limits of the group that they leave hold there, too (`settings`).
//!
//! The way back needs no record: a scope beside the group `/a/b` is
//! `/a/b.tailwater-batch-PID-START-NAMESPACE`, with the number of the process that made it, the
//! time at which that was started, and the PID namespace whose number it is (`Maker`); one beside
//! the root is in the root. So [`repair`] finds the scopes of processes that were killed, gives the
//! members back, and removes them. It names those of other PID namespaces, whose processes it does
//! not see, and leaves them. A process that is in another group than the first one is left there.
//! A group that was removed while all its processes were in the scope is made anew for them, with
//! its limits, and stays. One that takes no process any more gets them in a group within it
//! (`LEAF`), which stays.
//!
//! Version 2 of control groups needs both controllers in the group above, version 1 has a hierarchy
//! for each (Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cpusets.rst). Where that
//! of `cpuacct`, which keeps the processor time of a group, is one by itself, there is a group in
//! it as well.

mod settings;

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::geteuid;

use crate::proc::{Process, Stat, descendants};
use settings::{check_place, limit, set_up};

/// Where Linux mounts control groups.
pub const ROOT: &str = "/sys/fs/cgroup";
/// What the name of a scope has before its maker.
const MARK: &str = "tailwater-batch-";
/// Name of the group within a home that takes its processes back where the home takes none.
const LEAF: &str = "tailwater-returned";
/// Rounds in which members are moved until no new one appears, and the time between them.
const ROUNDS: u32 = 100;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(10);
/// Number of times that the members of two groups are compared.
const TRIES: u32 = 4;
/// Depth of the deepest groups in which scopes are looked for.
const DEEPEST: u32 = 16;
/// Number of groups within one that are looked at: a job may make any number. Processes of further
/// ones are not counted in its account; [`remove`] meets them in later rounds.
const MOST_GROUPS: usize = 4_096;

/// Why a scope cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}{hint}", .path.display())]
pub struct GroupError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
    hint: &'static str,
}

impl GroupError {
    fn new(what: &'static str, path: &Path, source: io::Error) -> Self {
        let hint = match source.kind() {
            ErrorKind::PermissionDenied => "; control groups need root",
            ErrorKind::NotFound => {
                "; the controllers cpu and cpuset have to be enabled in the group above \
                 (echo '+cpu +cpuset' > cgroup.subtree_control)"
            }
            _ => "",
        };
        Self { what, path: path.to_owned(), source, hint }
    }
}

/// A group in which a process is, by what its controllers can do. One that can do neither keeps the
/// account only.
#[derive(Debug, PartialEq, Eq)]
struct Home {
    folder: PathBuf,
    /// It has the controller `cpu`.
    ranks: bool,
    /// It has the controller `cpuset`.
    confines: bool,
}

/// Returns the groups of a process: one in version 2; in version 1 that of `cpu`, that of `cpuset`,
/// and that of `cpuacct` where it is another one.
fn homes(root: &Path, pid: i32) -> Result<Vec<Home>, GroupError> {
    let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
    let text = fs::read_to_string(&path).map_err(|error| GroupError::new("read", &path, error))?;
    match homes_of(root, &text) {
        homes if homes.iter().any(|home| home.ranks) && homes.iter().any(|home| home.confines) => Ok(homes),
        _ => Err(GroupError::new("find control groups below", root, ErrorKind::NotFound.into())),
    }
}

/// Parses `/proc/PID/cgroup` (cgroups(7)).
fn homes_of(root: &Path, text: &str) -> Vec<Home> {
    if root.join("cgroup.controllers").exists() {
        let folder = hierarchy(text, "").map(|(_, path)| below(root.to_owned(), path));
        return folder.map(|folder| Home { folder, ranks: true, confines: true }).into_iter().collect();
    }
    let of = |controller: &str| Some(below(root.join(controller), hierarchy(text, controller)?.1));
    let cpu = of("cpu").map(|folder| Home { folder, ranks: true, confines: false });
    let set = of("cpuset").map(|folder| Home { folder, ranks: false, confines: true });
    let is_separate = hierarchy(text, "cpuacct") != hierarchy(text, "cpu");
    let account = of("cpuacct").filter(|folder| is_separate && folder.is_dir());
    let account = account.map(|folder| Home { folder, ranks: false, confines: false });
    account.into_iter().chain(cpu).chain(set).collect()
}

/// Returns the hierarchy of a controller, by its number, and the path of the process there.
fn hierarchy<'a>(text: &'a str, controller: &str) -> Option<(&'a str, &'a str)> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers.split(',').any(|one| one == controller).then_some((number, path))
    })
}

fn below(mount: PathBuf, path: &str) -> PathBuf {
    path.trim_matches('/').split('/').fold(mount, |folder, name| folder.join(name))
}

/// Returns the folder in which version 1 keeps the processor time of a group by core: its own, or
/// that of the hierarchy of `cpuacct` with the same processes.
pub(crate) fn account_folder(folder: &Path) -> Option<PathBuf> {
    if folder.join("cpuacct.usage_percpu").exists() {
        return Some(folder.to_owned());
    }
    let same = || {
        let first = members(folder).first().copied()?;
        let text = fs::read_to_string(format!("/proc/{first}/cgroup")).ok()?;
        let account = below(Path::new(ROOT).join("cpuacct"), hierarchy(&text, "cpuacct")?.1);
        let (mut there, mut here) = (members(&account), members(folder));
        there.sort_unstable();
        here.sort_unstable();
        (there == here).then_some(account)
    };
    // Processes come and go between two readings.
    (0..TRIES).find_map(|_| same())
}

/// Returns whether a thread is in a group that Linux runs only where no other group of its level
/// has threads, or in one within it.
#[must_use]
pub fn is_idle(tid: i32) -> bool {
    let root = Path::new(ROOT);
    let home = homes(root, tid).ok().and_then(|homes| homes.into_iter().find(|home| home.ranks));
    home.is_some_and(|home| is_idle_below(root, &home.folder))
}

fn is_idle_below(root: &Path, home: &Path) -> bool {
    let is_set =
        |folder: &Path| fs::read_to_string(folder.join("cpu.idle")).is_ok_and(|word| word.trim() == "1");
    home.ancestors().take_while(|folder| folder.starts_with(root)).any(is_set)
}

/// The process that made a scope. Its number may be that of another process once it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Maker {
    pid: i32,
    /// When it was started, in clock ticks since the machine was.
    start: u64,
    /// The PID namespace that it has the number in, by its file's inode.
    namespace: u64,
}

impl Maker {
    /// Returns the process that has this number here; `None` if there is none.
    fn of(pid: i32) -> Option<Self> {
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
        Some(Self { pid, start: Stat::of_process(pid)?.start, namespace })
    }

    /// Returns whether it is of the PID namespace of this process.
    fn is_here(self) -> bool {
        fs::metadata("/proc/self/ns/pid").is_ok_and(|file| file.ino() == self.namespace)
    }

    fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Parses the end of a scope's name.
    fn parse(text: &str) -> Option<Self> {
        let (pid, rest) = text.split_once('-')?;
        let (start, namespace) = rest.split_once('-')?;
        Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()?, namespace: namespace.parse().ok()? })
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.pid, self.start, self.namespace)
    }
}

/// Returns the folder of the scope beside a group.
fn beside(root: &Path, home: &Path, maker: Maker) -> PathBuf {
    let is_top = home == root || home.parent() == Some(root) && !root.join("cgroup.controllers").exists();
    match home.file_name().filter(|_| !is_top) {
        Some(name) => home.with_file_name(format!("{}.{MARK}{maker}", name.to_string_lossy())),
        None => home.join(format!("{MARK}{maker}")),
    }
}

/// Returns the home of a scope's members and the process that made it; `None` if the folder is no
/// scope.
fn home_of(scope: &Path) -> Option<(PathBuf, Maker)> {
    let (before, maker) = scope.file_name()?.to_str()?.rsplit_once(MARK)?;
    let maker = Maker::parse(maker)?;
    match before.strip_suffix('.') {
        // A name that leads elsewhere is no group's.
        Some("" | "." | "..") => None,
        Some(name) => Some((scope.with_file_name(name), maker)),
        None => before.is_empty().then(|| Some((scope.parent()?.to_owned(), maker)))?,
    }
}

/// A process tree in a scope, until this is dropped.
#[derive(Debug)]
pub struct Scope {
    first: Process,
    folders: Vec<PathBuf>,
}

impl Scope {
    /// Makes the scope of a process, on these cores, and moves the process there with what it has
    /// started.
    ///
    /// # Errors
    /// [`GroupError`]; nothing is left of the scope then.
    pub fn around(first: Process, cores: &[usize]) -> Result<Self, GroupError> {
        let root = Path::new(ROOT);
        let homes = homes(root, first.pid())?;
        for home in &homes {
            check_place(root, &home.folder, first.pid())?;
        }
        let own = std::process::id().cast_signed();
        let stat = PathBuf::from(format!("/proc/{own}/stat"));
        let maker =
            Maker::of(own).ok_or_else(|| GroupError::new("read", &stat, ErrorKind::InvalidData.into()))?;
        // Its end removes what was made before an error.
        let mut scope = Self { first, folders: Vec::new() };
        for home in &homes {
            let folder = beside(root, &home.folder, maker);
            fs::create_dir(&folder).map_err(|error| GroupError::new("make", &folder, error))?;
            scope.folders.push(folder);
        }
        for (folder, home) in scope.folders.iter().zip(&homes) {
            set_up(folder, home, cores)?;
        }
        scope.move_in(ROUNDS)?;
        Ok(scope)
    }

    /// Gives the members back and removes the groups.
    ///
    /// # Errors
    /// Why members are still there; [`repair`] tries again once this process has ended.
    pub fn end(mut self) -> Result<(), GroupError> {
        let end = |folder: PathBuf| {
            let failed = |why| GroupError::new("put the processes back from", &folder, io::Error::other(why));
            remove(&folder).map_err(failed)
        };
        // All are tried before the first error is returned.
        let ends: Vec<_> = self.folders.drain(..).map(end).collect();
        ends.into_iter().collect()
    }

    /// Returns the folders of its groups.
    #[must_use]
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Moves descendants that were started elsewhere in the meantime, until the first process has
    /// ended: its number may be another process's then.
    pub fn follow(&self) {
        // What cannot be moved now is tried again the next time.
        let _ = self.move_in(2);
    }

    /// Returns the processes in the scope, also those in groups that they have made there.
    #[must_use]
    pub fn members(&self) -> Vec<i32> {
        self.folders.last().map_or_else(Vec::new, |folder| members_within(folder))
    }

    /// Moves the tree until a round finds no process outside, at most so many rounds.
    fn move_in(&self, rounds: u32) -> Result<(), GroupError> {
        for round in 0..rounds {
            let mut moved = false;
            for folder in &self.folders {
                let inside = members(folder);
                let home = home_of(folder).map(|(home, _)| members(&home)).unwrap_or_default();
                let tree = descendants(self.first.pid());
                if self.first.has_ended() {
                    return Ok(());
                }
                for pid in tree {
                    if inside.contains(&pid) || !home.contains(&pid) {
                        continue;
                    }
                    match put(folder, pid) {
                        Ok(()) => moved = true,
                        // It has ended, but the first one is there or there is no job.
                        Err(_) if pid != self.first.pid() || round > 0 => {}
                        Err(error) => return Err(GroupError::new("move the process to", folder, error)),
                    }
                }
            }
            if !moved {
                break;
            }
        }
        Ok(())
    }
}

/// Writes a file that is there: in a folder that is no control group none may be made.
fn write_existing(file: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

impl Drop for Scope {
    fn drop(&mut self) {
        for folder in &self.folders {
            // What cannot be removed is found by `repair`.
            let _ = remove(folder);
        }
    }
}

/// Returns the processes of a group.
fn members(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Returns the processes of a group and of those within it: in version 2 a group with groups has
/// none of its own.
#[must_use]
pub fn members_within(folder: &Path) -> Vec<i32> {
    within(folder).iter().flat_map(|group| members(group)).collect()
}

/// Returns a group behind those within it.
fn within(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut next) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(group) = next.pop().filter(|_| found.len() < MOST_GROUPS) {
        next.extend(folders(&group));
        found.push(group);
    }
    found.reverse();
    found
}

/// Returns the folders in one. Links such as `cpu -> cpu,cpuacct` are not followed.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// Moves a process to a group.
fn put(folder: &Path, pid: i32) -> io::Result<()> {
    write_existing(&folder.join("cgroup.procs"), &pid.to_string())
}

/// Gives the members of a scope back and removes it, with the groups that they have made there.
///
/// # Errors
/// Why members are still there, in words.
fn remove(scope: &Path) -> Result<(), String> {
    let (home, _) = home_of(scope).ok_or("it is no batch job's")?;
    // Of one that has ended it does not matter: the scope is removed all the same.
    let mut refused = None;
    for _ in 0..ROUNDS {
        for pid in members_within(scope) {
            if let Err(why) = put_back(&home, scope, pid) {
                refused = Some(why);
            }
        }
        let remove_group = |group: &PathBuf| fs::remove_dir(group).err();
        let errors = within(scope).iter().filter_map(remove_group).collect::<Vec<_>>();
        // All were tried: one that is busy hides none behind it.
        match errors.iter().find(|error| error.kind() != ErrorKind::NotFound) {
            Some(error) if error.kind() == ErrorKind::ResourceBusy => sleep(BETWEEN_ROUNDS),
            Some(error) => return Err(error.to_string()),
            None => return Ok(()),
        }
    }
    Err(refused.unwrap_or_else(|| io::Error::from(ErrorKind::ResourceBusy).to_string()))
}

/// Moves a member of a scope to its home, or into a group within that: since the member left,
/// controllers may have been enabled for groups within the home, which takes no process then
/// (version 2).
fn put_back(home: &Path, scope: &Path, pid: i32) -> Result<(), String> {
    // Linux takes the number for the process that writes it.
    if pid == 0 {
        return Err("it has a process of another PID namespace".to_owned());
    }
    let group = standing(home, scope).map_err(|error| error.to_string())?;
    let Err(error) = put(&group, pid) else { return Ok(()) };
    let why = format!("process {pid} cannot be moved to {}: {error}", group.display());
    if error.kind() != ErrorKind::ResourceBusy {
        return Err(why);
    }
    // There it has the limits of the home.
    let leaf = group.join(LEAF);
    let moved = match fs::create_dir(&leaf) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => put(&leaf, pid),
    };
    moved.map_err(|error| format!("{why}, nor to {}: {error}", leaf.display()))
}

/// Returns the group for the members of a scope whose home may have been removed, as systemd
/// removes one without processes: in version 2 it is made anew, with the limits that the scope took
/// along, since a group with groups takes no process; in version 1 the one above takes them.
fn standing(home: &Path, scope: &Path) -> Result<PathBuf, GroupError> {
    let is_second = scope.join("cgroup.type").exists();
    if is_second && !home.is_dir() {
        fs::create_dir(home).map_err(|error| GroupError::new("make", home, error))?;
        // Without its limits it is not made: the members stay within those of the scope.
        limit(home, scope).inspect_err(|_| drop(fs::remove_dir(home)))?;
    }
    Ok(home.ancestors().find(|folder| folder.is_dir()).unwrap_or(home).to_owned())
}

/// Removes the scopes of processes that were killed. Returns in words what was done, and which
/// scopes of other PID namespaces are left.
///
/// # Errors
/// What could not be removed, and why.
pub fn repair() -> Result<String, String> {
    repair_below(Path::new(ROOT), Maker::is_running)
}

fn repair_below(root: &Path, is_running: impl Fn(Maker) -> bool) -> Result<String, String> {
    let (mut removed, mut failed, mut left) = (0, Vec::new(), String::new());
    for scope in scopes(root, DEEPEST) {
        // Another user may make groups of such a name where groups are delegated to it.
        let is_own = scope.metadata().is_ok_and(|metadata| metadata.uid() == geteuid().as_raw());
        let Some((_, maker)) = home_of(&scope).filter(|_| is_own) else { continue };
        if !maker.is_here() {
            left += &format!(
                "; left {}, whose supervisor may run in another PID namespace: repair it there, or if that has \
                 ended, move its processes to another group (cgroup.procs) and remove it (rmdir)",
                scope.display()
            );
            continue;
        }
        if is_running(maker) {
            continue;
        }
        match remove(&scope) {
            Ok(()) => removed += 1,
            Err(error) => failed.push(format!("{}: {error}", scope.display())),
        }
    }
    match (removed, &*failed) {
        (0, []) => Ok(format!("groups of batch jobs: nothing to put back{left}")),
        (removed, []) => Ok(format!("groups of batch jobs: {removed} removed{left}")),
        (removed, failed) => Err(format!(
            "groups of batch jobs: {removed} removed, {} failed ({}); run this again as root{left}",
            failed.len(),
            failed.join(", ")
        )),
    }
}

/// Returns the folders of all scopes below one.
fn scopes(folder: &Path, depth: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in folders(folder) {
        if home_of(&path).is_some() {
            found.push(path);
        } else if depth > 0 {
            found.extend(scopes(&path, depth - 1));
        }
    }
    found
}

#[cfg(test)]
mod tests;
