//! What is installed: the symbols, which are the ABI, and the ways to find the library.

use crate::compile::Installed;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use tailwater_testkit::{PATIENCE, Program, is_installed, run, text};

/// Returns the symbols that a library defines, as nm prints them.
fn symbols(library: &Path) -> BTreeSet<String> {
    names(&["-D", "--defined-only"], library)
}

/// Returns the names that nm prints.
fn names(options: &[&str], library: &Path) -> BTreeSet<String> {
    let output = run(Command::new("nm").args(options).arg(library), b"");
    let text = text(&output.stdout);
    let names = text.lines().filter_map(|line| line.rsplit(' ').next());
    names.map(str::to_owned).collect()
}

/// Returns the functions that the header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let words = header.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '(');
    let calls = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    let inline = ["tw_sized", "tw_poll_inline"];
    calls.filter(|name| name.starts_with("tw_") && !inline.contains(name)).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_nothing_else() {
    let Some(installed) = Installed::get() else { return };
    if !is_installed("nm", "binutils") {
        return;
    }
    let header = std::fs::read_to_string(installed.prefix().join("include/tailwater.h")).unwrap();
    let mut expected: BTreeSet<_> =
        declared(&header).into_iter().map(|name| format!("{name}@@TAILWATER_0.1")).collect();
    assert!(expected.len() > 90, "{expected:?}");
    expected.insert("TAILWATER_0.1".to_owned());
    assert_eq!(symbols(&installed.prefix().join("lib/libtailwater.so.0")), expected);
    let guarded = symbols(&installed.prefix().join("lib/libtailwater-malloc.so.0"));
    let names = [
        "__cxa_thread_atexit_impl",
        "aligned_alloc",
        "calloc",
        "free",
        "malloc",
        "memalign",
        "posix_memalign",
        "pthread_mutexattr_setprotocol",
        "realloc",
    ];
    assert_eq!(guarded, names.map(str::to_owned).into());
}

/// Oldest glibc that the library is for.
const OLDEST_GLIBC: (u32, u32) = (2, 31);

/// Returns name and version of a symbol as nm prints it, such as `stat64@GLIBC_2.33`; `None` if it
/// is not glibc's.
fn glibc_version(symbol: &str) -> Option<(&str, (u32, u32))> {
    let (name, version) = symbol.split_once('@')?;
    let mut parts = version.trim_start_matches('@').strip_prefix("GLIBC_")?.split('.');
    let mut number = || parts.next()?.parse().ok();
    Some((name, (number()?, number()?)))
}

#[test]
fn the_library_needs_no_function_that_the_oldest_glibc_lacks() {
    let Some(installed) = Installed::get() else { return };
    if !is_installed("nm", "binutils") {
        return;
    }
    // A library that is built with a newer glibc asks for the newest version of each function, so
    // what counts is whether glibc has an older one, too: it keeps the versions from before it
    // moved a function from libpthread or libdl.
    let old: BTreeSet<_> = glibc_files().iter().flat_map(|file| symbols(file)).collect();
    let old: BTreeSet<_> = old
        .iter()
        .filter_map(|symbol| glibc_version(symbol))
        .filter(|&(_, version)| version <= OLDEST_GLIBC)
        .map(|(name, _)| name)
        .collect();
    assert!(old.contains("malloc") && old.contains("pthread_create"), "{old:?}");
    // Until 2.33 these were in each program, from libc_nonshared.a.
    let linked_in = ["stat64", "fstat64", "lstat64", "fstatat64"];
    for library in ["libtailwater.so.0", "libtailwater-malloc.so.0"] {
        let path = installed.prefix().join("lib").join(library);
        let needed = names(&["-D", "--undefined-only"], &path);
        let needed: Vec<_> = needed.iter().filter_map(|symbol| glibc_version(symbol)).collect();
        // The other one needs libtailwater only.
        assert!(!needed.is_empty() || library != "libtailwater.so.0", "{library} needs nothing of glibc");
        let too_new: Vec<_> = needed
            .into_iter()
            .filter(|&(name, version)| {
                version > OLDEST_GLIBC && !old.contains(name) && !linked_in.contains(&name)
            })
            .collect();
        assert!(too_new.is_empty(), "{library} needs what glibc {OLDEST_GLIBC:?} lacks: {too_new:?}");
    }
}

/// Returns glibc's libraries that this process has loaded.
fn glibc_files() -> BTreeSet<std::path::PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| format!("/{path}"));
    let of_glibc = |path: &String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        ["libc.", "libc-", "libpthread", "libdl", "libm.", "libm-"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    paths.filter(of_glibc).map(Into::into).collect()
}

#[test]
fn the_list_of_symbols_is_that_of_the_committed_abi() {
    let crate_ = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(crate_.join("include/tailwater.h")).unwrap();
    let path = crate_.join("abi.txt");
    let functions: Vec<_> = declared(&header).into_iter().collect();
    let text = functions.join("\n") + "\n";
    if std::env::var_os("TAILWATER_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let gone: Vec<_> = known.lines().filter(|name| !functions.iter().any(|found| found == name)).collect();
    assert_eq!(
        gone, [""; 0],
        "functions of the ABI are gone: programs that are linked with them do not start"
    );
    assert_eq!(known, text, "new functions: add them with TAILWATER_UPDATE=1");
}

/// Copies the service of the guide into a folder of its own.
fn service() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/service");
    for file in ["Makefile", "CMakeLists.txt", "hello.c"] {
        std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
    }
    folder
}

/// Runs the service, which asks itself and prints the answer.
fn runs(program: &Path, lib: &Path) {
    let output = Program::start(Command::new(program).env("LD_LIBRARY_PATH", lib)).finish_within(PATIENCE);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("hello, world"), "{}", text(&output.stdout));
}

#[test]
fn a_makefile_finds_the_library_by_pkg_config() {
    let Some(installed) = Installed::get() else { return };
    if !is_installed("make", "make") || !is_installed("pkg-config", "pkg-config") {
        return;
    }
    let (folder, lib) = (service(), installed.prefix().join("lib"));
    let mut make = Command::new("make");
    make.current_dir(folder.path()).env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
    tailwater_xtask::run(&mut make).unwrap_or_else(|error| panic!("{error:#}"));
    runs(&folder.path().join("hello"), &lib);
}

#[test]
fn cmake_finds_the_library_by_its_configuration() {
    let Some(installed) = Installed::get() else { return };
    if !is_installed("cmake", "cmake") || !is_installed("make", "make") {
        return;
    }
    let folder = service();
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", installed.prefix().display());
    for arguments in [&["-S", ".", "-B", "build", &prefix][..], &["--build", "build"]] {
        let mut cmake = Command::new("cmake");
        cmake.current_dir(folder.path()).args(arguments);
        tailwater_xtask::run(&mut cmake).unwrap_or_else(|error| panic!("{error:#}"));
    }
    for target in ["hello", "hello-static"] {
        runs(&folder.path().join("build").join(target), &installed.prefix().join("lib"));
    }
}
