//! The guest's kernel: the one that the distribution packages, with its modules.
//!
//! Owns the folder below `target` that [`fetch`] unpacks packages into. Installs nothing. A kernel
//! installed on this machine serves as well if its image is readable.

use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel and its modules.
#[derive(Debug)]
pub struct Kernel {
    /// The bootable image.
    pub image: PathBuf,
    /// The folder with `modules.dep`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Finds the newest kernel in `cache`, or else of this machine.
    ///
    /// # Errors
    /// If there is none whose image can be read and whose modules are there.
    pub fn find(cache: &Path) -> Result<Self> {
        let found = [cache, Path::new("/")].into_iter().find_map(Self::newest_below);
        found.context("no kernel for the guest: `cargo run -p tailwater-machine -- fetch` downloads one")
    }

    fn newest_below(root: &Path) -> Option<Self> {
        let images = fs::read_dir(root.join("boot")).ok()?.flatten().map(|entry| entry.path());
        let mut kernels: Vec<(Vec<u64>, Self)> = images.filter_map(|image| Self::of(root, image)).collect();
        kernels.sort_by(|a, b| a.0.cmp(&b.0));
        Some(kernels.pop()?.1)
    }

    /// Returns the numbers of its version, and the kernel, if its parts are there.
    fn of(root: &Path, image: PathBuf) -> Option<(Vec<u64>, Self)> {
        let version = image.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
        let folders = ["lib/modules", "usr/lib/modules"].map(|folder| root.join(folder).join(&version));
        let modules = folders.into_iter().find(|folder| folder.is_dir())?;
        fs::File::open(&image).ok()?;
        let numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
        Some((numbers.collect(), Self { image, modules }))
    }
}

/// Downloads the distribution's kernel and unpacks it into `cache`.
///
/// # Errors
/// If this is neither Debian nor Ubuntu, or a package cannot be had.
pub fn fetch(cache: &Path) -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let is = |name: &str| release.lines().any(|line| line == format!("ID={name}"));
    let general = match () {
        () if is("debian") => "linux-image-amd64",
        () if is("ubuntu") => "linux-image-generic",
        () => bail!("fetch knows the packages of Debian and Ubuntu: on others install a kernel by hand"),
    };
    let packages = packages(general)?;
    fs::create_dir_all(cache)?;
    let folder = tempfile::tempdir_in(cache)?;
    run(Command::new("apt-get").arg("download").args(&packages).current_dir(&folder))?;
    for package in fs::read_dir(&folder)?.flatten() {
        run(Command::new("dpkg-deb").arg("-x").arg(package.path()).arg(cache))?;
    }
    let kernel = Kernel::newest_below(cache).context("the packages have no kernel")?;
    // A package leaves this list to its installation.
    let version = kernel.modules.file_name().context("a version")?;
    run(Command::new("depmod").arg("-b").arg(cache).arg(version))
}

/// Returns the packages with images and modules that `general` depends on.
fn packages(general: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut open = vec![general.to_owned()];
    while let Some(package) = open.pop() {
        let output = Command::new("apt-cache").args(["depends", "--important", &package]).output();
        let output = output.context("apt-cache")?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some(name) = line.trim().strip_prefix("Depends: ") else { continue };
            let has_kernel = name.starts_with("linux-image-") || name.starts_with("linux-modules-");
            if has_kernel && found.insert(name.to_owned()) {
                open.push(name.to_owned());
            }
        }
    }
    if found.is_empty() {
        bail!("apt knows no kernel by the name of {general}: `apt-get update` first");
    }
    Ok(found)
}

/// Runs a program.
///
/// # Errors
/// If it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("{name} cannot be started"))?;
    if !status.success() {
        bail!("{name} failed: {status}");
    }
    Ok(())
}
