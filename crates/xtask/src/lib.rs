//! Tasks of the workspace that cargo has no command for.
//!
//! Owns the installation of `libtailwater`: cargo builds the archive, and what is here links the
//! shared libraries from it and puts all files under a prefix, without cargo-c. The tests of
//! `crates/capi` install the same way, into a folder of their own. With cargo-c its build script
//! makes the files here that cargo-c does not know of. [`dist`] makes what a
//! release consists of.

mod deb;
pub mod dist;
mod oci;
mod pack;
mod sbom;

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Version of what is installed.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Version of the ABI: 0 until the interface is stable.
pub const SOVERSION: &str = "0";

/// Returns the root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/xtask").to_owned()
}

/// Returns the compiler of C: the variable `CC`, or `cc`.
pub fn c_compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Runs a command to its end; returns what it wrote to standard output.
///
/// # Errors
/// If it cannot be run, or fails; the error has what it wrote to standard error.
pub fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}:\n{errors}", output.status);
    }
    Ok(output.stdout)
}

/// Builds the archive, optimized; returns its path.
///
/// # Errors
/// If this was not started by cargo, or the build fails.
pub fn build() -> Result<PathBuf> {
    // Relative to the folder of the caller, which the build leaves.
    let target = std::env::var_os("CARGO_TARGET_DIR").map(std::path::absolute).transpose()?;
    build_with(&target.unwrap_or_else(|| root().join("target")), None)
}

/// As [`build`], into a target directory, with flags for the compiler if there are any.
fn build_with(target: &Path, flags: Option<&OsString>) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").context("start this by cargo, as `cargo xtask`")?;
    let mut build = Command::new(cargo);
    build.current_dir(root()).args([
        "rustc",
        "--release",
        "-p",
        "tailwater-capi",
        "--lib",
        "--crate-type=staticlib",
        "--message-format=json-render-diagnostics",
    ]);
    build.arg("--target-dir").arg(target);
    if let Some(flags) = flags {
        build.env("RUSTFLAGS", flags);
    }
    archive_in(&run(&mut build)?).context("cargo built no archive (libtailwater_capi.a)")
}

/// Returns the path of the archive that cargo's messages name.
fn archive_in(messages: &[u8]) -> Option<PathBuf> {
    let lines = messages.split(|&byte| byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let built = messages.filter(|message| message["target"]["name"] == "tailwater_capi");
    let mut files = built.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    files.find_map(|file| file.as_str().filter(|path| path.ends_with(".a")).map(PathBuf::from))
}

/// Folder of the templates, the header and the source of `libtailwater-malloc`.
fn source() -> PathBuf {
    root().join("crates/capi")
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Installs `libtailwater` from `archive` under `prefix`: libraries, headers, and what pkg-config
/// and CMake read.
///
/// # Errors
/// If there is no C compiler, or a file cannot be written.
pub fn install(archive: &Path, prefix: &Path) -> Result<()> {
    let [lib, include] = ["lib", "include"].map(|name| prefix.join(name));
    create(&include)?;
    create(&lib)?;
    for header in ["tailwater.h", "tailwater.hpp"] {
        copy(&source().join("include").join(header), &include.join(header))?;
    }
    copy(archive, &lib.join("libtailwater.a"))?;
    link_runtime(&source(), &lib)?;
    link_malloc(&source(), &lib, &lib)?;
    describe(&lib)
}

/// Makes what cargo-c does not make, in the folder `lib`: `libtailwater-malloc`, and what
/// pkg-config and CMake read.
///
/// # Errors
/// As [`install`].
pub fn install_beside_cargo_c(lib: &Path) -> Result<()> {
    // The library to link with is not built yet: an empty one with its name does.
    let stub = lib.join("stub");
    create(&stub)?;
    let empty = stub.join("empty.c");
    fs::write(&empty, "").with_context(|| format!("cannot write {}", empty.display()))?;
    let mut link = c_compiler();
    link.arg("-shared").arg(&empty);
    link_library(link, &stub, "tailwater")?;
    link_malloc(&source(), lib, &stub)?;
    describe(lib)
}

/// Writes what pkg-config and CMake read.
fn describe(lib: &Path) -> Result<()> {
    let (pkgconfig, cmake) = (lib.join("pkgconfig"), lib.join("cmake/Tailwater"));
    create(&pkgconfig)?;
    create(&cmake)?;
    for (template, folder) in [
        ("tailwater.pc", &pkgconfig),
        ("tailwater-static.pc", &pkgconfig),
        ("TailwaterConfig.cmake", &cmake),
        ("TailwaterConfigVersion.cmake", &cmake),
    ] {
        fill_in(&source().join(format!("{template}.in")), &folder.join(template))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Links `libtailwater.so` from the archive: the version script keeps all names inside but those of
/// the interface.
fn link_runtime(source: &Path, lib: &Path) -> Result<()> {
    let version_script = format!("-Wl,--version-script={}", source.join("tailwater.map").display());
    let mut link = c_compiler();
    link.args(["-shared", "-Wl,--whole-archive"])
        .arg(lib.join("libtailwater.a"))
        .args(["-Wl,--no-whole-archive", "-Wl,--gc-sections", "-Wl,-z,now", "-Wl,-z,nodelete"])
        .arg(version_script)
        .args(["-lgcc_s", "-lpthread", "-ldl", "-lm"]);
    link_library(link, lib, "tailwater")
}

/// Links `libtailwater-malloc.so`, which needs the other one, of the folder `needed`.
fn link_malloc(source: &Path, lib: &Path, needed: &Path) -> Result<()> {
    let mut link = c_compiler();
    link.args(["-shared", "-fPIC", "-O2", "-fno-builtin", "-fvisibility=hidden"])
        .arg(source.join("c/malloc.c"))
        .arg("-I")
        .arg(source.join("include"))
        .arg("-L")
        .arg(needed)
        .args(["-Wl,--no-as-needed", "-ltailwater", "-Wl,-z,now", "-Wl,-rpath,$ORIGIN"]);
    link_library(link, lib, "tailwater-malloc")
}

/// Runs the linker, and makes the names by which a library is found at run time and when linking.
fn link_library(mut link: Command, lib: &Path, name: &str) -> Result<()> {
    let [file, soname, plain] = [format!(".{VERSION}"), format!(".{SOVERSION}"), String::new()]
        .map(|version| format!("lib{name}.so{version}"));
    run(link.arg(format!("-Wl,-soname,{soname}")).arg("-o").arg(lib.join(&file)))?;
    for (link, target) in [(&soname, &file), (&plain, &soname)] {
        let path = lib.join(link);
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).with_context(|| format!("cannot replace {}", path.display()))?;
        }
        std::os::unix::fs::symlink(target, &path)
            .with_context(|| format!("cannot create {}", path.display()))?;
    }
    Ok(())
}

/// Writes a template with its values.
fn fill_in(template: &Path, target: &Path) -> Result<()> {
    let text = fs::read_to_string(template).with_context(|| format!("cannot read {}", template.display()))?;
    let series = VERSION.rsplit_once('.').map_or(VERSION, |(series, _)| series);
    let filled =
        text.replace("@VERSION@", VERSION).replace("@SOVERSION@", SOVERSION).replace("@SERIES@", series);
    fs::write(target, filled).with_context(|| format!("cannot write {}", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_where_cargo_says() {
        let other = r#"{"reason":"compiler-artifact","target":{"name":"libc"},"filenames":["/t/liblibc.a"]}"#;
        let ours = r#"{"reason":"compiler-artifact","target":{"name":"tailwater_capi"},
            "filenames":["/t/x86_64-unknown-linux-gnu/release/libtailwater_capi.rlib",
            "/t/x86_64-unknown-linux-gnu/release/libtailwater_capi.a"]}"#
            .replace('\n', "");
        let end = r#"{"reason":"build-finished","success":true}"#;
        let found = archive_in(format!("{other}\n{ours}\nnot JSON\n{end}\n").as_bytes());
        assert_eq!(found, Some("/t/x86_64-unknown-linux-gnu/release/libtailwater_capi.a".into()));
        assert_eq!(archive_in(format!("{other}\n{end}\n").as_bytes()), None);
    }
}
