//! `cargo xtask dist`: one archive of everything that is installed, the same bytes for the same
//! commit.
//!
//! Owns the list of what is packed, its places below the prefix, and what would differ from one
//! build to the next: paths of this machine in the programs, times, owners and the order of the
//! files. The archive is for /usr/local, which the units name.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{VERSION, build_with, copy, create, install, root, run};

/// Packages and their programs.
const PROGRAMS: [(&str, &str); 7] = [
    ("tailwater-cli", "tailwater"),
    ("tailwater-observe", "tailwater-observe"),
    ("tailwater-lab", "tailwater-lab"),
    ("tailwater-kv", "tailwater-kv"),
    ("tailwater-dns", "tailwater-dns"),
    ("tailwater-spin", "tailwater-spin"),
    ("tailwater-swaptions", "tailwater-swaptions"),
];

/// The library of `tailwater run --posix`.
const PRELOADED: (&str, &str) = ("tailwater-posix", "libtailwater_posix.so");

/// Shells and the files in which they look for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/tailwater"),
    ("zsh", "share/zsh/site-functions/_tailwater"),
    ("fish", "share/fish/vendor_completions.d/tailwater.fish"),
];

/// Files of the tree and their places.
const FILES: [(&str, &str); 12] = [
    ("contrib/systemd/tailwater.service", "lib/systemd/system/tailwater.service"),
    ("contrib/systemd/tailwater-kv.service", "lib/systemd/system/tailwater-kv.service"),
    ("contrib/systemd/tailwater-batch@.service", "lib/systemd/system/tailwater-batch@.service"),
    ("contrib/systemd/tailwater.sysusers", "lib/sysusers.d/tailwater.conf"),
    ("contrib/tailwater.toml", "share/doc/tailwater/tailwater.toml"),
    ("contrib/grafana/tailwater.json", "share/doc/tailwater/grafana/tailwater.json"),
    ("contrib/prometheus/tailwater.rules.yml", "share/doc/tailwater/prometheus/tailwater.rules.yml"),
    ("contrib/prometheus/tailwater.test.yml", "share/doc/tailwater/prometheus/tailwater.test.yml"),
    ("README.md", "share/doc/tailwater/README.md"),
    ("CHANGELOG.md", "share/doc/tailwater/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/tailwater/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/tailwater/LICENSE-APACHE"),
];

/// Builds everything and packs it into `out`; returns the archive.
///
/// # Errors
/// If this was not started by cargo in a clone of git, a build fails, or a file cannot be written.
pub fn dist(out: &Path) -> Result<PathBuf> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => std::path::absolute(target)?,
        // Of its own: the flags are others than those of `cargo build`.
        None => root().join("target/dist"),
    };
    let name = format!("tailwater-{VERSION}-x86_64-linux");
    let staging = out.join(&name);
    if staging.exists() {
        fs::remove_dir_all(&staging).with_context(|| format!("cannot remove {}", staging.display()))?;
    }
    let flags = flags()?;
    build_programs(&target, &flags)?;
    let release = target.join("release");
    for (_, program) in PROGRAMS {
        place(&release.join(program), &staging.join("bin").join(program), 0o755)?;
    }
    place(&release.join(PRELOADED.1), &staging.join("lib").join(PRELOADED.1), 0o755)?;
    install(&build_with(&target, Some(&flags))?, &staging)?;
    for (from, to) in FILES {
        place(&root().join(from), &staging.join(to), 0o644)?;
    }
    write_pages(&release.join("tailwater"), &staging)?;
    write_sums(&staging)?;
    pack(out, &name)
}

/// Returns the flags of the compiler that leave no path of this machine in what it builds.
fn flags() -> Result<OsString> {
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = cargo.or(home).context("neither CARGO_HOME nor HOME is set")?;
    let mut flags = OsString::from("--remap-path-prefix=");
    flags.push(root());
    flags.push("=tailwater --remap-path-prefix=");
    flags.push(cargo);
    flags.push("=cargo");
    Ok(flags)
}

fn build_programs(target: &Path, flags: &OsString) -> Result<()> {
    let cargo = std::env::var_os("CARGO").context("start this by cargo, as `cargo xtask`")?;
    let mut build = Command::new(cargo);
    build.current_dir(root()).args(["build", "--release", "--locked"]);
    for package in PROGRAMS.iter().map(|(package, _)| package).chain([&PRELOADED.0]) {
        build.args(["-p", package]);
    }
    let status = build.arg("--target-dir").arg(target).env("RUSTFLAGS", flags).status()?;
    if !status.success() {
        bail!("the programs were not built: {build:?} ended with {status}");
    }
    Ok(())
}

/// Copies a file to its place, with this mode.
fn place(from: &Path, to: &Path, mode: u32) -> Result<()> {
    create(to.parent().context("a file is in a folder")?)?;
    copy(from, to)?;
    fs::set_permissions(to, Permissions::from_mode(mode))
        .with_context(|| format!("cannot change the mode of {}", to.display()))
}

/// Has the program write its manual pages and completions.
fn write_pages(program: &Path, staging: &Path) -> Result<()> {
    run(Command::new(program).arg("man").arg("--out").arg(staging.join("share/man/man1")))?;
    for (shell, file) in COMPLETIONS {
        let path = staging.join(file);
        create(path.parent().context("a file is in a folder")?)?;
        let text = run(Command::new(program).args(["completions", shell]))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Writes the checksums of all files.
fn write_sums(staging: &Path) -> Result<()> {
    let mut files = Vec::new();
    list(staging, &mut files)?;
    files.sort();
    let names = files.iter().map(|file| file.strip_prefix(staging)).collect::<Result<Vec<_>, _>>()?;
    let sums = run(Command::new("sha256sum").current_dir(staging).args(names))?;
    let path = staging.join("share/doc/tailwater/SHA256SUMS");
    fs::write(&path, sums).with_context(|| format!("cannot write {}", path.display()))
}

/// Lists the files below a folder, without links.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Packs the folder `name` in `out`: files in the order of their names, with the time of the commit
/// and root as their owner. Returns the archive; its checksum is beside it.
fn pack(out: &Path, name: &str) -> Result<PathBuf> {
    let commit = run(Command::new("git").current_dir(root()).args(["log", "-1", "--format=%ct"]))?;
    let time = format!("--mtime=@{}", String::from_utf8(commit)?.trim());
    let tar = format!("{name}.tar");
    run(Command::new("tar").current_dir(out).env("LC_ALL", "C").args([
        "--create",
        "--format=ustar",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u+w,go-w",
        &time,
        "--file",
        &tar,
        name,
    ]))?;
    // Without the name and the time of the file (gzip(1)).
    run(Command::new("gzip").current_dir(out).args(["--no-name", "--best", "--force", &tar]))?;
    let archive = format!("{tar}.gz");
    let sum = run(Command::new("sha256sum").current_dir(out).arg(&archive))?;
    fs::write(out.join(format!("{archive}.sha256")), sum)?;
    fs::remove_dir_all(out.join(name))?;
    Ok(out.join(archive))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_packed_are_there_and_the_units_run_packed_programs() {
        for (from, _) in FILES {
            assert!(root().join(from).is_file(), "{from}");
        }
        for (from, _) in FILES.iter().filter(|(from, _)| from.ends_with(".service")) {
            let unit = fs::read_to_string(root().join(from)).unwrap();
            let run = unit
                .lines()
                .filter_map(|line| line.split_once("="))
                .filter(|(key, _)| key.starts_with("Exec"));
            for (key, command) in run.filter(|(_, command)| command.contains("tailwater")) {
                let program = command.trim_start_matches('-').split(' ').next().unwrap();
                let program = program.strip_prefix("/usr/local/bin/");
                let is_packed = PROGRAMS.iter().any(|(_, packed)| Some(*packed) == program);
                assert!(is_packed, "{from}: {key}={command}");
            }
        }
    }

    #[test]
    fn the_same_files_make_the_same_archive() {
        let make = |folder: &Path| {
            let files = folder.join("t");
            fs::create_dir_all(files.join("b")).unwrap();
            for (name, text) in [("b/two", "2"), ("one", "1")] {
                fs::write(files.join(name), text).unwrap();
            }
            fs::read(pack(folder, "t").unwrap()).unwrap()
        };
        let base = std::env::temp_dir().join(format!("tailwater-xtask-{}", std::process::id()));
        let archives = ["a", "b"].map(|name| make(&base.join(name)));
        fs::remove_dir_all(&base).unwrap();
        assert!(archives[0] == archives[1] && !archives[0].is_empty());
    }
}
