//! Finds the program of `tailwater run`.
//!
//! Owns the lookup: a name without a slash is looked for in `PATH` and beside this program, as it
//! is and with `tailwater-` before it, which is how the programs of this project are called.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Programs of this project, each in the folder of its name in `apps/`.
const OWN: [&str; 5] = ["dns", "kv", "rocks", "spin", "swaptions"];

/// No such program.
#[derive(Debug, PartialEq, Eq)]
pub enum NotFound {
    /// No folder has one of this name.
    Name {
        /// The name.
        name: String,
        /// The folder beside this program, which was looked at, too.
        beside: Option<PathBuf>,
    },
    /// The path is not that of a program, in words.
    Path(String),
}

impl std::fmt::Display for NotFound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, beside) = match self {
            Self::Path(why) => return f.write_str(why),
            Self::Name { name, beside } => (name, beside),
        };
        write!(f, "there is no program {name} or tailwater-{name} in PATH")?;
        if let Some(folder) = beside {
            write!(f, " or in {}", folder.display())?;
        }
        match name.strip_prefix("tailwater-").unwrap_or(name) {
            own if OWN.contains(&own) => {
                write!(f, "; build it with `cargo build --release -p tailwater-{own}`, or install it with ")?;
                write!(f, "`cargo install --path apps/{own}`")
            }
            _ => write!(f, "; give its path, for instance ./{name}"),
        }
    }
}

impl std::error::Error for NotFound {}

/// Returns the file to run for `name`: the first that can be executed of `name` in `path`, `name`
/// and `tailwater-name` in the folder `beside`, `tailwater-name` in `path`. A name with a slash is
/// the file itself, which must be there, before `tailwater run` waits for an IOKernel.
///
/// # Errors
/// If there is none.
pub fn program(name: &OsStr, path: &OsStr, beside: Option<&Path>) -> Result<PathBuf, NotFound> {
    if name.as_encoded_bytes().contains(&b'/') {
        return match unusable(Path::new(name)) {
            Some(why) => Err(NotFound::Path(why)),
            None => Ok(name.into()),
        };
    }
    let prefixed = [OsStr::new("tailwater-"), name].into_iter().collect::<OsString>();
    let in_path =
        |name: &OsStr| std::env::split_paths(path).map(|folder| folder.join(name)).collect::<Vec<_>>();
    let mut files = in_path(name);
    files.extend(beside.into_iter().flat_map(|folder| [folder.join(name), folder.join(&prefixed)]));
    files.extend(in_path(&prefixed));
    let found = files.into_iter().find(|file| is_executable(file));
    found.ok_or_else(|| NotFound::Name {
        name: name.to_string_lossy().into_owned(),
        beside: beside.map(Path::to_owned),
    })
}

/// Returns why a file cannot be started; `None` also if that is known only when it is.
fn unusable(file: &Path) -> Option<String> {
    let shown = file.display();
    match file.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("there is no file {shown}")),
        Ok(found) if found.is_dir() => Some(format!("{shown} is a folder, not a program")),
        Ok(_) if !is_executable(file) => Some(format!("{shown} is not executable: chmod +x {shown}")),
        _ => None,
    }
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn make(folder: &Path, name: &str, mode: u32) -> PathBuf {
        let file = folder.join(name);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_program_is_looked_for_in_path_then_beside_this_one_then_under_its_long_name() {
        let (path, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let find = |name: &str| program(name.as_ref(), path.path().as_os_str(), Some(beside.path()));
        let long = make(path.path(), "tailwater-spin", 0o755);
        assert_eq!(find("spin"), Ok(long));
        let long_beside = make(beside.path(), "tailwater-spin", 0o755);
        assert_eq!(find("spin"), Ok(long_beside));
        let short_beside = make(beside.path(), "spin", 0o755);
        assert_eq!(find("spin"), Ok(short_beside.clone()));
        make(path.path(), "spin", 0o644);
        assert_eq!(find("spin"), Ok(short_beside), "the other is no program");
        let short = make(path.path(), "spin", 0o755);
        assert_eq!(find("spin"), Ok(short.clone()));
        let short = short.to_str().unwrap();
        assert_eq!(find(short), Ok(short.into()), "a path is the file itself");
    }

    #[test]
    fn a_path_of_no_program_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let text = make(folder.path(), "text", 0o644);
        for (path, part) in [
            (folder.path().join("absent"), "there is no file"),
            (folder.path().to_owned(), "is a folder"),
            (text, "chmod +x"),
        ] {
            let why = program(path.as_os_str(), OsStr::new(""), None).unwrap_err().to_string();
            assert!(why.contains(part) && why.contains(path.to_str().unwrap()), "{why}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let words =
            |name: &str| program(name.as_ref(), OsStr::new(""), Some(folder.path())).unwrap_err().to_string();
        for name in ["kv", "tailwater-kv"] {
            let why = words(name);
            assert!(why.contains(&folder.path().display().to_string()), "{why}");
            assert!(why.contains("-p tailwater-kv") && why.contains("--path apps/kv"), "{why}");
        }
        assert!(words("no-such-service").ends_with("give its path, for instance ./no-such-service"));
    }
}
