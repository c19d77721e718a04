//! The Debian package: programs, units, manual pages, completions and a configuration in the places
//! of a distribution.
//!
//! Owns those places and the package's description; `contrib/debian` has the scripts that run when
//! it is installed and removed. Libtailwater and tailwater-lab are in the archive only. dpkg-deb
//! packs, with the time of the commit.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pack::{commit_date, commit_time, gzip, list, place, renew, set_mode, write};
use crate::{VERSION, root, run};

/// Version of the package: that of the programs, and a number of its own.
const REVISION: &str = "1";

/// Folder of the documentation.
const DOC: &str = "usr/share/doc/tailwater";

/// Scripts that run when the package is installed and removed.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the package from the files of `staging`; returns it, in `out`.
pub(crate) fn make(staging: &Path, out: &Path) -> Result<PathBuf> {
    let tree = out.join("deb");
    renew(&tree)?;
    for file in list(staging)? {
        let name = file.strip_prefix(staging)?;
        if let Some(target) = place_of(name) {
            let is_program = name.parent() == Some(Path::new("bin"));
            place(&file, &tree.join(&target), if is_program { 0o755 } else { 0o644 })?;
            finish(&tree.join(target))?;
        }
    }
    let contrib = root().join("contrib/debian");
    place(&contrib.join("overrides"), &tree.join("usr/share/lintian/overrides/tailwater"), 0o644)?;
    place(&contrib.join("copyright"), &tree.join(DOC).join("copyright"), 0o644)?;
    write(&tree.join(DOC).join("changelog.Debian"), changes()?)?;
    gzip(&tree.join(DOC).join("changelog.Debian"))?;
    describe(&tree)?;
    for folder in folders(&tree)? {
        set_mode(&folder, 0o755)?;
    }
    let package = out.join(format!("tailwater_{VERSION}-{REVISION}_amd64.deb"));
    let mut pack = Command::new("dpkg-deb");
    // One thread: the bytes depend on the number of threads.
    pack.env("SOURCE_DATE_EPOCH", commit_time()?).args(["--root-owner-group", "--threads-max=1", "-Zxz"]);
    run(pack.arg("--build").arg(&tree).arg(&package))?;
    fs::remove_dir_all(&tree)?;
    Ok(package)
}

/// Returns where a file of the archive is in the package, from the root; `None` if it is not in it.
fn place_of(file: &Path) -> Option<PathBuf> {
    let name = file.to_str()?;
    let beside = |folder: &str| Some(Path::new(folder).join(file.file_name()?));
    let is_c = ["include/", "lib/pkgconfig/", "lib/cmake/", "lib/libtailwater"];
    if is_c.iter().any(|prefix| name.starts_with(prefix)) || name.contains("tailwater-lab") {
        return None;
    }
    match name {
        "share/doc/tailwater/LICENSE-MIT" | "share/doc/tailwater/LICENSE-APACHE" => None,
        "share/doc/tailwater/SHA256SUMS" => None,
        "share/doc/tailwater/tailwater.toml" => Some("etc/tailwater.toml".into()),
        "share/doc/tailwater/CHANGELOG.md" => Some(Path::new(DOC).join("changelog")),
        _ if name.starts_with("bin/.debug/") => beside("usr/lib/debug/usr/bin"),
        _ if name.starts_with("lib/systemd/") => Some(file.into()),
        _ if name.starts_with("share/zsh/") => beside("usr/share/zsh/vendor-completions"),
        _ => Some(Path::new("usr").join(file)),
    }
}

/// Makes of a file what a package has of it: paths without `local`, compressed pages.
fn finish(file: &Path) -> Result<()> {
    let is = |extension: &str| file.extension().is_some_and(|found| found == extension);
    if is("service") || is("conf") || is("toml") {
        let text = fs::read_to_string(file)?;
        write(file, text.replace("/usr/local/", "/usr/"))
    } else if is("1") || file.ends_with(Path::new(DOC).join("changelog")) {
        gzip(file).map(drop)
    } else {
        Ok(())
    }
}

/// Writes what dpkg reads: the description, the files that an administrator changes, checksums and
/// scripts.
fn describe(tree: &Path) -> Result<()> {
    let files = list(tree)?;
    let names: Vec<&Path> = files.iter().map(|file| file.strip_prefix(tree)).collect::<Result<_, _>>()?;
    let bytes: u64 = files.iter().map(|file| Ok(file.metadata()?.len())).sum::<Result<u64>>()?;
    let sums = run(Command::new("md5sum").current_dir(tree).args(&names))?;
    let programs: Vec<&PathBuf> = files.iter().filter(|file| is_program(file)).collect();
    let debian = tree.join("DEBIAN");
    write(&debian.join("md5sums"), sums)?;
    write(&debian.join("conffiles"), "/etc/tailwater.toml\n")?;
    write(&debian.join("control"), control(bytes.div_ceil(1024), &c_library(&programs)?))?;
    for script in SCRIPTS {
        place(&root().join("contrib/debian").join(script), &debian.join(script), 0o755)?;
    }
    Ok(())
}

fn is_program(file: &Path) -> bool {
    file.parent().is_some_and(|folder| folder.ends_with("usr/bin")) && file.extension().is_none()
        || file.extension().is_some_and(|e| e == "so")
}

/// Returns deb-control(5).
fn control(kibibytes: u64, c_library: &str) -> String {
    format!(
        "Package: tailwater\n\
         Version: {VERSION}-{REVISION}\n\
         Architecture: amd64\n\
         Maintainer: The Tailwater developers <tailwater@localhost.localdomain>\n\
         Installed-Size: {kibibytes}\n\
         Depends: libc6 (>= {c_library}), libgcc-s1, init-system-helpers (>= 1.52)\n\
         Recommends: nftables, systemd\n\
         Section: net\n\
         Priority: optional\n\
         Description: share cores between services and batch jobs\n \
         Services that need short response times and batch jobs share the cores of a\n \
         machine: the IOKernel, one process for each machine, lends cores to programs\n \
         for microseconds and switches their packets.\n \
         .\n \
         This package has the IOKernel and its commands, services for it (a store that\n \
         speaks the protocol of memcached, a name server), and units of systemd.\n"
    )
}

/// Returns the least version of the C library that these programs run with.
fn c_library(programs: &[&PathBuf]) -> Result<String> {
    let printed = String::from_utf8(run(Command::new("readelf").arg("--version-info").args(programs))?)?;
    newest(&printed).context("the programs use no C library")
}

/// Returns the newest version of the C library whose symbols readelf(1) lists.
fn newest(printed: &str) -> Option<String> {
    let versions = printed.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let numbers = |version: &str| version.split('.').map(|n| n.parse().ok()).collect::<Option<Vec<u32>>>();
    let newest = versions.filter_map(numbers).max()?;
    Some(newest.iter().map(ToString::to_string).collect::<Vec<_>>().join("."))
}

/// Returns the changes of the package in Debian's form, of which there is one.
fn changes() -> Result<String> {
    let time = commit_date("--rfc-email")?;
    Ok(format!(
        "tailwater ({VERSION}-{REVISION}) unstable; urgency=medium\n\n  \
         * Release {VERSION}; changelog.gz has the changes.\n\n \
         -- The Tailwater developers <tailwater@localhost.localdomain>  {time}\n"
    ))
}

/// Lists the folders below one, and the folder itself.
fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(folders(&entry.path())?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_the_places_of_a_distribution() {
        for (file, expected) in [
            ("bin/tailwater", Some("usr/bin/tailwater")),
            ("bin/tailwater-lab", None),
            ("bin/.debug/tailwater.debug", Some("usr/lib/debug/usr/bin/tailwater.debug")),
            ("bin/.debug/tailwater-lab.debug", None),
            ("include/tailwater.h", None),
            ("lib/libtailwater.a", None),
            ("lib/tailwater/libtailwater_posix.so", Some("usr/lib/tailwater/libtailwater_posix.so")),
            ("lib/systemd/system/tailwater.service", Some("lib/systemd/system/tailwater.service")),
            ("lib/sysusers.d/tailwater.conf", Some("usr/lib/sysusers.d/tailwater.conf")),
            ("share/zsh/site-functions/_tailwater", Some("usr/share/zsh/vendor-completions/_tailwater")),
            ("share/doc/tailwater/tailwater.toml", Some("etc/tailwater.toml")),
            ("share/doc/tailwater/README.md", Some("usr/share/doc/tailwater/README.md")),
        ] {
            assert_eq!(place_of(Path::new(file)), expected.map(PathBuf::from), "{file}");
        }
    }

    #[test]
    fn the_newest_version_of_the_c_library_counts_by_numbers() {
        let printed =
            "0x0010:   Name: GLIBC_2.9  Flags: none  Version: 6\n Name: GLIBC_2.34 Flags\n GLIBC_PRIVATE";
        assert_eq!(newest(printed).unwrap(), "2.34");
        assert_eq!(newest("nothing"), None);
    }
}
