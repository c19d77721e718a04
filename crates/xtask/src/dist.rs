//! `cargo xtask dist`: what a release consists of, the same bytes for the same commit.
//!
//! Owns the list of what is packed, its places below the prefix, and the build without paths of
//! this machine. The archive is for /usr/local, which the units name. `pack` makes archives, `deb`
//! the Debian package, `oci` the image, `sbom` the list of crates.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pack::{gzip, has, list, place, renew, split_symbols, sums, tar, write};
use crate::{VERSION, build_with, deb, install, oci, root, run, sbom};

/// Packages and their programs.
const PROGRAMS: [(&str, &str); 8] = [
    ("tailwater-cli", "tailwater"),
    ("tailwater-observe", "tailwater-observe"),
    ("tailwater-lab", "tailwater-lab"),
    ("tailwater-kv", "tailwater-kv"),
    ("tailwater-dns", "tailwater-dns"),
    ("tailwater-spin", "tailwater-spin"),
    ("tailwater-swaptions", "tailwater-swaptions"),
    ("tailwater-node", "tailwater-node"),
];

/// The library of `tailwater run --posix`.
const PRELOADED: (&str, &str) = ("tailwater-posix", "libtailwater_posix.so");

/// Shells and the files in which they look for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/tailwater"),
    ("zsh", "share/zsh/site-functions/_tailwater"),
    ("fish", "share/fish/vendor_completions.d/tailwater.fish"),
];

/// Where the list of crates is.
const CRATES: &str = "share/doc/tailwater/sbom.cdx.json";

/// Files of the tree and their places.
const FILES: [(&str, &str); 15] = [
    ("contrib/systemd/tailwater.service", "lib/systemd/system/tailwater.service"),
    ("contrib/systemd/tailwater-kv.service", "lib/systemd/system/tailwater-kv.service"),
    ("contrib/systemd/tailwater-batch@.service", "lib/systemd/system/tailwater-batch@.service"),
    ("contrib/systemd/tailwater.sysusers", "lib/sysusers.d/tailwater.conf"),
    ("contrib/systemd/takeover.conf", "share/tailwater/takeover.conf"),
    ("contrib/tailwater.schema.json", "share/tailwater/tailwater.schema.json"),
    ("contrib/tailwater.toml", "share/doc/tailwater/tailwater.toml"),
    ("contrib/kubernetes/tailwater.yaml", "share/doc/tailwater/kubernetes/tailwater.yaml"),
    ("contrib/grafana/tailwater.json", "share/doc/tailwater/grafana/tailwater.json"),
    ("contrib/prometheus/tailwater.rules.yml", "share/doc/tailwater/prometheus/tailwater.rules.yml"),
    ("contrib/prometheus/tailwater.test.yml", "share/doc/tailwater/prometheus/tailwater.test.yml"),
    ("README.md", "share/doc/tailwater/README.md"),
    ("CHANGELOG.md", "share/doc/tailwater/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/tailwater/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/tailwater/LICENSE-APACHE"),
];

/// Builds everything and packs it into `out`; returns the files that were made, checksums last.
/// Without dpkg-deb no Debian package is among them.
///
/// # Errors
/// If this was not started by cargo in a clone of git, a build fails, or a file cannot be written.
pub fn dist(out: &Path) -> Result<Vec<PathBuf>> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => std::path::absolute(target)?,
        // Of its own: the flags are others than those of `cargo build`.
        None => root().join("target/dist"),
    };
    let name = format!("tailwater-{VERSION}-x86_64-linux");
    let staging = out.join(&name);
    renew(&staging)?;
    stage(&target, &staging)?;
    let mut made = Vec::new();
    if has("dpkg-deb", "the Debian package is not made") {
        made.push(deb::make(&staging, out)?);
    }
    made.push(oci::make(&staging, out)?);
    let crates = out.join(format!("tailwater-{VERSION}.cdx.json"));
    place(&staging.join(CRATES), &crates, 0o644)?;
    made.push(crates);
    let archive = out.join(format!("{name}.tar"));
    tar(out, &[&name], &archive)?;
    made.push(gzip(&archive)?);
    fs::remove_dir_all(&staging)?;
    let names: Vec<_> = made.iter().filter_map(|file| file.file_name()).collect();
    let checksums = out.join("SHA256SUMS");
    write(&checksums, sums(out, &names)?)?;
    made.push(checksums);
    Ok(made)
}

/// Builds everything and puts it in its place below the prefix `staging`.
fn stage(target: &Path, staging: &Path) -> Result<()> {
    let flags = flags()?;
    build_programs(target, &flags)?;
    let release = target.join("release");
    let can_split = has("objcopy", "the programs keep their symbols");
    for (_, program) in PROGRAMS {
        let placed = staging.join("bin").join(program);
        place(&release.join(program), &placed, 0o755)?;
        if can_split {
            split_symbols(&placed)?;
        }
    }
    place(&release.join(PRELOADED.1), &staging.join("lib/tailwater").join(PRELOADED.1), 0o755)?;
    install(&build_with(target, Some(&flags))?, staging)?;
    for (from, to) in FILES {
        place(&root().join(from), &staging.join(to), 0o644)?;
    }
    write_pages(&release, staging)?;
    let packages = PROGRAMS.iter().map(|(package, _)| *package).chain([PRELOADED.0, "tailwater-capi"]);
    write(&staging.join(CRATES), sbom::of(&packages.collect::<Vec<_>>())?)?;
    let files = list(staging)?;
    let names = files.iter().map(|file| file.strip_prefix(staging)).collect::<Result<Vec<_>, _>>()?;
    write(&staging.join("share/doc/tailwater/SHA256SUMS"), sums(staging, &names)?)
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

/// Writes manual pages and completions.
fn write_pages(release: &Path, staging: &Path) -> Result<()> {
    let program = release.join("tailwater");
    let pages = staging.join("share/man/man1");
    run(Command::new(&program).arg("man").arg("--out").arg(&pages))?;
    for (shell, file) in COMPLETIONS {
        write(&staging.join(file), run(Command::new(&program).args(["completions", shell]))?)?;
    }
    // `tailwater top` and `tailwater metrics` start tailwater-observe, which carries them out.
    write(&pages.join("tailwater-observe.1"), ".so man1/tailwater-top.1\n")?;
    for (_, name) in PROGRAMS.iter().skip(2) {
        let help = run(Command::new(release.join(name)).arg("--help").env("COLUMNS", "76"))?;
        write(&pages.join(format!("{name}.1")), page(name, &String::from_utf8(help)?))?;
    }
    Ok(())
}

/// Returns a manual page with the help of a program as it is (man(7)); its first line is what the
/// program does.
fn page(name: &str, help: &str) -> String {
    let line = |line: &str| match line.replace('\\', "\\e").replace('-', "\\-") {
        // A line that begins so would be a request.
        line if line.starts_with(['.', '\'']) => format!("\\&{line}\n"),
        line => format!("{line}\n"),
    };
    let (about, rest) = help.split_once('\n').unwrap_or((help, ""));
    let title = name.to_uppercase();
    let rest: String = rest.trim_start_matches('\n').lines().map(line).collect();
    let (name, about) = (name.replace('-', "\\-"), line(about));
    format!(
        ".TH {title} 1 \"\" \"tailwater {VERSION}\"\n.SH NAME\n{name} \\- {about}.SH DESCRIPTION\n.nf\n{rest}.fi\n"
    )
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
    fn a_page_has_the_help_of_its_program_line_by_line() {
        let page = page("tailwater-x", "Does it\n\nUsage: x [-a]\n.b\n");
        assert!(page.starts_with(".TH TAILWATER-X 1 "), "{page}");
        assert!(
            page.contains("\ntailwater\\-x \\- Does it\n.SH DESCRIPTION\n.nf\nUsage: x [\\-a]\n\\&.b\n.fi\n")
        );
    }

    #[test]
    fn the_same_files_make_the_same_package_and_image() {
        if !has("dpkg-deb", "the package is not made twice") {
            return;
        }
        let base = std::env::temp_dir().join(format!("tailwater-xtask-dist-{}", std::process::id()));
        let make = |name: &str| {
            let (staging, out) = (base.join(name).join("staging"), base.join(name).join("out"));
            for program in ["tailwater", "tailwater-observe", "tailwater-kv", "tailwater-node"] {
                place(Path::new("/bin/true"), &staging.join("bin").join(program), 0o755).unwrap();
            }
            for file in ["CHANGELOG.md", "tailwater.toml"] {
                write(&staging.join("share/doc/tailwater").join(file), "text of /usr/local/x\n").unwrap();
            }
            write(&staging.join("share/man/man1/tailwater.1"), ".TH T 1\n").unwrap();
            [deb::make(&staging, &out).unwrap(), oci::make(&staging, &out).unwrap()].map(|file| {
                let sum = crate::pack::sum(&file).unwrap();
                (file.file_name().unwrap().to_owned(), sum)
            })
        };
        let made = ["first", "a-second"].map(make);
        fs::remove_dir_all(&base).unwrap();
        assert_eq!(made[0], made[1]);
    }
}
