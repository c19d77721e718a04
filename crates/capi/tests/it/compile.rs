//! The installation that all tests share, and the compilers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tailwater_xtask::{install, run};

/// A language that programs are compiled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    C,
    Cpp,
}

/// Returns the compilers of a language that are there; prints that the test is skipped if there is
/// none.
pub fn compilers(language: Language) -> Vec<&'static str> {
    let names: &[&str] = match language {
        Language::C => &["cc", "clang"],
        Language::Cpp => &["c++", "clang++"],
    };
    let works = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    let (found, missing): (Vec<_>, Vec<_>) = names.iter().copied().partition(|name| works(name));
    for name in missing {
        println!(
            "skipped: programs of {language:?} by {name}, which is not there (Debian: build-essential, clang)"
        );
    }
    found
}

/// Returns the compilers with both ends of optimization.
pub fn with_levels(language: Language) -> Vec<(&'static str, &'static str)> {
    let both = |compiler| ["-O0", "-O3"].map(|level| (compiler, level));
    compilers(language).into_iter().flat_map(both).collect()
}

/// Name of an installation's folder, before the number of its process.
const FOLDER: &str = "capi-";

/// A folder of the target folder with `lib`, `include` and the programs of the tests. Each process
/// has its own: several may run the tests at once.
pub struct Installed(PathBuf);

impl Installed {
    /// Installs the archive at the first call; prints that the test is skipped if there is no
    /// compiler.
    pub fn get() -> Option<&'static Self> {
        static INSTALLED: OnceLock<Installed> = OnceLock::new();
        if compilers(Language::C).is_empty() {
            return None;
        }
        let install_once = || {
            let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
            remove_folders_of_ended_processes(parent);
            let folder = parent.join(format!("{FOLDER}{}", std::process::id()));
            install(&archive(), &folder).expect("the archive is installed");
            Installed(folder)
        };
        Some(INSTALLED.get_or_init(install_once))
    }

    pub fn prefix(&self) -> &Path {
        &self.0
    }

    /// Compiles a file of this crate with `options`, and links it with the shared libraries;
    /// returns the program. Warnings are errors.
    pub fn compile(&self, compiler: &str, source: &str, options: &[&str]) -> PathBuf {
        self.compile_with(compiler, source, options, &self.shared())
    }

    /// As [`compile`](Self::compile), with other libraries.
    pub fn compile_with(
        &self,
        compiler: &str,
        source: &str,
        options: &[&str],
        libraries: &[String],
    ) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let is_c = source.extension().is_some_and(|extension| extension == "c");
        let name: String = [compiler, &source.file_name().unwrap().to_string_lossy()]
            .into_iter()
            .chain(options.iter().copied())
            .chain(libraries.first().map(String::as_str))
            .flat_map(|part| part.chars().chain(['_']))
            .map(|letter| if letter.is_alphanumeric() { letter } else { '-' })
            .collect();
        let program = self.prefix().join(name);
        let standard = if is_c { "-std=c11" } else { "-std=c++20" };
        let compiled = run(Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Werror"])
            .args(options)
            .arg("-I")
            .arg(self.prefix().join("include"))
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .args(libraries)
            .args(["-lpthread", "-lm"]));
        compiled.unwrap_or_else(|error| panic!("{error:#}"));
        program
    }

    /// Returns the options that link the shared libraries, as `tailwater.pc` has them.
    pub fn shared(&self) -> Vec<String> {
        let lib = self.prefix().join("lib").display().to_string();
        vec![
            format!("-L{lib}"),
            format!("-Wl,-rpath,{lib}"),
            "-Wl,--push-state,--no-as-needed".into(),
            "-ltailwater-malloc".into(),
            "-Wl,--pop-state".into(),
            "-ltailwater".into(),
        ]
    }

    /// Returns those that link the archive.
    pub fn archived(&self) -> Vec<String> {
        let archive = self.prefix().join("lib/libtailwater.a").display().to_string();
        [&archive, "-lgcc_s", "-ldl"].map(Into::into).into()
    }
}

/// Removes the installations of processes that are no more; one with the number of this process is
/// an earlier one's.
fn remove_folders_of_ended_processes(parent: &Path) {
    for entry in std::fs::read_dir(parent).expect("cargo makes the folder") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(process) = name.strip_prefix(FOLDER).and_then(|number| number.parse::<u32>().ok()) else {
            continue;
        };
        let in_use = process != std::process::id() && Path::new(&format!("/proc/{process}")).exists();
        if !in_use && let Err(error) = std::fs::remove_dir_all(&path) {
            // Another process may have removed it meanwhile.
            assert!(!path.exists(), "cannot remove {}: {error}", path.display());
        }
    }
}

/// Returns the archive, which cargo builds before it runs all tests of the package.
fn archive() -> PathBuf {
    // target/PROFILE/deps/TEST -> target/PROFILE/examples
    let test = std::env::current_exe().expect("the test has a path");
    let path = test.parent().and_then(Path::parent).expect("a profile").join("examples/libarchive.a");
    assert!(
        path.is_file(),
        "{} is missing; build it: cargo build -p tailwater-capi --example archive",
        path.display()
    );
    path
}
