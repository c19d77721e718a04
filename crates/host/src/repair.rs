//! Settings of the machine that a crashed IOKernel has left changed.
//!
//! Owns their repair outside of an IOKernel; one that starts does the same for itself.

use std::path::Path;

use crate::undo::{Kind, Outcome, Undo};
use crate::{batch_group, clocks, reserve, reserved_ports};

/// Puts back the clock rates and cpusets that an IOKernel with these state files has changed and,
/// because it was killed, has left so, and the control groups of batch jobs
/// ([`BatchGroup`](crate::BatchGroup)). Returns for each of them in words how many settings were
/// put back, which ones another program has changed since, so that they stay, and which ones could
/// not be put back: with one of these it is an error, and the state file still says what they were.
/// It is also an error if the state file cannot be used, as while an IOKernel runs that uses it.
///
/// # Examples
/// ```no_run
/// let (cpusets, clocks) = ("/run/tailwater-cpusets".as_ref(), "/run/tailwater-clocks".as_ref());
/// for result in tailwater_host::repair(cpusets, clocks) {
///     match result {
///         Ok(done) => println!("{done}"),
///         Err(why) => eprintln!("{why}"),
///     }
/// }
/// ```
#[must_use]
pub fn repair(cpusets: &Path, clocks: &Path) -> Vec<Result<String, String>> {
    let cpusets = (reserve::KIND, cpusets, Path::new(reserve::ROOT));
    let clocks = (clocks::KIND, clocks, Path::new(clocks::ROOT));
    let groups = batch_group::records();
    let groups = groups.iter().map(|file| (batch_group::KIND, file.as_path(), Path::new(reserve::ROOT)));
    let all = [cpusets, clocks].into_iter().chain(groups);
    all.map(|(kind, file, root)| repair_kind(kind, file, root)).collect()
}

/// As [`repair`], of the reserved ports of this network namespace. Not for the time between the end
/// of an IOKernel and the next one, which programs wait for: Linux would give their ports away, and
/// the next IOKernel would be refused them.
///
/// # Errors
/// As one of [`repair`].
pub fn repair_reserved_ports() -> Result<String, String> {
    let file = reserved_ports::record().map_err(|error| format!("{}: {error}", reserved_ports::KIND.what))?;
    repair_kind(reserved_ports::KIND, &file, Path::new(reserved_ports::ROOT))
}

fn repair_kind(kind: Kind, file: &Path, root: &Path) -> Result<String, String> {
    let what = kind.what;
    let locked = match file.try_exists() {
        Ok(false) => return Ok(format!("{what}: nothing to put back")),
        Ok(true) => Undo::lock(kind, file, root),
        Err(error) => Err(error),
    };
    match locked {
        Ok(Some(undo)) => describe(what, file, &undo.recovered),
        Ok(None) => {
            Err(format!("{what}: a process that runs has changed them, and puts them back when it ends"))
        }
        Err(error) => Err(format!("{what}: cannot use {} ({}): {error}", file.display(), kind.key)),
    }
}

/// Returns the three counts in words, and the files of those that were not put back.
fn describe(what: &str, state_file: &Path, outcome: &Outcome) -> Result<String, String> {
    let Outcome { put_back, changed, failed } = outcome;
    let files = |files: Vec<String>| match files.is_empty() {
        true => String::new(),
        false => format!(" ({})", files.join(", ")),
    };
    let others = files(changed.iter().map(|file| file.display().to_string()).collect());
    let named = files(failed.iter().map(|(file, error)| format!("{}: {error}", file.display())).collect());
    let counts = format!(
        "{what}: {put_back} put back, {} changed by others{others}, {} failed{named}",
        changed.len(),
        failed.len()
    );
    if failed.is_empty() {
        return Ok(counts);
    }
    Err(format!(
        "{counts}; {} still has what these were: mend the cause, and run this again as root",
        state_file.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_fails_is_named_and_an_error_and_is_put_back_by_the_next_repair() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let (state, mut entries) = (root.join("state"), Vec::new());
        for (group, present) in [("mine", "0"), ("theirs", "1"), ("stuck", "0"), ("gone", "0")] {
            let file = root.join(group).join("cpuset.cpus");
            fs::create_dir(root.join(group)).unwrap();
            entries.push(format!("{{\"file\":{file:?},\"before\":\"0-3\",\"written\":[\"0\"]}}"));
            match group {
                // Can be read by no process.
                "stuck" => fs::create_dir(file).unwrap(),
                "gone" => {}
                _ => fs::write(file, present).unwrap(),
            }
        }
        fs::write(&state, format!("[{}]", entries.join(","))).unwrap();
        let repair = || repair_kind(reserve::KIND, &state, &root);
        let why = repair().unwrap_err();
        for part in ["1 put back", "1 changed", "theirs/cpuset.cpus", "1 failed", "stuck/cpuset.cpus"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        fs::remove_dir(root.join("stuck/cpuset.cpus")).unwrap();
        fs::write(root.join("stuck/cpuset.cpus"), "0\n").unwrap();
        let said = repair().unwrap();
        assert!(said.contains("1 put back") && said.contains("0 failed"), "{said}");
        assert!(repair().unwrap().contains("nothing to put back"));
        let read = |group: &str| fs::read_to_string(root.join(group).join("cpuset.cpus")).unwrap();
        assert_eq!(["mine", "theirs", "stuck"].map(read), ["0-3\n", "1", "0-3\n"]);
    }
}
