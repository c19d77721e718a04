//! Settings of reserved cores.
//!
//! Owns the table `reserve` of a configuration: names, defaults and limits.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use super::{ConfigError, out_of_range};

/// Maximum number of control groups.
const MAX_GROUPS: usize = 64;

/// Settings that keep ordinary threads off cores that programs request, with `policy = "arbiter"`.
///
/// # Examples
/// ```
/// use tailwater_iokernel::Config;
///
/// let text = "policy = \"arbiter\"\n[reserve]\nkeep-off = [\"/system.slice\", \"/user.slice\"]";
/// assert_eq!(Config::from_toml(text).unwrap().reserve.keep_off.len(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ReserveSettings {
    /// Control groups whose threads are kept off, as `/proc/PID/cgroup` names them; empty: none.
    pub keep_off: Vec<String>,
    /// File that keeps what the cpusets of these groups were before, while they are changed.
    pub state_file: PathBuf,
}

impl Default for ReserveSettings {
    fn default() -> Self {
        Self { keep_off: Vec::new(), state_file: PathBuf::from("/run/tailwater-cpusets") }
    }
}

impl ReserveSettings {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.keep_off.len() > MAX_GROUPS {
            let expected = format!("at most {MAX_GROUPS} groups");
            return Err(out_of_range("reserve.keep-off", self.keep_off.len(), expected));
        }
        if let Some(group) = self.keep_off.iter().find(|group| !is_group(group)) {
            let expected = "a control group below the root is needed, such as /system.slice";
            return Err(out_of_range("reserve.keep-off", group, expected));
        }
        if !self.state_file.is_absolute() {
            let expected = "an absolute path is needed, such as /run/tailwater-cpusets";
            return Err(out_of_range("reserve.state-file", self.state_file.display(), expected));
        }
        Ok(())
    }
}

/// Returns whether this is the path of a control group other than the root.
fn is_group(path: &str) -> bool {
    let parts = path.strip_prefix('/').unwrap_or_default();
    parts.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_absolute_and_not_the_root() {
        for group in ["/system.slice", "/user.slice/user-1000.slice"] {
            assert!(is_group(group), "{group}");
        }
        for path in ["", "/", "system.slice", "/a/", "/a//b", "/../b", "/a/./b"] {
            assert!(!is_group(path), "{path}");
        }
    }

    #[test]
    fn wrong_settings_are_named() {
        let check = |keep_off: &[&str], state_file: &str| {
            let keep_off = keep_off.iter().map(|&group| group.to_owned()).collect();
            ReserveSettings { keep_off, state_file: state_file.into() }.check()
        };
        assert_eq!(check(&["/a"], "/run/x"), Ok(()));
        let error = |result: Result<(), ConfigError>| result.unwrap_err().to_string();
        assert!(error(check(&["/a", "/"], "/run/x")).contains("reserve.keep-off = /"));
        assert!(error(check(&["/a"], "x")).contains("reserve.state-file = x"));
        assert!(error(check(&["/a"; MAX_GROUPS + 1], "/x")).contains("at most 64"));
    }
}
