//! The image for containers: an archive in the layout of the Open Container Initiative, made
//! without a container engine.
//!
//! Owns the image's files and description. The programs are beside the four libraries that they
//! load, taken from this machine with their licences; there is no shell. The format is that of the
//! OCI's image specification, version 1.0: a layer, a configuration that names the checksum of the
//! unpacked layer, a manifest that names both, and an index.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pack::{commit_date, gzip, place, renew, sum, symbols_of, tar, write};
use crate::{VERSION, create, run};

/// Programs of the image: the command, its screen and metrics, a service, the agent of a node.
const PROGRAMS: [&str; 4] = ["tailwater", "tailwater-observe", "tailwater-kv", "tailwater-node"];

/// Most bytes of the archive.
const MOST_BYTES: u64 = 12 << 20;

/// Makes the image from the programs of `staging`; returns the archive in `out`.
pub(crate) fn make(staging: &Path, out: &Path) -> Result<PathBuf> {
    let work = out.join("oci");
    renew(&work)?;
    let files = work.join("root");
    for program in PROGRAMS {
        let (from, to) = (staging.join("bin").join(program), files.join("usr/bin").join(program));
        place(&from, &to, 0o755)?;
        if let (Some(from), Some(to)) = (symbols_of(&from).filter(|file| file.is_file()), symbols_of(&to)) {
            place(&from, &to, 0o644)?;
        }
    }
    add_libraries(&files)?;
    add_ground(&files)?;
    let layout = work.join("layout");
    let blobs = layout.join("blobs/sha256");
    create(&blobs)?;
    let layer = work.join("layer.tar");
    let names: Vec<String> = fs::read_dir(&files)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    tar(&files, &names, &layer)?;
    let unpacked = sum(&layer)?;
    let layer = blob(&blobs, &gzip(&layer)?, "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let config = json_blob(&blobs, &config(&unpacked)?, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer],
    });
    let mut manifest = json_blob(&blobs, &manifest, "application/vnd.oci.image.manifest.v1+json")?;
    manifest["annotations"] =
        json!({"org.opencontainers.image.ref.name": format!("localhost/tailwater:{VERSION}")});
    write(&layout.join("index.json"), json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())?;
    write(&layout.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    let archive = out.join(format!("tailwater-{VERSION}-x86_64.oci.tar"));
    tar(&layout, &["blobs", "index.json", "oci-layout"], &archive)?;
    fs::remove_dir_all(&work)?;
    let bytes = archive.metadata()?.len();
    ensure!(bytes <= MOST_BYTES, "the image has {bytes} bytes, more than {MOST_BYTES}: pack fewer programs");
    Ok(archive)
}

/// Returns what a container engine reads of the image: who made it, and what it runs.
fn config(unpacked: &str) -> Result<Value> {
    let time = commit_date("+%Y-%m-%dT%H:%M:%SZ")?;
    Ok(json!({
        "created": time, "architecture": "amd64", "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/tailwater"], "Cmd": ["iokernel"],
            "Env": ["PATH=/usr/bin"],
            "Labels": {
                "org.opencontainers.image.title": "tailwater",
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{unpacked}")]},
        "history": [{"created": time, "created_by": "cargo xtask dist"}],
    }))
}

/// Copies the libraries that the programs load, and their licences.
fn add_libraries(files: &Path) -> Result<()> {
    let mut owners = Vec::new();
    for program in PROGRAMS {
        let loaded = run(Command::new("ldd").arg(files.join("usr/bin").join(program)))?;
        for library in libraries(&String::from_utf8(loaded)?) {
            // Where the program looks for it; the file may be elsewhere, behind links.
            place(&fs::canonicalize(&library)?, &files.join(library.strip_prefix("/")?), 0o755)?;
            owners.push(package_of(&library));
        }
    }
    owners.sort();
    owners.dedup();
    for package in owners.into_iter().flatten() {
        let licence = Path::new("/usr/share/doc").join(package).join("copyright");
        if licence.is_file() {
            place(&licence, &files.join(licence.strip_prefix("/")?), 0o644)?;
        }
    }
    Ok(())
}

/// Returns the absolute paths that ldd(1) prints.
fn libraries(printed: &str) -> Vec<PathBuf> {
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    printed.lines().filter_map(path).collect()
}

/// Returns the Debian package that a library is of; `None` on other systems.
fn package_of(library: &Path) -> Option<String> {
    let found = fs::canonicalize(library).ok()?;
    // Packages list it below /lib or /usr/lib, whichever of the two is the link.
    let place = Path::new("*").join(found.parent()?.file_name()?).join(found.file_name()?);
    let owner = Command::new("dpkg-query").arg("--search").arg(place).output().ok()?;
    let owner = String::from_utf8(owner.stdout).ok()?;
    Some(owner.split(':').next().filter(|name| !name.is_empty())?.to_owned())
}

/// Adds the users, and the folder of the control socket.
fn add_ground(files: &Path) -> Result<()> {
    write(&files.join("etc/passwd"), "root:x:0:0:root:/:/\ntailwater:x:999:999::/:/\n")?;
    write(&files.join("etc/group"), "root:x:0:\ntailwater:x:999:\n")?;
    create(&files.join("run/tailwater"))
}

fn json_blob(blobs: &Path, value: &Value, kind: &str) -> Result<Value> {
    let file = blobs.join("new");
    write(&file, value.to_string())?;
    blob(blobs, &file, kind)
}

/// Moves a file to the place that its checksum names; returns its description.
fn blob(blobs: &Path, file: &Path, kind: &str) -> Result<Value> {
    let sum = sum(file)?;
    let size = file.metadata()?.len();
    fs::rename(file, blobs.join(&sum)).with_context(|| format!("cannot move {}", file.display()))?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{sum}"), "size": size}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_prints() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x7f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let paths = libraries(printed);
        let expected = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(paths, expected);
    }
}
