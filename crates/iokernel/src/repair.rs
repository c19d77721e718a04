//! Settings of the machine that a crashed IOKernel has left changed.
//!
//! Owns their repair outside of an IOKernel; one that starts does the same for itself.

use std::path::Path;

use crate::config::Config;
use crate::undo::{Kind, Undo};
use crate::{clocks, reserve};

/// Puts back the clock rates and cpusets that an IOKernel with this configuration has changed and,
/// because it was killed, has left so. Returns in words what was done, for each of the two, or why
/// its state file cannot be used: an IOKernel that runs may use it.
///
/// # Examples
/// ```no_run
/// for result in tailwater_iokernel::repair(&tailwater_iokernel::Config::default()) {
///     match result {
///         Ok(done) => println!("{done}"),
///         Err(why) => eprintln!("{why}"),
///     }
/// }
/// ```
pub fn repair(config: &Config) -> Vec<Result<String, String>> {
    let cpusets = (reserve::KIND, config.reserve.state_file.as_path(), Path::new(reserve::ROOT));
    let clocks = (clocks::KIND, config.ix.state_file.as_path(), Path::new(clocks::ROOT));
    [cpusets, clocks].into_iter().map(|(kind, file, root)| repair_kind(kind, file, root)).collect()
}

fn repair_kind(kind: Kind, file: &Path, root: &Path) -> Result<String, String> {
    let what = kind.what;
    if !file.exists() {
        return Ok(format!("{what}: nothing to put back"));
    }
    match Undo::lock(kind, file, root) {
        Ok(Some(undo)) => Ok(format!("{what}: {} put back", undo.repaired)),
        Ok(None) => {
            Err(format!("{what}: an IOKernel that runs has changed them, and puts them back when it ends"))
        }
        Err(error) => Err(format!("{what}: cannot use {} ({}): {error}", file.display(), kind.key)),
    }
}
