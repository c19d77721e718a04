//! Sets `TAILWATER_COMMIT`, the commit that the program is built from, for the reports it writes,
//! unless the environment of the build has one.

use std::process::{Command, Stdio};

fn main() {
    println!("cargo:rerun-if-env-changed=TAILWATER_COMMIT");
    // Changes to these add `-dirty`.
    for path in ["../../Cargo.toml", "../../Cargo.lock", "../../crates", "../../apps"] {
        println!("cargo:rerun-if-changed={path}");
    }
    // Changes with each commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    if std::env::var_os("TAILWATER_COMMIT").is_none() {
        let commit = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
        println!("cargo:rustc-env=TAILWATER_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    }
}

/// Returns git's output; `None` without git or outside a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
